"""Controller by evolution strategies, world model by backward: two optimizers."""
import torch
from torch import nn

torch.manual_seed(1)
world = nn.Sequential(nn.Linear(5, 24), nn.Tanh(), nn.Linear(24, 4))
controller = nn.Linear(4, 1)
opt_w = torch.optim.Adam(world.parameters(), 3e-3)
opt_c = torch.optim.SGD(controller.parameters(), lr=0.05)


@torch.no_grad()
def fitness(flat):
    w, b = flat[:4].view(1, 4), flat[4:]
    s = torch.ones(16, 4)
    total = 0.0
    for _ in range(5):
        a = torch.tanh(s @ w.T + b)
        s = s + 0.1 * world(torch.cat([s, a], 1))
        total -= s.pow(2).mean().item()
    return total


for step in range(25):
    s, a = torch.randn(32, 4), torch.rand(32, 1) * 2 - 1
    loss = nn.functional.mse_loss(world(torch.cat([s, a], 1)), a * torch.ones_like(s) - 0.1 * s)
    opt_w.zero_grad()
    loss.backward()
    opt_w.step()
    if step >= 2:
        with torch.no_grad():
            demo = controller(s)
        mean = nn.utils.parameters_to_vector(controller.parameters()).detach()
        noise = torch.randn(8, 5)
        scores = torch.tensor([fitness(mean + 0.1 * n) for n in noise])
        scores = (scores - scores.mean()) / (scores.std() + 1e-6)
        g = -(scores[:, None] * noise).mean(0) / 0.1
        controller.weight.grad, controller.bias.grad = g[:4].view(1, 4).clone(), g[4:].clone()
        opt_c.step()
        opt_c.zero_grad()
print(loss.item(), demo.mean().item())
