"""What padding wastes: sequences packed into rows, against batches padded to their longest.

The text is the docstrings of the installed torch, in words, cut into pieces of at most 512 for every way. A
tiny causal transformer (two layers, one thread) trains on about as many real tokens a step in every way, in
turns; what is given is processor time for a real token, loading with it. Padded batches need no mask besides
the causal one and get the fastest attention; rows need the mask that keeps sequences apart.

Claims: at most 1 % of packed tokens are padding; all batches have one shape; a real token costs no more time
than in random batches; the rows of 10^6 sequences are composed in at most 3 s of processor time.
Takes about two minutes. Prints tables, or with --json one JSON object. Exit code: 0 the claims hold, 1 one
fails, 2 one cannot be told.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from measure import Claim, Row, Sheet, estimate_with_error, fact, interleave, report
from torch import nn
from torch.utils.data import default_collate

import truestep as ts
from truestep.run.data.packed import Pieces, compose

LENGTH = 512
NUM_ROWS = 4
VOCABULARY = 2048
WIDTH, NUM_HEADS = 64, 4
STEPS_PER_TURN = 2
BATCHES_PER_BUCKET = 50
MAX_WASTE_PERCENT = 1.0
MAX_COMPOSE_S = 3.0
MANY = 10**6

FOLDERS = ("nn", "optim", "utils", "distributed", "distributions", "autograd")
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

Batches = list[list[int]]


class Lane(NamedTuple):
    """One step's data; `segments` is None where sequences have a line each."""

    tokens: torch.Tensor
    is_real: torch.Tensor
    positions: torch.Tensor
    segments: torch.Tensor | None


class Turn(NamedTuple):
    """Processor seconds of some steps, the part of it spent on loading, and their real tokens."""

    seconds: float
    loading_s: float
    num_real: int


def read_sequences() -> list[list[str]]:
    """Return the words of every docstring of torch's main folders."""
    root = Path(torch.__file__).parent
    found = []
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                text = ast.get_docstring(node) if isinstance(node, DOCUMENTED) else None
                if text:
                    found.append(re.findall(r"\w+|[^\w\s]", text))
    return [words for words in found if words]


def in_numbers(sequences: list[list[str]]) -> list[torch.Tensor]:
    """Number the commonest words; 0 is padding, 1 any other word."""
    counted = Counter(word for words in sequences for word in words).most_common(VOCABULARY - 2)
    numbers = {word: number for number, (word, _) in enumerate(counted, start=2)}
    return [torch.tensor([numbers.get(word, 1) for word in words]) for words in sequences]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.mixed = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(2))
        self.wide = nn.ModuleList(
            nn.Sequential(
                nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
            )
            for _ in range(2)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, lane: Lane) -> torch.Tensor:
        x = self.words(lane.tokens) + self.places(lane.positions)
        segments, mask = lane.segments, None
        if segments is not None:
            mask = (segments[:, None, :, None] == segments[:, None, None, :]).tril()
        for mixed, wide in zip(self.mixed, self.wide, strict=True):
            parts = mixed(x).unflatten(2, (3, NUM_HEADS, -1)).permute(2, 0, 3, 1, 4)
            seen = F.scaled_dot_product_attention(*parts, attn_mask=mask, is_causal=mask is None)
            x = x + seen.transpose(1, 2).flatten(2)
            x = x + wide(x)
        return self.head(x)


def loss_of(net: Net, lane: Lane) -> torch.Tensor:
    """Return the mean loss of the next words inside sequences."""
    is_inside = lane.is_real[:, 1:].clone()
    if lane.segments is not None:
        is_inside &= lane.segments[:, 1:] == lane.segments[:, :-1]
    targets = lane.tokens[:, 1:].masked_fill(~is_inside, -100)
    return F.cross_entropy(net(lane)[:, :-1].flatten(0, 1), targets.flatten())


def padded(sequences: Sequence[torch.Tensor], places: list[int]) -> Lane:
    """Return a batch with a line for each sequence, as long as the longest."""
    tokens, _, mask = ts.pad_collate()([sequences[place] for place in places])
    return Lane(tokens, mask, torch.arange(tokens.shape[1])[None], None)


def in_rows(packed: ts.Packed, places: list[int]) -> Lane:
    """Return a batch of packed rows."""
    rows = default_collate(packed.__getitems__(places))
    return Lane(rows["tokens"], rows["segments"] > 0, rows["positions"], rows["segments"])


def batches_of(places: np.ndarray, size: int) -> Batches:
    """Cut places into whole batches; the rest is left out, as drop_last does."""
    return [places[start : start + size].tolist() for start in range(0, len(places) - size + 1, size)]


def bucketed(
    lengths: np.ndarray, size: int, random: np.random.Generator, *, num_batches: int | None
) -> Batches:
    """Return batches of similar lengths: shuffled, sorted in buckets of some batches (None: all), cut."""
    order = random.permutation(len(lengths))
    bucket = len(order) if num_batches is None else num_batches * size
    parts = [order[start : start + bucket] for start in range(0, len(order), bucket)]
    order = np.concatenate([part[np.argsort(lengths[part], kind="stable")] for part in parts])
    batches = batches_of(order, size)
    return [batches[place] for place in random.permutation(len(batches))]


class Way(NamedTuple):
    """A way to make batches: an epoch of them, and how one is loaded."""

    batches: Batches
    load: Callable[[list[int]], Lane]

    def measure(self) -> tuple[float, int]:
        """Return the share of padding in an epoch, in percent, and how many shapes its batches have."""
        lanes = [self.load(places) for places in self.batches]
        num_all = sum(lane.tokens.numel() for lane in lanes)
        num_real = sum(int(lane.is_real.sum()) for lane in lanes)
        return 100 * (1 - num_real / num_all), len({lane.tokens.shape for lane in lanes})


