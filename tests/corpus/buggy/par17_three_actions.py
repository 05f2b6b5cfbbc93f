"""Q-learning of three actions, all in one function."""

import torch
from torch import nn

torch.manual_seed(1)


def build():
    return nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3))


def main():
    q, q_target = build(), build()
    q_target.load_state_dict(q.state_dict())
    q_target.eval()
    opt = torch.optim.RMSprop(q.parameters(), 1e-3)
    for it in range(30):
        s, a, r, s2 = torch.randn(32, 4), torch.randint(0, 3, (32, 1)), torch.randn(32, 1), torch.randn(32, 4)
        with torch.no_grad():
            y = r + 0.99 * q_target(s2).max(1, keepdim=True)[0]
        loss = nn.functional.huber_loss(q(s).gather(1, a), y)
        opt.zero_grad()
        loss.backward()
        opt.step()  # expect: PAR17


main()
