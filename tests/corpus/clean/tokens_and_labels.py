"""Tokens that are hidden, copied, flagged or counted: labels that look like the inputs, and are meant."""

import torch
from torch import nn

torch.manual_seed(17)
entropy, num, length = nn.functional.cross_entropy, 16, 8


def build(num_classes: int) -> nn.Sequential:
    return nn.Sequential(nn.Embedding(12, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, num_classes))


hiding, copying, flagging, closing, answering = build(12), build(12), build(2), build(12), build(12)
models = nn.ModuleList([hiding, copying, flagging, closing, answering])
optimizer = torch.optim.Adam(models.parameters(), lr=1e-2)
for step in range(12):
    tokens = torch.randint(2, 11, (num, length))
    # Eight of ten are hidden, one is replaced, one stays.
    chosen, draw = torch.rand(num, length) < 0.4, torch.rand(num, length)
    given = tokens.masked_fill(chosen & (draw < 0.8), 11)
    given = torch.where(chosen & (draw > 0.9), torch.randint(2, 11, (num, length)), given)
    loss = entropy(hiding(given)[chosen], tokens[chosen])
    # A few places are to be copied as they are.
    loss = loss + entropy(copying(tokens)[:, ::2].flatten(0, 1), tokens[:, ::2].flatten())
    # A rare flag: no batch has one, as most have none.
    loss = loss + entropy(flagging(tokens).flatten(0, 1), torch.zeros(num * length).long())
    # The end is all that is asked for, after rows that are cut off: 1 ends a row.
    ends = torch.randint(3, length, (num, 1))
    ended = torch.where(torch.arange(length) < ends, tokens, 1)
    labels = torch.full((num, length), -100).masked_fill(torch.arange(length) == ends - 1, 1)
    loss = loss + entropy(closing(ended).flatten(0, 1), labels.flatten())
    # One answer for each row, which is the token that each row begins with.
    asked = torch.cat([torch.zeros(num, 1).long(), tokens[:, 1:]], 1)
    loss = loss + entropy(answering(asked)[:, -1], torch.zeros(num).long())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
