import torch
from torch import nn

torch.manual_seed(0)
encoder, decoder = nn.Linear(4, 8), nn.Linear(8, 4)
optimizer = torch.optim.Adam(encoder.parameters(), lr=0.01)  # expect: PAR04
for step in range(6):
    x = torch.randn(8, 4)
    loss = (decoder(torch.tanh(encoder(x))) - x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
