"""Early stopping that remembers the best weights."""
import torch
from torch import nn


class EarlyStopping:
    def __init__(self, patience=3):
        self.patience, self.best, self.bad, self.weights = patience, float("inf"), 0, None

    def __call__(self, score, model):
        if score < self.best:
            self.best, self.bad = score, 0
            self.weights = {k: v.detach() for k, v in model.state_dict().items()}  # expect: PAR12
        else:
            self.bad += 1
        return self.bad >= self.patience


def main():
    torch.manual_seed(0)
    x = torch.randn(200, 6)
    y = (x[:, :1] * 2).sin() + 0.3 * torch.randn(200, 1)
    model = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 1))
    opt = torch.optim.Adam(model.parameters(), lr=2e-2)
    stop = EarlyStopping()
    for epoch in range(20):
        model.train()
        for idx in torch.randperm(150).split(25):
            loss = nn.functional.mse_loss(model(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            val = nn.functional.mse_loss(model(x[150:]), y[150:]).item()
        if stop(val, model):
            break
    model.load_state_dict(stop.weights)  # expect: PAR12
    print(epoch, stop.best)


main()
