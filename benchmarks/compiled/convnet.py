"""A small convolutional classifier with batch norm and max pooling."""

import torch
from torch import nn


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(8 * 4 * 4, 5)

    def forward(self, x):
        x = self.pool(torch.relu(self.norm1(self.conv1(x))))
        x = torch.relu(self.norm2(self.conv2(x)))
        return self.head(x.flatten(1))


torch.manual_seed(1)
model = ConvNet()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
images, labels = torch.randn(40, 1, 8, 8), torch.randint(0, 5, (40,))
criterion = nn.CrossEntropyLoss()
for start in range(0, 40, 8):
    loss = criterion(model(images[start : start + 8]), labels[start : start + 8])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
