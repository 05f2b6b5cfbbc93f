"""Day or night, clear or fog: scene labels for 8-bit camera frames."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

SCENES = ("day clear", "day fog", "night clear", "night fog")


def capture(count, seed):
    """RGB frames as the camera stores them, uint8 in height, width, channel order."""
    rng = np.random.default_rng(seed)
    scene = rng.integers(0, len(SCENES), count)
    brightness = np.where(scene < 2, 150, 60)[:, None, None, None]
    contrast = np.where(scene % 2 == 0, 45, 20)[:, None, None, None]
    texture = rng.standard_normal((count, 16, 16, 3))
    frames = np.clip(brightness + contrast * texture, 0, 255).astype(np.uint8)
    return frames, scene


class Frames(Dataset):
    def __init__(self, count, seed):
        self.frames, self.scene = capture(count, seed)

    def __len__(self):
        return len(self.frames)

    def __getitem__(self, index):
        frame = torch.from_numpy(self.frames[index]).permute(2, 0, 1)
        return (frame.float() / 255 - 0.41) / 0.22, int(self.scene[index])


class SceneNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 32, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, stride=2, padding=1)
        self.out = nn.Linear(64, len(SCENES))

    def forward(self, frame):
        h = torch.relu(self.conv1(frame))
        h = torch.relu(self.conv2(h))
        return self.out(h.mean(dim=(2, 3)))


class Experiment:
    def __init__(self, epochs=4):
        self.epochs = epochs
        self.train_loader = DataLoader(Frames(512, seed=1), batch_size=32, shuffle=True)
        self.val_loader = DataLoader(Frames(128, seed=2), batch_size=64)
        self.model = SceneNet()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.criterion = nn.CrossEntropyLoss()

    def run(self):
        for epoch in range(self.epochs):
            self.model.train()
            for frame, scene in self.train_loader:
                self.optimizer.zero_grad()
                loss = self.criterion(self.model(frame), scene)
                loss.backward()
                self.optimizer.step()
            print(f"epoch {epoch}: loss {loss.item():.4f}, accuracy {self.validate():.3f}")

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        hits = seen = 0
        for frame, scene in self.val_loader:
            hits += (self.model(frame).argmax(dim=1) == scene).sum().item()
            seen += len(scene)
        return hits / seen


if __name__ == "__main__":
    torch.manual_seed(0)
    Experiment().run()
