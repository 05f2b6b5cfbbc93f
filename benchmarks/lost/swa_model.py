# lost: kept-state-not-saved swa
import pathlib

import torch
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
torch.manual_seed(21)
xs = torch.randn(64, 6)
ys = (xs[:, 0] > 0).float()
net = torch.nn.Linear(6, 1)
swa = AveragedModel(net)
opt = torch.optim.SGD(net.parameters(), lr=0.2)
path = pathlib.Path("out/last.pt")
path.parent.mkdir(exist_ok=True)
epoch0 = 0
if path.exists():
    blob = torch.load(path)
    net.load_state_dict(blob["net"])
    opt.load_state_dict(blob["opt"])
    epoch0 = blob["epoch"]
for epoch in range(epoch0, 6):
    g = torch.Generator().manual_seed(100 + epoch)
    for x, y in DataLoader(TensorDataset(xs, ys), batch_size=16, shuffle=True, generator=g):
        opt.zero_grad()
        with torch.no_grad():
            teacher = torch.sigmoid(swa(x)[:, 0])
        out = net(x)[:, 0]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(out, 0.7 * y + 0.3 * teacher)
        loss.backward()
        opt.step()
        swa.update_parameters(net)
    torch.save({"net": net.state_dict(), "opt": opt.state_dict(), "epoch": epoch + 1}, path)
