"""Scikit-learn's digits with Lightning, as its documentation shows: nothing here knows of truestep."""

import argparse

import lightning as L
import torch
import torch.nn.functional as F
from scipy.stats import binomtest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, random_split
from torchmetrics import Accuracy

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=30)
args = parser.parse_args()

L.seed_everything(7)

digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
dataset = TensorDataset(images, torch.tensor(digits.target))
train_set, test_set = random_split(dataset, [0.8, 0.2], torch.Generator().manual_seed(7))


class Digits(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(32 * 16, 10),
        )
        self.accuracy = Accuracy(task="multiclass", num_classes=10)

    def training_step(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self.net(x), y)
        self.log("loss", loss)
        return loss

    def test_step(self, batch: tuple[Tensor, Tensor]) -> None:
        x, y = batch
        self.accuracy(self.net(x), y)
        self.log("accuracy", self.accuracy)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


model = Digits()
trainer = L.Trainer(
    max_epochs=args.epochs,
    accelerator="cpu",
    deterministic=True,
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    enable_checkpointing=False,
)
trainer.fit(model, DataLoader(train_set, batch_size=128, shuffle=True))
(result,) = trainer.test(model, DataLoader(test_set, batch_size=128), verbose=False)

x, y = images.flatten(1).numpy(), digits.target
logistic = LogisticRegression(max_iter=1000).fit(x[train_set.indices], y[train_set.indices])
low, high = binomtest(round(result["accuracy"] * len(test_set)), len(test_set)).proportion_ci(method="wilson")
print(f"logistic regression  {logistic.score(x[test_set.indices], y[test_set.indices]):.3f}")
print(f"network              {result['accuracy']:.3f} (95% interval {low:.3f} to {high:.3f})")
