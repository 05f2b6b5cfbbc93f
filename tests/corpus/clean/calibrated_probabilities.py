"""Logits while training, softmax only for the probabilities shown in evaluation; with a calibration table."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class SoftmaxWhenAsked(nn.Module):
    """Returns logits in train mode and probabilities in eval mode."""

    def __init__(self, inputs, classes):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs, 48), nn.Tanh(), nn.Linear(48, classes))

    def forward(self, x):
        logits = self.layers(x)
        return logits if self.training else logits.softmax(dim=-1)


def gaussians(count, centres, generator):
    label = torch.randint(0, len(centres), (count,), generator=generator)
    return centres[label] + 1.3 * torch.randn(count, centres.size(1), generator=generator), label


@torch.no_grad()
def predict(model, loader):
    model.eval()
    outputs = [(model(x), y) for x, y in loader]
    return torch.cat([p for p, _ in outputs]), torch.cat([y for _, y in outputs])


def negative_log_likelihood(probabilities, labels):
    return F.nll_loss(probabilities.clamp(min=1e-9).log(), labels).item()


def calibration(probabilities, labels, bins=5):
    confidence, choice = probabilities.max(dim=1)
    edges = torch.linspace(0.25, 1.0, bins + 1)
    for low, high in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        inside = (confidence > low) & (confidence <= high)
        if inside.any():
            hit = (choice == labels)[inside].float().mean().item()
            stated = confidence[inside].mean().item()
            print(
                f"  {low:.2f}-{high:.2f}: {inside.sum().item():4d} samples, said {stated:.2f}, was {hit:.2f}"
            )


def main():
    torch.manual_seed(107)
    generator = torch.Generator().manual_seed(107)
    centres = torch.randn(4, 6, generator=generator)
    train_loader = DataLoader(
        TensorDataset(*gaussians(1000, centres, generator)), batch_size=50, shuffle=True, generator=generator
    )
    test_loader = DataLoader(TensorDataset(*gaussians(600, centres, generator)), batch_size=200)
    model = SoftmaxWhenAsked(6, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(5):
        model.train()
        for x, y in train_loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        probabilities, labels = predict(model, test_loader)
        accuracy = (probabilities.argmax(1) == labels).float().mean().item()
        print(
            f"epoch {epoch}: nll {negative_log_likelihood(probabilities, labels):.3f} accuracy {accuracy:.3f}"
        )
    calibration(probabilities, labels)


if __name__ == "__main__":
    main()
