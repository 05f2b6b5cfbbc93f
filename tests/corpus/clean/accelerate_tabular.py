"""Accelerate: prepared model, optimizer and loaders, accumulation under its context, gathered metrics."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class TabularNet(nn.Module):
    def __init__(self, numbers=6, categories=12, width=48):
        super().__init__()
        self.category = nn.Embedding(categories, 8)
        self.layers = nn.Sequential(
            nn.Linear(numbers + 8, width),
            nn.LayerNorm(width),
            nn.GELU(),
            nn.Dropout(0.1),
            nn.Linear(width, 3),
        )

    def forward(self, numbers, category):
        return self.layers(torch.cat([numbers, self.category(category)], dim=1))


def make_table(count, seed):
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(count, 6, generator=generator)
    category = torch.randint(0, 12, (count,), generator=generator)
    score = numbers[:, 0] + numbers[:, 1] * numbers[:, 2] + (category % 3).float() - 1
    label = torch.bucketize(score, torch.tensor([-0.7, 0.7]))
    return TensorDataset(numbers, category, label)


def main():
    set_seed(151)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    train_loader = DataLoader(make_table(1024, seed=1), batch_size=32, shuffle=True)
    val_loader = DataLoader(make_table(320, seed=2), batch_size=64)
    model = TabularNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.5)
    model, optimizer, train_loader, val_loader = accelerator.prepare(
        model, optimizer, train_loader, val_loader
    )
    criterion = nn.CrossEntropyLoss()

    for epoch in range(4):
        model.train()
        loss_sum, seen = 0.0, 0
        for numbers, category, label in train_loader:
            with accelerator.accumulate(model):
                loss = criterion(model(numbers, category), label)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            loss_sum += loss.item() * len(label)
            seen += len(label)
        scheduler.step()

        model.eval()
        hits = count = 0
        for numbers, category, label in val_loader:
            with torch.no_grad():
                choice = model(numbers, category).argmax(dim=1)
            choices, truth = accelerator.gather_for_metrics((choice, label))
            hits += (choices == truth).sum().item()
            count += len(truth)
        accelerator.print(f"epoch {epoch}: loss {loss_sum / seen:.3f} accuracy {hits / count:.3f}")


if __name__ == "__main__":
    main()
