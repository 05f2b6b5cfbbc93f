"""Batch means are averaged although batches differ in size, or a sum is divided by the wrong count.

## What it finds
An evaluation that sums the means of batches and divides by their number while the batches differ in size, so
that samples of a small batch count more. Also any loop that divides a sum of batch means by the number of
samples. Running means printed during training are not reported.

## Why it matters
In a last batch of 6 among batches of 64, each sample has ten times the weight of the others. The reported
loss changes with the batch size, and you choose models by it. If the sum is divided by the number of samples,
the result is too small by a factor of the batch size.
"""

from collections.abc import Iterator
from typing import Any

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.loss._averages import find_averages
from truestep.watch import Moment
from truestep.watch.evidence.facts.loading import BatchFetched
from truestep.watch.evidence.facts.passes import ForwardPass

RULE = Meta(
    code="LOSS09",
    severity="warning",
    needs=(ForwardPass,),
    fix="Weight each batch's mean by its size, and divide by the number of samples.",
)
_MAX_EQUAL = 0.75
_Place = tuple[str, int]
_Loops = dict[_Place, tuple[list[int], bool, Moment[Any]]]


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find averages over batches that are not averages over samples."""
    fetched, passed = _loops(evidence), _passes(evidence)
    for (file, line), (sizes, trains, moment) in (*fetched.items(), *passed.items()):
        source = evidence.source(file)
        if source is None or len(sizes) < 2:
            continue
        for average in find_averages(source, line, is_inside=(file, line) not in fetched):
            largest, smallest = max(sizes), min(sizes)
            if average.by == "samples" and largest > 1:
                message = "a sum of batch means is divided by the number of samples"
                seen = f"batches of {largest}, so the result is about {largest} times too small"
            elif average.by == "batches" and not trains and smallest <= _MAX_EQUAL * largest:
                message = "the mean of batch means is reported, and the batches differ in size"
                seen = (
                    f"batches of {largest} and {smallest}, so a sample of the small one counts "
                    f"{largest / smallest:.3g} times as much"
                )
            else:
                continue
            yield Finding.at(
                moment, message, line=average.line, evidence=f"{seen}; divided at line {average.divided_at}"
            )


def _passes(evidence: Evidence) -> _Loops:
    """Return the same for evaluation without loaders, by the lines of forward passes."""
    found: _Loops = {}
    trained: set[_Place] = set()
    for moment in evidence.of(ForwardPass):
        size = _size(moment)
        if moment.file is not None and moment.line is not None and size is not None:
            place = (moment.file, moment.line)
            found.setdefault(place, ([], False, moment))[0].append(size)
            if moment.facts.is_training and moment.facts.is_grad_enabled:
                trained.add(place)
    return {place: item for place, item in found.items() if place not in trained and _has_rest(item[0])}


def _has_rest(sizes: list[int]) -> bool:
    largest = max(sizes)
    return sizes[:2] == [largest, largest] and len(set(sizes)) == 2 and sizes.count(largest) > len(sizes) / 2


def _loops(evidence: Evidence) -> _Loops:
    """Return the lines that fetch batches: their sizes, and whether models are trained on them."""
    found: _Loops = {}
    last: _Place | None = None
    for moment in evidence.of(BatchFetched, ForwardPass):
        if isinstance(moment.facts, BatchFetched):
            size = _size(moment)
            if moment.file is None or moment.line is None or size is None:
                last = None
                continue
            last = (moment.file, moment.line)
            found.setdefault(last, ([], False, moment))[0].append(size)
        elif last is not None and moment.facts.is_training and moment.facts.is_grad_enabled:
            sizes, _, first = found[last]
            found[last] = (sizes, True, first)
    return found


def _size(moment: Moment[Any]) -> int | None:
    """Return the length of the first axis of a batch's first tensor."""
    outline = moment.facts.tensors
    while isinstance(outline, list) and outline:
        if all(isinstance(item, int) for item in outline):
            return int(outline[0])
        outline = outline[0]
    return None
