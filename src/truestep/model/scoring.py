"""Scoring: a classifier asked on batches, sample by sample, and what two of them differ by.

Owns how batches are read and the interval of a paired difference. What is compared is up to others.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import torch
from torch import Tensor, nn

from truestep import rng
from truestep.errors import UsageError

_STEPS = 80
"""Halvings of an interval of length 2: far below the spacing of floats."""


@dataclass(frozen=True, kw_only=True)
class Paired:
    """How often two classifiers are right on the same samples, and an interval for the difference.

    The interval is Tango's score interval for paired proportions: unlike the usual one it keeps its
    confidence with few samples, and does not shrink to a point where the two agree on all. It draws nothing
    at random.
    """

    num_samples: int
    num_right: tuple[int, int]
    fixed: int
    """Wrong by the first and right by the second."""
    broken: int
    """Right by the first and wrong by the second."""
    confidence: float

    @property
    def accuracies(self) -> tuple[float, float]:
        """The fraction that each has right."""
        return self.num_right[0] / self.num_samples, self.num_right[1] / self.num_samples

    @property
    def gain(self) -> float:
        """What the second has right more often than the first, as a fraction of all samples."""
        return (self.fixed - self.broken) / self.num_samples

    @property
    def interval(self) -> tuple[float, float]:
        """The lower and upper end for the gain."""
        z = NormalDist().inv_cdf(0.5 + self.confidence / 2)
        return self._end(z), self._end(-z)

    @property
    def p_value(self) -> float:
        """The probability of so uneven a split of what changed, if both are as good (McNemar, exact)."""
        changed, less = self.fixed + self.broken, min(self.fixed, self.broken)
        all_ways = math.lgamma(changed + 1) - changed * math.log(2)
        logs = [all_ways - math.lgamma(k + 1) - math.lgamma(changed - k + 1) for k in range(less + 1)]
        return min(1.0, 2 * math.fsum(map(math.exp, logs)))

    def _end(self, z: float) -> float:
        # The statistic falls as the difference grows, so the place where it is z is found by halving.
        low, high = -1.0, 1.0
        for _ in range(_STEPS):
            middle = (low + high) / 2
            if self._statistic(middle) > z:
                low = middle
            else:
                high = middle
        return (low + high) / 2

    def _statistic(self, difference: float) -> float:
        # M. Tango, Statistics in Medicine 17 (1998) 891-908.
        n, up, down = self.num_samples, self.fixed, self.broken
        a = 2 * n
        b = -up - down + (2 * n - up + down) * difference
        c = -down * difference * (1 - difference)
        least = (math.sqrt(max(b * b - 4 * a * c, 0.0)) - b) / (2 * a)
        variance = n * (2 * least + difference * (1 - difference))
        above = up - down - n * difference
        if variance <= 0:
            return math.copysign(math.inf, above) if above else 0.0
        return above / math.sqrt(variance)


def points(fraction: float) -> str:
    """Return a difference of fractions in percentage points, with its sign.

    >>> points(0.0125)
    '+1.25'
    """
    return f"{100 * fraction:+.2f}"


def compare_hits(first: list[Tensor], second: list[Tensor], *, confidence: float) -> Paired:
    """Return how often each was right, from tensors of true and false for the same samples."""
    if not 0 < confidence < 1:
        raise UsageError(f"confidence is {confidence}, and must be between 0 and 1. Pass 0.95, for example.")
    if not first:
        raise UsageError("there were no batches. Pass a loader, or a list of (inputs, targets).")
    one, other = torch.cat(first), torch.cat(second)
    return Paired(
        num_samples=len(one),
        num_right=(int(one.sum()), int(other.sum())),
        fixed=int((~one & other).sum()),
        broken=int((one & ~other).sum()),
        confidence=confidence,
    )


@contextmanager
def evaluating(*models: nn.Module) -> Iterator[None]:
    """Put models into eval mode, without gradients; afterwards modes and generators are what they were."""
    modes = [(module, module.training) for model in models for module in model.modules()]
    with rng.kept_generators(), torch.no_grad():
        try:
            for module, _ in modes:
                module.training = False
            yield
        finally:
            for module, mode in modes:
                module.training = mode


def parts_of(batch: Any) -> tuple[Any, Tensor]:
    """Return inputs and targets of a batch: of (inputs, targets), or of a mapping with "labels"."""
    if isinstance(batch, Mapping) and isinstance(batch.get("labels"), Tensor):
        return {name: value for name, value in batch.items() if name != "labels"}, batch["labels"]
    if isinstance(batch, tuple | list) and len(batch) == 2 and isinstance(batch[1], Tensor):
        return batch[0], batch[1]
    raise UsageError(
        f"a batch must be (inputs, targets), or a mapping with 'labels', got {type(batch).__name__}. "
        "Give batches of that form, for example through a generator."
    )


def call(model: nn.Module, inputs: Any) -> Tensor:
    """Return `model(inputs)`, or `model(**inputs)` for a mapping: a tensor, or what is under `logits`."""
    output = model(**inputs) if isinstance(inputs, Mapping) else model(inputs)
    scores = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(scores, Tensor):
        raise UsageError(
            f"the model returned {type(output).__name__}, neither a tensor nor an object with `logits`. "
            "Wrap it in a module that returns its scores."
        )
    return scores


def hits(scores: Tensor, targets: Tensor) -> Tensor:
    """Return for each sample whether the largest score is that of the target."""
    if targets.dim() != 1 or scores.dim() != 2 or len(scores) != len(targets):
        raise UsageError(
            f"accuracy needs scores of shape [samples, classes] and targets of shape [samples], got "
            f"{list(scores.shape)} and {list(targets.shape)}. Samples of several targets are not independent."
        )
    return scores.argmax(1) == targets
