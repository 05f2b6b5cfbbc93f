"""The task of the scripts beside this one: rows made from a seed, a small network, the digest of one."""

import argparse
import hashlib

import torch
from torch import nn
from torch.utils.data import Dataset

SEED = 7
NUM_STEPS, SAVE_EVERY = 36, 4
NUM_SAMPLES, BATCH = 170, 16
"""An epoch has 11 steps, its last batch 10 samples: checkpoints fall into the middle of epochs."""


class Samples(Dataset):
    """Rows of numbers and their classes; with noise drawn from torch's global generator if augmented."""

    def __init__(self, augment):
        made = torch.Generator().manual_seed(5)
        self.rows = torch.randn(NUM_SAMPLES, 16, generator=made)
        self.labels = self.rows[:, :4].argmax(1)
        self.augment = augment

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        row = self.rows[index]
        if self.augment:
            row = row + 0.1 * torch.randn(16)
        return row, self.labels[index]


def make_net(dropout):
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(dropout), nn.Linear(32, 4))


def digest(model):
    found = hashlib.sha256()
    for value in model.state_dict().values():
        found.update(value.numpy().tobytes())
    return found.hexdigest()


def make_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--augment", action="store_true", help="draw noise in the dataset")
    parser.add_argument("--workers", type=int, default=0)
    return parser
