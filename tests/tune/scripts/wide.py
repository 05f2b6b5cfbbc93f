"""Some megabytes of memory for each sample, and little work: the batch size is what counts."""

import argparse

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--samples", type=int, default=4096)
parser.add_argument("--steps", type=int, default=1_000_000)
parser.add_argument("--loader", choices=["plain", "sampler", "none"], default="plain")
parser.add_argument("--workers", type=int, default=0)
args = parser.parse_args()


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(256))

    def forward(self, x):
        wide = (x[:, None, :] * self.weight[:, None]).flatten(1)
        return wide.sigmoid().tanh().mean(1)


torch.manual_seed(0)
dataset = TensorDataset(torch.randn(args.samples, 1024))
valid = DataLoader(dataset, batch_size=64)
if args.loader == "plain":
    loader = DataLoader(dataset, args.batch_size, shuffle=True, num_workers=args.workers)
elif args.loader == "sampler":
    sampler = BatchSampler(RandomSampler(dataset), args.batch_size, drop_last=False)
    loader = DataLoader(dataset, batch_sampler=sampler)
else:
    loader = [(dataset.tensors[0][: args.batch_size],)] * 8
model = Wide()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = 0
print("validation", len(next(iter(valid))[0]))
while step < args.steps:
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()
        if step == 0:
            print("training", len(x), flush=True)
        step += 1
        if step >= args.steps:
            break
