"""Tell ten kinds of clothes apart: a small CNN on Fashion-MNIST, pictures moved and mirrored in the workers.

The pictures come with Debian: apt-get install dataset-fashion-mnist
"""

import argparse
import gzip
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import binomtest
from sklearn.linear_model import RidgeClassifier
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR
from torchmetrics import Accuracy

import truestep as ts

FOLDER = Path("/usr/share/datasets/fashion-mnist")
KINDS = ["T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot"]

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=2 * 235)
args = parser.parse_args()

run = ts.Run("runs/fashion", seed=7, lanes=2)


def read(name: str) -> tuple[Tensor, Tensor]:
    """Return pictures (samples, 1, 28, 28) from 0 to 1, and their kinds."""
    pixels = gzip.decompress((FOLDER / f"{name}-images-idx3-ubyte.gz").read_bytes())[16:]
    kinds = gzip.decompress((FOLDER / f"{name}-labels-idx1-ubyte.gz").read_bytes())[8:]
    pictures = torch.tensor(np.frombuffer(pixels, np.uint8)).view(-1, 1, 28, 28) / 255
    return pictures, torch.tensor(np.frombuffer(kinds, np.uint8)).long()


class Clothes:
    """Pictures with their kinds; for training each is moved by up to two pixels, half of them mirrored."""

    def __init__(self, name: str, *, is_augmented: bool) -> None:
        self.pictures, self.kinds = read(name)
        self.is_augmented = is_augmented

    def __len__(self) -> int:
        return len(self.kinds)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        picture = self.pictures[index]
        if self.is_augmented:
            down, right = torch.randint(5, (2,)).tolist()  # seeded for each lane, whichever worker has it
            picture = F.pad(picture, (2, 2, 2, 2))[:, down : down + 28, right : right + 28]
            picture = picture.flip(2) if torch.rand(()) < 0.5 else picture
        return picture, self.kinds[index]


def block(width_in: int, width: int) -> list[nn.Module]:
    conv = nn.Conv2d(width_in, width, 3, padding=1, bias=False)
    return [conv, nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]


blocks = [*block(1, 16), *block(16, 32), *block(32, 64)]
net = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(64 * 9, len(KINDS)))
model = run.place(net)
optimizer = AdamW(ts.decay_groups(model, weight_decay=0.05), lr=5e-3)
scheduler = OneCycleLR(optimizer, max_lr=5e-3, total_steps=args.steps)
run.track(model=model, optimizer=optimizer, scheduler=scheduler)

train_set, test_set = Clothes("train", is_augmented=True), Clothes("t10k", is_augmented=False)
for step in run.steps(ts.Loader(train_set, batch_size=256, workers=2), steps=args.steps):
    for pictures, kinds in step:
        step.backward(F.cross_entropy(model(pictures), kinds))
    step.update(optimizer, scheduler=scheduler)

# --- 10,000 pictures, each judged once: none is left out or counted twice to fill a batch. ---

metric = Accuracy(task="multiclass", num_classes=len(KINDS), average="none")
each = run.evaluate(model, ts.Loader(test_set, batch_size=500, shuffle=False), metric=metric)
right = round(sum(each) * 1000)  # every kind has 1,000 pictures
low, high = binomtest(right, len(test_set)).proportion_ci(method="wilson")

linear = RidgeClassifier().fit(train_set.pictures.flatten(1).numpy(), train_set.kinds.numpy())
baseline = linear.score(test_set.pictures.flatten(1).numpy(), test_set.kinds.numpy())

print(f"linear in the pixels  {baseline:.4f}")
print(f"CNN                   {right / len(test_set):.4f} (95% interval {low:.4f} to {high:.4f})\n")
for accuracy, kind in sorted(zip(each, KINDS, strict=True)):
    print(f"{kind:9} {accuracy:.3f}")
