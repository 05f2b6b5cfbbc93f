"""Two nets and two optimizers; gradients are set to None by hand, the discriminator gets some it does not use."""

import torch
from torch import nn

torch.manual_seed(0)
G, D = nn.Linear(4, 2), nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
og, od = torch.optim.Adam(G.parameters(), 1e-3), torch.optim.Adam(D.parameters(), 1e-3)
bce = nn.BCEWithLogitsLoss()
for i in range(40):
    fake = G(torch.randn(32, 4))
    loss_g = bce(D(fake), torch.ones(32, 1))
    for p in G.parameters():
        p.grad = None
    loss_g.backward()
    og.step()
    for p in D.parameters():
        p.grad = None
    loss_d = bce(D(torch.randn(32, 2) + 1), torch.ones(32, 1)) + bce(D(fake.detach()), torch.zeros(32, 1))
    loss_d.backward()
    od.step()
