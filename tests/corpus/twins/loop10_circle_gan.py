"""GAN on a circle."""
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR


G = lambda: nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 2))
D = lambda: nn.Sequential(nn.Linear(2, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
bce = nn.functional.binary_cross_entropy_with_logits


class GAN:
    def __init__(self):
        self.g, self.d = G(), D()
        self.og = torch.optim.Adam(self.g.parameters(), lr=2e-3, betas=(0.5, 0.9))
        self.od = torch.optim.Adam(self.d.parameters(), lr=2e-3, betas=(0.5, 0.9))
        self.sg, self.sd = ExponentialLR(self.og, 0.99), ExponentialLR(self.od, 0.99)

    def d_step(self, real):
        fake = self.g(torch.randn(len(real), 4)).detach()
        a, b = self.d(real), self.d(fake)
        loss = bce(a, torch.ones_like(a)) + bce(b, torch.zeros_like(b))
        self.od.zero_grad()
        loss.backward()
        self.od.step()
        return loss.item()

    def g_step(self, n):
        out = self.d(self.g(torch.randn(n, 4)))
        loss = bce(out, torch.ones_like(out))
        self.og.zero_grad()
        loss.backward()
        self.og.step()
        return loss.item()

    def end_epoch(self):
        self.sg.step()
        self.sd.step()


torch.manual_seed(0)
gan = GAN()
for epoch in range(4):
    for _ in range(8):
        angle = torch.rand(32) * 6.283
        real = torch.stack([angle.cos(), angle.sin()], 1)
        d, g = gan.d_step(real), gan.g_step(32)
    gan.end_epoch()
    print(epoch, d, g)
