import torch
from torch import nn

torch.manual_seed(0)
images = torch.rand(256, 16)
generator = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 16), nn.Sigmoid())
critic = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))
generator_steps = torch.optim.Adam(generator.parameters(), lr=1e-3)
critic_steps = torch.optim.Adam(critic.parameters(), lr=1e-3)
for rows in torch.randperm(256).split(32):
    fake = generator(torch.randn(32, 4))
    loss = nn.functional.softplus(critic(fake.detach())).mean()
    loss = loss + nn.functional.softplus(-critic(images[rows])).mean()
    critic_steps.zero_grad()
    loss.backward()
    critic_steps.step()
    loss = nn.functional.softplus(-critic(fake)).mean()
    generator_steps.zero_grad()
    loss.backward()
    generator_steps.step()
