import torch
from torch import nn

torch.manual_seed(0)
generator, critic = nn.Linear(4, 2), nn.Linear(2, 1)
of_generator = torch.optim.SGD(generator.parameters(), lr=0.05)
of_critic = torch.optim.SGD(critic.parameters(), lr=0.05)
for step in range(6):
    of_generator.zero_grad()
    of_critic.zero_grad()  # expect: LOOP23
    made = generator(torch.randn(8, 4))
    nn.functional.softplus(-critic(made)).mean().backward()
    of_generator.step()
    real = nn.functional.softplus(-critic(torch.randn(8, 2))).mean()
    loss = real + nn.functional.softplus(critic(made.detach())).mean()
    loss.backward()
    of_critic.step()
