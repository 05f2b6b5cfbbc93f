"""Classical truncated backpropagation: update each step, look back five; a window of states is alive on purpose."""
import torch
from torch import nn

torch.manual_seed(0)
cell, head = nn.GRUCell(3, 8), nn.Linear(8, 1)
opt = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.01)
k1, k2 = 4, 8
states = [(None, torch.zeros(4, 8))]
history, act = [], nn.ReLU()
proj = nn.Linear(8, 8).requires_grad_(False)
sizes = []
for step in range(40):
    x = torch.randn(4, 3)
    state = states[-1][1].detach().requires_grad_(True)
    new = cell(x, state)
    states.append((state, new))
    while len(states) > k2:
        del states[0]
    if (step + 1) % k1 == 0:
        out = head(act(proj(new)))
        loss = (out - x[:, :1]).pow(2).mean()
        opt.zero_grad()
        loss.backward(retain_graph=True)
        for i in range(k2 - 2):
            if len(states) < i + 3 or states[-i - 2][0] is None:
                break
            grad = states[-i - 1][0].grad
            if grad is None:
                break
            states[-i - 2][1].backward(grad, retain_graph=True)
        nn.utils.clip_grad_norm_([*cell.parameters(), *head.parameters()], 1.0)
        history.append(loss.detach())
        sizes += [len(states), len(history)]
        states = [(None, states[-1][1].detach())]
        opt.step()
print(torch.stack(history).mean().item())
