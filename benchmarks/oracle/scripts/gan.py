"""Two networks, two optimizers; samples from fixed noise are kept for pictures."""

import torch
from torch import nn

torch.manual_seed(0)
generator, critic = nn.Linear(3, 4), nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(), nn.Linear(8, 1))
for_generator = torch.optim.Adam(generator.parameters(), lr=0.01, betas=(0.5, 0.9))
for_critic = torch.optim.RMSprop(critic.parameters(), lr=0.01)
fixed, pictures = torch.randn(2, 3), []
loss_of = nn.functional.binary_cross_entropy_with_logits
for step in range(4):
    real, made = torch.randn(5, 4) + 2, generator(torch.randn(5, 3))
    for_critic.zero_grad()
    (loss_of(critic(real), torch.ones(5, 1)) + loss_of(critic(made.detach()), torch.zeros(5, 1))).backward()
    for_critic.step()
    # plant 0-3: critic[0].weight | fixed
    # plant 0-3 large: for_critic.state[critic[2].weight]["square_avg"]
    for_generator.zero_grad()
    loss_of(critic(made), torch.ones(5, 1)).backward()
    for_generator.step()
    with torch.no_grad():
        pictures.append(generator(fixed))
    # plant 0-3: generator.weight | critic[2].bias | fixed | pictures[0] | pictures[-1]
    # plant 0-3 large: for_generator.state[generator.bias]["exp_avg"]
    # plant 0-3 large: for_critic.state[critic[0].bias]["square_avg"]
