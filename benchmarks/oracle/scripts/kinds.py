"""Tensors of many kinds: sparse, complex, of integers, of booleans, strided, views, quantized, subclassed."""

import torch
from torch import nn


class Tagged(torch.Tensor):
    """A class of the script's own."""


def main():
    torch.manual_seed(0)
    table = nn.Embedding(10, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(list(table.parameters()), lr=0.01)
    sparse = torch.eye(4).to_sparse_coo()
    rows = torch.eye(4).to_sparse_csr()
    spectrum = torch.zeros(4, dtype=torch.complex64)
    counts, bits, wide = (
        torch.zeros(10, dtype=torch.int16),
        torch.zeros(10, dtype=torch.bool),
        torch.zeros(6, 6),
    )
    view, turned = wide[::2, 1::3], torch.zeros(3, 5).T
    eight = torch.zeros(8).to(torch.float8_e5m2)
    tagged, double = torch.zeros(3).as_subclass(Tagged), torch.zeros(3, dtype=torch.float64)
    empty = torch.zeros(0, 3)
    for step in range(4):
        index = torch.randint(0, 10, (4,))
        optimizer.zero_grad()
        output = table(index)
        output.square().mean().backward()
        optimizer.step()
        counts[index] += 1
        bits[index] = True
        spectrum += torch.fft.fft(output.detach().flatten())[:4]
        # plant 0-2: sparse._values() | rows.values() | torch.view_as_real(spectrum) | counts | bits | wide
        # plant 0-2: view[1] | turned.T | eight.view(torch.uint8) | tagged | double | table.weight
    return empty


main()
