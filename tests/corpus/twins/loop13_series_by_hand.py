"""Stateful LSTM over a long series, gradients by autograd.grad, updates by hand."""

import torch
import torch.nn as nn

torch.manual_seed(0)


class Forecaster(nn.Module):
    def __init__(self, hidden=16):
        super().__init__()
        self.rnn = nn.LSTM(1, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, 1)

    def forward(self, x, state=None):
        h, state = self.rnn(x, state)
        return self.fc(h), state


series = torch.sin(torch.arange(0, 400) * 0.1).view(4, 100, 1)
model = Forecaster()
for epoch in range(2):
    state = None
    total = 0.0
    for a in range(0, 90, 10):
        x, y = series[:, a : a + 10], series[:, a + 1 : a + 11]
        if state is not None:
            state = tuple(s.detach() for s in state)
        pred, state = model(x, state)
        loss = nn.functional.mse_loss(pred, y)
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads):
                p.data -= 0.01 * g
        total += loss.item()
    print(epoch, total / 9)
