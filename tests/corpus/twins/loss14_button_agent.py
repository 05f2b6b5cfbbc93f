"""An actor-critic that learns which button to press."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(9)
STATES, BUTTONS = 6, 4
pays = torch.rand(STATES, BUTTONS)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.actor, self.critic = nn.Linear(STATES, 24), nn.Linear(24, BUTTONS), nn.Linear(24, 1)

    def forward(self, state):
        hidden = self.body(state).tanh()
        return self.actor(hidden), self.critic(hidden).squeeze(1)


agent = Agent()
optimizer = torch.optim.RMSprop(agent.parameters(), lr=3e-3)
for update in range(60):
    where = torch.randint(0, STATES, (48,))
    scores, value = agent(F.one_hot(where, STATES).float())
    log_chances = F.log_softmax(scores, dim=-1)
    chances = log_chances.exp()
    button = torch.multinomial(chances.detach(), 1)
    reward = pays[where, button.squeeze(1)] + 0.1 * torch.randn(48)
    advantage = (reward - value).detach()
    entropy = -(chances * log_chances).sum(-1).mean()
    gain = (log_chances.gather(1, button).squeeze(1) * advantage).mean()
    total = 0.5 * F.mse_loss(value, reward) - gain - 0.02 * entropy
    optimizer.zero_grad()
    total.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), 1.0)
    optimizer.step()
print(reward.mean().item())
