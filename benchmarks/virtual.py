"""A dataset of any length: a sample is made from its index, nothing is stored."""

import torch
from torch.utils.data import Dataset


class Numbers(Dataset[tuple[torch.Tensor, int]]):
    """Eight numbers and a class for each index."""

    def __init__(self, num_samples: int) -> None:
        self._num_samples = num_samples

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.tensor([(index >> (5 * place)) % 32 / 32 for place in range(8)]), index % 2
