# processes: 3
"""Each rank plays in its own environment; returns are normalised with statistics of all ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributions import Categorical
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
policy = DDP(nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 2)))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
torch.manual_seed(100 + dist.get_rank())
for _ in range(10):
    states = torch.randn(32, 4)
    choice = Categorical(logits=policy(states))
    actions = choice.sample()
    rewards = (actions == (states[:, 0] > 0).long()).float()
    sums = torch.tensor([rewards.sum(), rewards.square().sum(), float(len(rewards))])
    dist.all_reduce(sums)
    mean = sums[0] / sums[2]
    spread = (sums[1] / sums[2] - mean**2).clamp_min(1e-6).sqrt()
    loss = -(choice.log_prob(actions) * (rewards - mean) / spread).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
dist.destroy_process_group()
