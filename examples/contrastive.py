"""Learn what digits look like without labels (SimCLR), then read them with a few labels of each."""

import argparse

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR

import truestep as ts

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=300)
args = parser.parse_args()

# One lane: each picture is told from all others of its batch, so the batch cannot be cut into parts.
run = ts.Run("runs/contrastive", seed=7, lanes=1)

digits = load_digits()
pictures = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
train_rows, test_rows = (part.indices[:] for part in ts.split(pictures, [0.7, 0.3], seed=7))

# --- Two views of a picture: moved, stretched, blotted out in one place, other in brightness. ---


def view(x: Tensor) -> Tensor:
    num = len(x)
    turn = (torch.rand(num) - 0.5) * 0.5
    size = torch.exp((torch.rand(num, 2) - 0.5) * 0.4)
    move = (torch.rand(num, 2) - 0.5) * 0.5
    rows = [
        torch.stack([turn.cos() * size[:, 0], -turn.sin(), move[:, 0]], 1),
        torch.stack([turn.sin(), turn.cos() * size[:, 1], move[:, 1]], 1),
    ]
    where = F.affine_grid(torch.stack(rows, 1), list(x.shape), align_corners=False)
    x = F.grid_sample(x, where, align_corners=False)
    corner = torch.randint(0, 7, (num, 2, 1))
    inside = (torch.arange(8) >= corner) & (torch.arange(8) < corner + 3)
    blot = (inside[:, 0, :, None] & inside[:, 1, None, :]).unsqueeze(1)
    return x.masked_fill(blot, 0.0) * (0.6 + 0.8 * torch.rand(num, 1, 1, 1))


# --- The encoder; what it learns is read before the projection, as the paper does. ---

encoder = nn.Sequential(
    nn.Conv2d(1, 32, 3, padding=1, bias=False),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.Conv2d(32, 64, 3, padding=1, stride=2, bias=False),
    nn.BatchNorm2d(64),
    nn.ReLU(),
    nn.Conv2d(64, 64, 3, padding=1, bias=False),
    nn.BatchNorm2d(64),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(64 * 16, 128),
)
projection = nn.Sequential(nn.ReLU(), nn.Linear(128, 64))
model = run.place(nn.Sequential(encoder, projection))
optimizer = AdamW(ts.decay_groups(model, weight_decay=0.05), lr=3e-3)
scheduler = OneCycleLR(optimizer, max_lr=3e-3, total_steps=args.steps)
run.track(model=model, optimizer=optimizer, scheduler=scheduler)
loader = ts.Loader(pictures[train_rows], batch_size=256, drop_last=True)


def contrast(codes: Tensor, temperature: float = 0.2) -> Tensor:
    """Return how badly each view finds the other view of its picture among all views of the batch."""
    codes = F.normalize(codes)
    alike = (codes @ codes.T / temperature).masked_fill(torch.eye(len(codes), dtype=torch.bool), -1e9)
    partner = torch.arange(len(codes)).roll(len(codes) // 2)
    return F.cross_entropy(alike, partner)


for step in run.steps(loader, steps=args.steps):
    for x in step:
        step.backward(contrast(model(torch.cat([view(x), view(x)]))))
    step.update(optimizer, scheduler=scheduler)

# --- Read with few labels: the same 20 draws of labels for pixels and for features. ---

encoder.eval()
with torch.no_grad():
    features = encoder(pictures)
told = torch.tensor(digits.target)


def probe(x: Tensor, num_labels: int) -> Tensor:
    """Return the accuracies on held-out pictures for 20 choices of so many labels of each digit."""
    found = []
    for draw in range(20):
        generator = torch.Generator().manual_seed(draw)
        rows = torch.tensor(train_rows)[torch.randperm(len(train_rows), generator=generator)]
        labelled = torch.cat([rows[told[rows] == digit][:num_labels] for digit in range(10)])
        mean, spread = x[train_rows].mean(0), x[train_rows].std(0) + 1e-6
        scaled = (x - mean) / spread
        reader = LogisticRegression(max_iter=500).fit(scaled[labelled].numpy(), told[labelled].numpy())
        found.append(reader.score(scaled[test_rows].numpy(), told[test_rows].numpy()))
    return torch.tensor(found)


print(f"{len(train_rows)} pictures without labels, {len(test_rows)} to be judged by\n")
print("labels of each digit   pixels   features   gain (95% interval over 20 draws)")
for num_labels in (1, 3, 10):
    plain, learned = probe(pictures.flatten(1), num_labels), probe(features, num_labels)
    gain = learned - plain
    error = 2.09 * gain.std() / 20**0.5  # 2.09: Student's t for 19 degrees of freedom
    interval = f"{gain.mean():+.3f} ({gain.mean() - error:+.3f} to {gain.mean() + error:+.3f})"
    print(f"{num_labels:20}   {plain.mean():.3f}    {learned.mean():.3f}      {interval}")
