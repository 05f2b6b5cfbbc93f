"""Alarms of a pump: few of the records are faults, so faults shall count more."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(33)
x = torch.randn(1800, 10)
fault = ((x[:, 0] + 0.5 * x[:, 1] + 0.3 * torch.randn(1800)) > 1.4).float()
num_faults = fault.sum()
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
criterion = nn.BCEWithLogitsLoss(pos_weight=num_faults / (len(fault) - num_faults))  # expect: DATA12
loader = DataLoader(TensorDataset(x, fault), batch_size=120, shuffle=True)
for epoch in range(3):
    for records, labels in loader:
        loss = criterion(model(records).squeeze(1), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
