"""State in all kinds of containers, in globals of the script and deep inside of each other."""

import collections
import types
import weakref

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
recent = collections.deque([torch.zeros(3) for _ in range(4)], maxlen=4)
by_kind = collections.defaultdict(lambda: torch.zeros(3))
ordered = collections.OrderedDict(first=torch.zeros(3), second=torch.zeros(3))
layered = collections.ChainMap({"top": torch.zeros(3)}, {"below": torch.zeros(3)})
anchors = {torch.ones(3), torch.zeros(3)}
weak = weakref.WeakKeyDictionary({model: torch.zeros(3)})
space = types.SimpleNamespace(a=torch.zeros(3), b=types.SimpleNamespace(c=[torch.zeros(3)]))
mixed = {1: torch.zeros(3), "1": torch.zeros(3), (1, "a"): torch.zeros(3), None: torch.zeros(3)}
deep = {"a": [{"b": ({"c": [[torch.zeros(3)]]},)}]}
chained = None
for _ in range(20):
    chained = (chained, torch.zeros(3))
user = collections.UserDict(value=torch.zeros(3))
for step in range(4):
    output = model(torch.randn(5, 4))
    optimizer.zero_grad()
    output.square().mean().backward()
    optimizer.step()
    recent.append(output.detach().mean(0))
    by_kind[step % 2] += recent[-1]
    ordered.move_to_end("first")
    # plant 0-3: recent[0] | recent[-1] | by_kind[0] | ordered["first"] | ordered["second"] | layered["below"]
    # plant 0-3: sorted(anchors, key=lambda item: float(item.sum()))[1] | weak[model] | space.a | space.b.c[0]
    # plant 0-3: mixed[1] | mixed["1"] | mixed[1, "a"] | mixed[None] | user["value"]
    # plant 0-3: deep["a"][0]["b"][0]["c"][0][0] | chained[1] | chained[0][0][0][0][0][0][0][0][0][1]
