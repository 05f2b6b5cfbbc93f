"""Average accuracy of batches, divided by samples."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(20)
x = torch.randn(360, 10)
y = (x[:, 0] > 0).long()
train = DataLoader(TensorDataset(x[:260], y[:260]), batch_size=26, shuffle=True)
test = DataLoader(TensorDataset(x[260:], y[260:]), batch_size=50)
model, criterion = nn.Linear(10, 2), nn.CrossEntropyLoss()
opt = torch.optim.SGD(model.parameters(), lr=0.1)


def run(loader, training):
    model.train(training)
    running_loss, correct = 0.0, 0
    with torch.set_grad_enabled(training):
        for xb, yb in loader:
            out = model(xb)
            loss = criterion(out, yb)
            if training:
                opt.zero_grad()
                loss.backward()
                opt.step()
            running_loss += loss.item() * xb.size(0)
            correct += (out.argmax(1) == yb).sum().item()
    n = len(loader.dataset)
    return running_loss / n, correct / n


for epoch in range(3):
    print(epoch, run(train, True), run(test, False))
