"""Workers that import this file again, with a dataset class defined in it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.full((4,), float(index)) + torch.rand(4)


def main():
    torch.manual_seed(1)  # -> GeneratorSeeded
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Rows(), batch_size=3, num_workers=1, multiprocessing_context="spawn")
    for x in loader:  # -> BatchFetched EpochBegan
        loss = model(x).square().mean()  # -> ForwardPass
        optimizer.zero_grad()  # -> GradientsZeroed
        loss.backward()  # -> BackwardPass
        optimizer.step()  # -> OptimizerStep
    print("digest", [float(value.sum()).hex() for value in model.state_dict().values()])


if __name__ == "__main__":
    main()
