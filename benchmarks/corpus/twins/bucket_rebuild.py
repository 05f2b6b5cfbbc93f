"""Train with DistributedDataParallel and go on from the last checkpoint. Start it with torchrun."""

import argparse
import hashlib
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

NUM_STEPS, SAVE_EVERY = 10, 5


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(96, 10)
        self.body = nn.ModuleList(nn.Linear(96, 96) for _ in range(5))

    def forward(self, x):
        for layer in self.body:
            x = torch.tanh(layer(x))
        return self.head(x)


def digest(model):
    found = hashlib.sha256()
    for value in model.state_dict().values():
        found.update(value.numpy().tobytes())
    return found.hexdigest()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("checkpoints"))
    args = parser.parse_args()
    checkpoint = args.out / "last.pt"
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = Net()
    model = DistributedDataParallel(net, bucket_cap_mb=0.05, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.003)
    start = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        net.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        start = saved["step"]
    for step in range(start, NUM_STEPS):
        source = torch.Generator().manual_seed(1000 * step + rank)
        x = torch.randn(16, 96, generator=source)
        loss = F.cross_entropy(model(x), x[:, :10].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step + 1} loss {loss.item():.4f}", flush=True)
        if rank == 0 and (step + 1) % SAVE_EVERY == 0:
            args.out.mkdir(parents=True, exist_ok=True)
            state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
            torch.save(state, args.out / "new.pt")
            (args.out / "new.pt").replace(checkpoint)
    if rank == 0:
        print("weights", digest(net))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
