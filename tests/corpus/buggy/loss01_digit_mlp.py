"""Handwritten digits with a plain multilayer perceptron."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset

SEED = 42
EPOCHS = 5
BATCH = 64

torch.manual_seed(SEED)

pixels, digits = load_digits(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(
    pixels, digits, test_size=0.2, random_state=SEED, stratify=digits
)


def to_dataset(images, labels):
    scaled = torch.tensor(images, dtype=torch.float32) / 16.0
    return TensorDataset((scaled - 0.305) / 0.376, torch.tensor(labels))


train_data = to_dataset(x_train, y_train)
test_data = to_dataset(x_test, y_test)
train_loader = DataLoader(train_data, batch_size=BATCH, shuffle=True)
test_loader = DataLoader(test_data, batch_size=256)

model = nn.Sequential(
    nn.Linear(64, 128),
    nn.ReLU(),
    nn.Linear(128, 64),
    nn.ReLU(),
    nn.Linear(64, 10),
    nn.Softmax(dim=1),  # expect: LOSS01
)
criterion = nn.CrossEntropyLoss()
optimizer = optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(EPOCHS):
    model.train()
    epoch_loss = 0.0
    for images, labels in train_loader:
        optimizer.zero_grad()
        outputs = model(images)
        loss = criterion(outputs, labels)  # expect: LOSS01
        loss.backward()
        optimizer.step()
        epoch_loss += loss.item() * len(labels)

    model.eval()
    correct = 0
    with torch.no_grad():
        for images, labels in test_loader:
            correct += (model(images).argmax(dim=1) == labels).sum().item()
    print(
        f"epoch {epoch + 1}/{EPOCHS} "
        f"loss {epoch_loss / len(train_data):.4f} "
        f"test accuracy {correct / len(test_data):.4f}"
    )
