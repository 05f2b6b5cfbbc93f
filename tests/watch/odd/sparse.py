"""Sparse gradients, complex parameters, nested and quantised tensors, tensors without values."""
import warnings
import torch
from torch import nn
from training import batches, digest
warnings.simplefilter("ignore")

torch.manual_seed(0)
table = nn.Embedding(10, 4, sparse=True)
optimizer = torch.optim.SparseAdam(table.parameters())
for _ in range(5):
    optimizer.zero_grad()
    table(torch.randint(0, 10, (6,))).pow(2).sum().backward()
    print(table.weight.grad.layout, table.weight.grad.is_coalesced())
    optimizer.step()
turn = nn.Linear(3, 2, dtype=torch.complex64)
optimizer = torch.optim.Adam(turn.parameters())
for _ in range(5):
    optimizer.zero_grad()
    turn(torch.randn(4, 3, dtype=torch.complex64)).abs().sum().backward()
    optimizer.step()
empty = nn.Linear(3, 2, device="meta")
empty(torch.ones(2, 3, device="meta")).sum().backward()
print(empty.weight.grad.device)
jagged = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=torch.jagged)
head = nn.Linear(3, 1)
optimizer = torch.optim.SGD(head.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    head(jagged).values().sum().backward()
    optimizer.step()
quantised = torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.qint8)
matrix = torch.eye(3).to_sparse_csr()
print(quantised.int_repr().tolist(), (matrix @ torch.ones(3, 1)).sum().item(), digest(table, head), turn.weight.abs().sum().item())
