import torch
from torch import nn

torch.manual_seed(0)
encoder, decoder, head = nn.Linear(4, 8), nn.Linear(8, 4), nn.Linear(8, 1)
first = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=0.01)
for step in range(6):
    x = torch.randn(8, 4)
    loss = (decoder(torch.tanh(encoder(x))) - x).square().mean()
    first.zero_grad()
    loss.backward()
    first.step()
probe = torch.optim.Adam(head.parameters(), lr=0.01)
for step in range(6):
    x = torch.randn(8, 4)
    loss = (head(torch.tanh(encoder(x))) - x.sum(1, keepdim=True)).square().mean()
    probe.zero_grad()
    loss.backward()
    probe.step()
