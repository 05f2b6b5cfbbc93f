"""Convolutional network with BatchNorm on digits: no bias before the normalisation, no decay on it, no
batch of one.
"""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader, Subset, TensorDataset

SEED, EPOCHS = 97, 4


def conv_block(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(conv_block(1, 16), conv_block(16, 32))
        self.classify = nn.Linear(32 * 2 * 2, 10)

    def forward(self, x):
        return self.classify(self.features(x).flatten(1))


def parameter_groups(model, decay):
    decayed, plain = [], []
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            is_weight = name == "weight" and not isinstance(module, nn.BatchNorm2d)
            (decayed if is_weight else plain).append(parameter)
    return [{"params": decayed, "weight_decay": decay}, {"params": plain, "weight_decay": 0.0}]


def loaders():
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1)
    everything = TensorDataset((images - 4.9) / 6.0, torch.tensor(digits.target))
    order = torch.randperm(len(everything)).tolist()
    # 1345 training images: the last batch would hold a single one, so it is dropped.
    train = DataLoader(Subset(everything, order[:1345]), batch_size=64, shuffle=True, drop_last=True)
    test = DataLoader(Subset(everything, order[1345:]), batch_size=113)
    return train, test


def main():
    torch.manual_seed(SEED)
    train_loader, test_loader = loaders()
    model = ConvNet()
    optimizer = torch.optim.SGD(parameter_groups(model, 5e-4), lr=0.05, momentum=0.9)
    scheduler = CosineAnnealingLR(optimizer, T_max=EPOCHS)
    criterion = nn.CrossEntropyLoss()
    for epoch in range(EPOCHS):
        model.train()
        total, seen = 0.0, 0
        for images, labels in train_loader:
            optimizer.zero_grad()
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(labels)
            seen += len(labels)
        scheduler.step()

        model.eval()
        with torch.no_grad():
            hits = sum((model(images).argmax(1) == labels).sum().item() for images, labels in test_loader)
        print(f"epoch {epoch}: loss {total / seen:.3f} accuracy {hits / len(test_loader.dataset):.3f}")


if __name__ == "__main__":
    main()
