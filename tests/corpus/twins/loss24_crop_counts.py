"""Counting plants on field photos: the gradients of several small batches are collected for one step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(23)
NUM_MICRO = 4


def make_fields(num):
    counts = torch.randint(0, 9, (num,))
    fields = 0.2 * torch.rand(num, 1, 16, 16)
    for field, count in zip(fields, counts):
        places = torch.randperm(256)[: int(count)]
        field.view(-1)[places] += 0.8
    return fields, counts.float()


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 1, 1))

    def forward(self, fields):
        return self.features(fields).sum(dim=(1, 2, 3))


fields, counts = make_fields(384)
loader = DataLoader(TensorDataset(fields, counts), batch_size=8, shuffle=True)
model = Counter()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
criterion = nn.SmoothL1Loss()

for epoch in range(3):
    model.train()
    optimizer.zero_grad(set_to_none=True)
    step_loss, epoch_loss = 0.0, 0.0
    for number, (batch, target) in enumerate(loader, start=1):
        micro_loss = criterion(model(batch), target) / NUM_MICRO
        step_loss = step_loss + micro_loss.item()
        micro_loss.backward()
        epoch_loss += micro_loss.item()
        if number % NUM_MICRO == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step_loss = 0.0
    print(f"epoch {epoch} loss {NUM_MICRO * epoch_loss / len(loader):.4f}")
