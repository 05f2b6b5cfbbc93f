"""Learn to write in the style of the King James Bible, letter by letter, and say how well in bits per letter.

The text comes with Debian: apt-get install bible-kjv
"""

import argparse
import math
import re
import subprocess
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import OneCycleLR
from torchmetrics.aggregation import MeanMetric

import truestep as ts

WINDOW = 128
Counts = np.ndarray

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=1000)
args = parser.parse_args()

run = ts.Run("runs/characters", seed=7, lanes=2)

# --- The text, cut into windows of letters. One window in twenty is kept for the end. ---

verses = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True, text=True, check=True).stdout
text = re.sub(r"^\S+ ", "", verses, flags=re.MULTILINE)  # "Ge1:1 In the beginning" -> "In the beginning"
letters = sorted(set(text))
codes = torch.tensor([letters.index(letter) for letter in text])
windows = codes[: len(codes) // (WINDOW + 1) * (WINDOW + 1)].view(-1, WINDOW + 1)
train_set, test_set = ts.split(windows, [0.95, 0.05], seed=7)


def look_up(keys: Counts, values: Counts, wanted: Counts) -> Counts:
    """Return the value of each wanted key, 0 for one that is not there."""
    at = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    return np.where(keys[at] == wanted, values[at], 0)


def ngram_bits(train: Counts, test: Counts, longest: int) -> Iterator[float]:
    """Yield bits per letter of counted 1-grams, 2-grams, ...; what was never seen falls back on shorter ones.

    This is Witten and Bell's way: the more kinds of letters have followed, the more is left for new ones.
    """
    slide = np.lib.stride_tricks.sliding_window_view
    chance = np.full(test[:, 1:].shape, 1 / len(letters))
    for length in range(1, longest + 1):
        place = len(letters) ** np.arange(length - 1, -1, -1)
        seen, times = np.unique(slide(train, length, 1) @ place, return_counts=True)
        context, first, kinds = np.unique(seen // len(letters), return_index=True, return_counts=True)
        asked = slide(test[:, max(0, 2 - length) :], length, 1) @ place
        before = asked // len(letters)
        total = look_up(context, np.add.reduceat(times, first), before)
        new = look_up(context, kinds, before)
        shorter = chance[:, max(0, length - 2) :]
        told = (look_up(seen, times, asked) + new * shorter) / np.maximum(total + new, 1)
        shorter[:] = np.where(total > 0, told, shorter)
        yield float(-np.log2(chance).mean())


# --- The network: an LSTM that reads a window and predicts each next letter. ---


class Writer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(letters), 64)
        self.lstm = nn.LSTM(64, 192, batch_first=True)
        self.head = nn.Linear(192, len(letters))

    def forward(self, x: Tensor) -> Tensor:
        hidden, _ = self.lstm(self.embed(x))
        logits: Tensor = self.head(hidden)
        return logits


model = run.place(Writer())
optimizer = AdamW(ts.decay_groups(model, weight_decay=0.01), lr=5e-3)
scheduler = OneCycleLR(optimizer, max_lr=5e-3, total_steps=args.steps)
run.track(model=model, optimizer=optimizer, scheduler=scheduler)


def loss_of(model: nn.Module, window: Tensor) -> Tensor:
    return F.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())


for step in run.steps(ts.Loader(train_set, batch_size=16), steps=args.steps):
    for window in step:
        step.backward(loss_of(model, window))
    step.update(optimizer, clip_norm=1.0, scheduler=scheduler)

# --- Judged by windows that neither the counts nor the network have seen. ---


def weighted_loss(model: nn.Module, window: Tensor) -> tuple[Tensor, int]:
    return loss_of(model, window), len(window)


test_loader = ts.Loader(test_set, batch_size=128, shuffle=False)
nats = run.evaluate(model, test_loader, metric=MeanMetric(), forward=weighted_loss)

train, test = (windows[part.indices[:]].numpy() for part in (train_set, test_set))
print(f"{train.size:,} letters to learn from, {test.size:,} to be judged by\n")
print("                      bits per letter")
print(f"every letter alike    {math.log2(len(letters)):.3f}")
for length, bits in enumerate(ngram_bits(train, test, 6), 1):
    print(f"{length}-grams               {bits:.3f}")
print(f"LSTM                  {nats / math.log(2):.3f}")

# --- A sample. ---


@torch.no_grad()
def write(start: str, num_letters: int) -> str:
    model.eval()
    draw = torch.Generator().manual_seed(7)
    codes, state = torch.tensor([[letters.index(letter) for letter in start]]), None
    written = start
    for _ in range(num_letters):
        hidden, state = model.lstm(model.embed(codes), state)
        codes = torch.multinomial((model.head(hidden[:, -1]) / 0.7).softmax(-1), 1, generator=draw)
        written += letters[codes.item()]
    return written


print(f"\n{write('And the LORD ', 300)}")
