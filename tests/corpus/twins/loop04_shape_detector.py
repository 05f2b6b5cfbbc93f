"""Finds the centre of a bright square in a noisy image; gradients add up to the nominal batch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def make_images(count, size=24, seed=0):
    g = torch.Generator().manual_seed(seed)
    corner = torch.randint(2, size - 8, (count, 2), generator=g)
    grid = torch.arange(size)
    rows = (grid >= corner[:, :1]) & (grid < corner[:, :1] + 6)
    cols = (grid >= corner[:, 1:]) & (grid < corner[:, 1:] + 6)
    square = (rows[:, :, None] & cols[:, None, :]).float()
    images = square[:, None] + 0.3 * torch.randn(count, 1, size, size, generator=g)
    centres = (corner.float() + 3.0) / size
    return TensorDataset(images, centres)


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, stride=2, padding=1),
            nn.SiLU(),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.SiLU(),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(16 * 6 * 6, 64), nn.SiLU(), nn.Linear(64, 2))

    def forward(self, images):
        return torch.sigmoid(self.head(self.features(images)))


class DetectorTrainer:
    nominal_batch = 64

    def __init__(self, batch_size=16, epochs=8):
        torch.manual_seed(0)
        self.epochs = epochs
        self.model = Detector()
        self.criterion = nn.SmoothL1Loss(beta=0.1)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3)
        self.accumulate = max(round(self.nominal_batch / batch_size), 1)
        self.train_loader = DataLoader(make_images(160, seed=1), batch_size=batch_size, shuffle=True)
        self.val_loader = DataLoader(make_images(64, seed=2), batch_size=64)

    def train(self):
        integrated = 0
        self.optimizer.zero_grad()
        for epoch in range(self.epochs):
            self.model.train()
            mean_loss = 0.0
            for images, centres in self.train_loader:
                integrated += 1
                loss = self.criterion(self.model(images), centres)
                (loss / self.accumulate).backward()
                if integrated % self.accumulate == 0:
                    self.optimizer_step()
                mean_loss += loss.item() / len(self.train_loader)
            print(f"epoch {epoch}: loss {mean_loss:.4f}  centre error {self.validate():.2f} px")

    def optimizer_step(self):
        nn.utils.clip_grad_norm_(self.model.parameters(), max_norm=10.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        error, count = 0.0, 0
        for images, centres in self.val_loader:
            distance = (self.model(images) - centres).norm(dim=1) * images.shape[-1]
            error += distance.sum().item()
            count += len(images)
        return error / count


if __name__ == "__main__":
    DetectorTrainer().train()
