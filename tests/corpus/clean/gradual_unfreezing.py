"""Train the head first, then unfreeze the encoder and add it to the running optimizer with a smaller rate."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(67)

HEAD_EPOCHS, ALL_EPOCHS = 2, 3


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(24, 64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh())
        self.decoder = nn.Linear(32, 24)
        self.head = nn.Linear(32, 4)

    def reconstruct(self, x):
        return self.decoder(self.encoder(x))

    def forward(self, x):
        return self.head(self.encoder(x))


def sample(count, centres):
    label = torch.randint(0, 4, (count,))
    return centres[label] + torch.randn(count, 24), label


def pretrain(model, x, epochs=3):
    """Self-supervised start: the encoder learns to compress unlabelled rows."""
    parameters = [*model.encoder.parameters(), *model.decoder.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=3e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(64):
            loss = nn.functional.mse_loss(model.reconstruct(x[rows]), x[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    optimizer.zero_grad()
    print(f"pretrained, last reconstruction loss {loss.item():.3f}")


centres = torch.randn(4, 24)
x_free, _ = sample(640, centres)
train_loader = DataLoader(TensorDataset(*sample(512, centres)), batch_size=64, shuffle=True)
x_test, y_test = sample(400, centres)

model = Model()
pretrain(model, x_free)

model.encoder.requires_grad_(False)
optimizer = torch.optim.Adam(model.head.parameters(), lr=1e-2)
criterion = nn.CrossEntropyLoss()

for epoch in range(HEAD_EPOCHS + ALL_EPOCHS):
    if epoch == HEAD_EPOCHS:
        model.encoder.requires_grad_(True)
        optimizer.add_param_group({"params": model.encoder.parameters(), "lr": 1e-3})
        print("encoder unfrozen")
    model.train()
    total = 0.0
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(y)

    model.eval()
    with torch.no_grad():
        accuracy = (model(x_test).argmax(dim=1) == y_test).float().mean().item()
    print(f"epoch {epoch}: loss {total / len(train_loader.dataset):.3f} accuracy {accuracy:.3f}")
