"""A worker of a loader fails: its error reaches the loop with its own frames."""
import torch
from torch.utils.data import DataLoader
from training import small, train

class Rows:
    def __len__(self): return 12
    def __getitem__(self, index):
        if index == 7: raise ValueError("row 7")
        return torch.ones(4), 0

train(small(), given=DataLoader(Rows(), 4, num_workers=1))
