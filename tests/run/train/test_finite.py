"""The finite check on gradients of every layout."""

import torch

from truestep.run.train.gradients import FiniteCheck


def test_sparse_gradients_are_looked_at_too_and_left_as_they_are() -> None:
    embedding = torch.nn.Embedding(5, 3, sparse=True)
    embedding(torch.tensor([1, 2])).sum().backward()
    gradient = embedding.weight.grad
    assert gradient is not None and gradient.is_sparse
    is_finite, before = FiniteCheck(torch.device("cpu")), gradient.to_dense()
    assert is_finite([torch.ones(2), gradient])
    assert torch.equal(gradient.to_dense(), before)
    gradient._values()[0, 0] = torch.inf
    assert not is_finite([torch.ones(2), gradient])
    assert is_finite([torch.ones(2)])
