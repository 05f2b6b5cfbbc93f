"""torch's own averaged model and a learning rate scheduler."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)
    average = AveragedModel(model, use_buffers=True)
    for step in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        schedule.step()
        average.update_parameters(model)
        # plant 0-3: average.module[0].weight | average.n_averaged
        # plant 0-3 large: average.module[1].running_mean
        # plant 0-3 large: model[1].running_var | optimizer.state[model[0].weight]["momentum_buffer"]
    torch.save(average.state_dict(), "averaged.pt")


main()
