"""Loaders built in every way, with workers of their own or without."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

data = TensorDataset(torch.arange(12.0))


class Halves(DataLoader):
    def __init__(self, dataset, parts=2, **options):
        super().__init__(dataset, batch_size=len(dataset) // parts, **options)


loaders = [
    DataLoader(data, 3),
    DataLoader(data, 3, False, None, None, 1),
    DataLoader(
        data,
        batch_size=3,
        num_workers=1,
        prefetch_factor=3,
        persistent_workers=True,
        timeout=60,
        multiprocessing_context="fork",
    ),
    Halves(data, num_workers=1),
    StatefulDataLoader(data, batch_size=3, num_workers=1, prefetch_factor=3, timeout=60),
]
print("workers", [loader.num_workers for loader in loaders])
print("prefetch", [loader.prefetch_factor for loader in loaders])
print("timeout", [loader.timeout for loader in loaders])
if len(sys.argv) > 1:
    for loader in loaders:
        print("batches", [batch[0].tolist() for batch in loader])
try:
    DataLoader(data, no_such_option=1)
except TypeError as error:
    print("refused", error)
