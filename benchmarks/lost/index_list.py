# lost: variable-not-saved order
import random
from pathlib import Path

import torch

random.seed(31)
torch.manual_seed(31)
torch.set_num_threads(1)
images = torch.rand(40, 1, 6, 6)
classes = torch.arange(40) % 4
net = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.Flatten(), torch.nn.Linear(64, 4))
sgd = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
last = Path("last.pth")
n = 0
if last.exists():
    c = torch.load(last, weights_only=False)
    net.load_state_dict(c["net"])
    sgd.load_state_dict(c["sgd"])
    random.setstate(c["random"])
    n = c["n"]
order = list(range(40))
random.shuffle(order)
for n in range(n, 20):
    pick = order[n % 5 * 8 : n % 5 * 8 + 8]
    loss = torch.nn.functional.cross_entropy(net(images[pick]), classes[pick])
    sgd.zero_grad()
    loss.backward()
    sgd.step()
    if n % 5 == 4:
        bag = {"net": net.state_dict(), "sgd": sgd.state_dict(), "random": random.getstate(), "n": n + 1}
        torch.save(bag, last)
