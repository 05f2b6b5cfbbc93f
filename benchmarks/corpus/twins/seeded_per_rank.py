"""Train on several processes: every batch has four parts, and each process takes its share of them.

The gradients of the parts are shared and summed in the order of the parts. Start it with torchrun.
"""

import hashlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

NUM_PARTS = 4


def digest(model):
    found = hashlib.sha256()
    for value in model.state_dict().values():
        found.update(value.numpy().tobytes())
    return found.hexdigest()


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.randn(8, NUM_PARTS, 8, 16)
    labels = (inputs.sum(-1) > 0).long()
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 2))
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
    for step in range(8):
        gradients = torch.zeros(NUM_PARTS, sum(parameter.numel() for parameter in parameters))
        for part in range(rank, NUM_PARTS, size):
            torch.manual_seed(100 + NUM_PARTS * step + part)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs[step, part]), labels[step, part])
            loss.backward()
            gradients[part] = torch.cat([parameter.grad.flatten() for parameter in parameters])
        for part in range(NUM_PARTS):
            dist.broadcast(gradients[part], src=part % size)
        mean = gradients.mean(0).split([parameter.numel() for parameter in parameters])
        for parameter, gradient in zip(parameters, mean, strict=True):
            parameter.grad = gradient.view_as(parameter)
        optimizer.step()
        if rank == 0:
            print(f"step {step + 1} loss {loss.item():.4f}")
    if rank == 0:
        print("weights", digest(model))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
