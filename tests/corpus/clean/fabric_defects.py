"""Find defects in woven fabric: residual convolutional classifier."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def fabric(count, seed):
    generator = torch.Generator().manual_seed(seed)
    defect = torch.randint(0, 2, (count,), generator=generator)
    weave = torch.sin(torch.arange(16) * 1.6)
    image = (weave.view(-1, 1) * weave.view(1, -1)).repeat(count, 1, 1)
    row = torch.randint(2, 14, (count,), generator=generator)
    image[torch.arange(count), row] += 1.5 * defect.unsqueeze(1)
    return TensorDataset((image + 0.5 * torch.randn(image.shape, generator=generator)).unsqueeze(1), defect)


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(width)

    def forward(self, x):
        h = F.relu(self.bn1(self.conv1(x)))
        return F.relu(x + self.bn2(self.conv2(h)))


class DefectNet(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.stage1 = Residual(width)
        self.stage2 = Residual(width)
        self.out = nn.Linear(width, 2)

    def forward(self, image):
        h = F.relu(self.stem(image))
        h = F.max_pool2d(self.stage1(h), 2)
        h = self.stage2(h)
        return self.out(h.mean(dim=(2, 3)))


def run_epoch(model, loader, optimizer=None):
    """One pass over the loader; trains where an optimizer is given. Returns loss and accuracy."""
    training = optimizer is not None
    model.train(training)
    total = hits = seen = 0.0
    with torch.set_grad_enabled(training):
        for image, defect in loader:
            logits = model(image)
            loss = F.cross_entropy(logits, defect)
            if training:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total += loss.item() * len(defect)
            hits += (logits.argmax(dim=1) == defect).sum().item()
            seen += len(defect)
    return total / seen, hits / seen


if __name__ == "__main__":
    torch.manual_seed(3)
    train_loader = DataLoader(fabric(320, seed=1), batch_size=32, shuffle=True)
    test_loader = DataLoader(fabric(96, seed=2), batch_size=96)
    model = DefectNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(3):
        loss, _ = run_epoch(model, train_loader, optimizer)
        _, accuracy = run_epoch(model, test_loader)
        print(f"epoch {epoch}: loss {loss:.4f}, test accuracy {accuracy:.3f}")
