"""A transformer layer with a cache of keys and values, positions and a mask; state in a nested module."""

import torch
from torch import nn


class Memory(nn.Module):
    def __init__(self):
        super().__init__()
        self.keys, self.values = [], torch.zeros(2, 8)
        self.register_buffer("mask", torch.ones(3, 3).tril().bool())


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory = Memory()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.positions = nn.Parameter(torch.zeros(3, 8), requires_grad=False)

    def forward(self, x):
        x = x + self.positions
        self.memory.keys = [*self.memory.keys[-2:], x.detach()]
        self.memory.values = x.detach().mean(1)
        return self.norm(x + self.attention(x, x, x, attn_mask=~self.memory.mask, need_weights=False)[0])


torch.manual_seed(0)
block = Block()
optimizer = torch.optim.AdamW([item for item in block.parameters() if item.requires_grad], lr=0.01)
ensemble = [block.norm.weight.detach().clone()]
for step in range(4):
    optimizer.zero_grad()
    block(torch.randn(2, 3, 8)).square().sum().backward()
    optimizer.step()
    ensemble += [block.norm.weight.detach().clone()]
    # plant 0-3: block.memory.keys[0] | block.memory.mask | block.positions | ensemble[0]
    # plant 3-3: block.memory.values | block.memory.keys[-1]
    # plant 0-3: block.attention.in_proj_weight | block.norm.bias | ensemble[-1]