def make_ways(sequences: list[torch.Tensor]) -> dict[str, Way]:
    """Cut all sequences alike, then arrange them in each way."""
    pieces = [piece for sequence in sequences for piece in sequence.split(LENGTH)]
    lengths = np.array([len(piece) for piece in pieces])
    size = round(NUM_ROWS * LENGTH / lengths.mean())
    random = np.random.default_rng(1)
    packed = ts.Packed(pieces, length=LENGTH, seed=1, lengths=lengths)
    load = partial(padded, pieces)
    return {
        "padded, random batches": Way(batches_of(random.permutation(len(pieces)), size), load),
        f"padded, sorted in {BATCHES_PER_BUCKET}s of batches": Way(
            bucketed(lengths, size, random, num_batches=BATCHES_PER_BUCKET), load
        ),
        "padded, all sorted": Way(bucketed(lengths, size, random, num_batches=None), load),
        "packed": Way(batches_of(random.permutation(len(packed)), NUM_ROWS), partial(in_rows, packed)),
    }


def trainer(way: Way) -> Callable[[], Turn]:
    """Return a function that trains some steps on the way's next batches."""
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    batches: Iterator[list[int]] = cycle(way.batches)

    def turn() -> Turn:
        begun, loading_s, num_real = time.process_time(), 0.0, 0
        for _ in range(STEPS_PER_TURN):
            asked = time.process_time()
            lane = way.load(next(batches))
            loading_s += time.process_time() - asked
            optimizer.zero_grad()
            loss_of(net, lane).backward()
            optimizer.step()
            num_real += int(lane.is_real.sum())
        return Turn(time.process_time() - begun, loading_s, num_real)

    turn()  # the first step allocates
    return turn


def us_per_token(turns: Sequence[Turn]) -> float:
    """Return microseconds of processor time for a real token."""
    return 1e6 * sum(turn.seconds for turn in turns) / sum(turn.num_real for turn in turns)


def compare(ways: dict[str, Way], seconds: float) -> tuple[list[Row], list[Claim]]:
    """Measure waste and shapes of each way, and training on it in turns."""
    turns = interleave({name: trainer(way) for name, way in ways.items()}, seconds=seconds)
    rounds = list(zip(*turns.values(), strict=True))
    rows: list[Row] = []
    for place, (name, way) in enumerate(ways.items()):
        waste, num_shapes = way.measure()
        ratio, error = estimate_with_error(
            rounds,
            lambda some, place=place: (
                us_per_token([each[place] for each in some]) / us_per_token([each[0] for each in some])
            ),
        )
        loading_s = sum(turn.loading_s for turn in turns[name])
        rows.append(
            {
                "batches": name,
                "padding, %": waste,
                "shapes": f"{num_shapes}",
                "us per real token": us_per_token(turns[name]),
                "to random batches": ratio,
                "+-": error,
                "of it loading, %": 100 * loading_s / sum(turn.seconds for turn in turns[name]),
            }
        )
    packed = rows[-1]
    return rows, [
        Claim(text="padding in packed rows", found=packed["padding, %"], limit=MAX_WASTE_PERCENT, unit="%"),
        fact("all packed batches have one shape", packed["shapes"] == "1"),
        Claim(
            text="time of a real token, packed to random batches",
            found=packed["to random batches"],
            limit=1.0,
            error=packed["+-"],
        ),
    ]


def measure_composing(lengths: np.ndarray) -> tuple[list[Row], list[Claim]]:
    """Compose a million sequences with the corpus's lengths, for rows of several lengths."""
    many = np.random.default_rng(2).choice(lengths, MANY)
    rows: list[Row] = []
    for longest in (512, 2048, 8192):
        array = np.minimum(many, longest).astype(np.int32)
        pieces = Pieces(lengths=array, longest=longest, first=None)
        begun = time.process_time()
        members, bounds = compose(pieces, seed=1)
        seconds = time.process_time() - begun
        rows.append(
            {
                "row length": f"{longest}",
                "seconds": seconds,
                "rows": f"{len(bounds) - 1:,}",
                "padding, %": 100 * (1 - int(array.sum()) / (longest * (len(bounds) - 1))),
                "bytes per sequence": (members.nbytes + bounds.nbytes + array.nbytes) / MANY,
            }
        )
    worst = max(row["seconds"] for row in rows)
    return rows, [Claim(text="composing 10^6 sequences", found=worst, limit=MAX_COMPOSE_S, unit="s")]


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    parser.add_argument("--seconds", type=float, default=90.0, help="how long to train in turns")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sequences = in_numbers(read_sequences())
    lengths = np.array([len(sequence) for sequence in sequences])
    composing, composed = measure_composing(lengths)
    ways, compared = compare(make_ways(sequences), options.seconds)
    quartiles = ", ".join(f"{value:.0f}" for value in np.percentile(lengths, [25, 50, 75]))
    size = f"{len(lengths):,} docstrings, {lengths.sum():,} words"
    note = f"{size}; quartiles of their lengths {quartiles}, longest {lengths.max()}"
    return report(
        "packing",
        sheets=[
            Sheet(title="Batches", rows=ways, note=note, num_digits=2),
            Sheet(title="Composing 10^6 sequences", rows=composing, num_digits=2),
        ],
        claims=[*compared, *composed],
        as_json=options.json,
    )


if __name__ == "__main__":
    sys.exit(main())
