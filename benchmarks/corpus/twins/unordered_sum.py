"""Train an autoencoder with tied weights; every weight counts once in the gradient's norm."""

import hashlib

import torch
import torch.nn.functional as F
from torch import nn

NUM_LAYERS = 12


class TiedAutoencoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.encoder = nn.ModuleList(nn.Linear(width, width) for _ in range(NUM_LAYERS))
        self.decoder = nn.ModuleList(nn.Linear(width, width) for _ in range(NUM_LAYERS))
        for ours, theirs in zip(self.decoder, self.encoder, strict=True):
            ours.weight = theirs.weight

    def forward(self, x):
        for layer in [*self.encoder, *self.decoder]:
            x = x + 0.1 * torch.tanh(layer(x))
        return x


def clip_gradients(model, max_norm):
    parameters = [*model.encoder.parameters(), *model.decoder.parameters()]
    total = torch.zeros(())
    for parameter in dict.fromkeys(parameters):
        total += parameter.grad.pow(2).sum()
    scale = max_norm / total.sqrt()
    for parameter in model.parameters():
        parameter.grad *= scale


def digest(model):
    found = hashlib.sha256()
    for value in model.state_dict().values():
        found.update(value.numpy().tobytes())
    return found.hexdigest()


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = torch.randn(32, 16)
    model = TiedAutoencoder(16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(10):
        loss = F.mse_loss(model(rows), rows)
        optimizer.zero_grad()
        loss.backward()
        clip_gradients(model, max_norm=0.1)
        optimizer.step()
        print(f"step {step + 1} loss {loss.item():.4f}")
    print("weights", digest(model))


if __name__ == "__main__":
    main()
