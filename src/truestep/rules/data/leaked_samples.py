"""Validation or test samples are also trained on.

## What it finds
Samples that a training loader and an evaluation loader for the same model both return: bit-for-bit equal, or
the same indices of the same dataset. Without loaders: rows of data named validation or test that the model
was trained on before.

## Why it matters
A model is good on what it was trained on. The score on such samples does not predict the score on new ones.
If you choose the best epoch or setting by it, you choose the one that memorizes best.

## How to fix
Split first, then oversample and augment only the training part. Give the evaluation loader the held-out
part.
"""

from collections.abc import Iterator
from itertools import chain

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.data._held_out import cut_at, evaluated_at
from truestep.rules.kit.loaders import ObservedLoader, find_loaders
from truestep.watch.evidence.facts.loading import RowsReused
from truestep.watch.evidence.facts.passes import BackwardPass

RULE = Meta(
    code="DATA05",
    severity="error",
    needs=(BackwardPass,),
    fix="Give the evaluation loader held-out samples only, and split before oversampling.",
)
_LEAST_SHARED, _LEAST_SHARE = 3, 0.04
_LEAST_DISTINCT, _LEAST_WIDTH = 6, 8
_MOST_OWN, _LEAST_SHARE_DISCRETE = 0.02, 0.2
_BY_INDEX = "same indices of one dataset"


def is_observed(evidence: Evidence) -> bool:
    """Whether there is a loader of each kind."""
    loaders = find_loaders(evidence)
    is_any = any(item.is_training for item in loaders) and any(item.is_evaluation for item in loaders)
    return is_any or evidence.has(RowsReused)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find evaluation loaders that share samples with a training loader."""
    yield from _check_rows(evidence)
    loaders = find_loaders(evidence)
    training = [loader for loader in loaders if loader.is_training]
    scored = [loader for loader in loaders if loader.is_evaluation]
    shared = {loader.number: _shared(loader, training) for loader in scored}
    is_any_disjoint = any(found is None for found in shared.values())
    met: set[int] = set()
    for loader in scored:
        found = shared[loader.number]
        if found is None or _is_on_purpose(evidence, loader, found[0], is_any_disjoint):
            continue
        if _num_tensors(loader) == 1 < _num_tensors(found[0]):
            continue  # without labels nothing is scored: what is predicted may be trained on later
        other, num, total, how = found
        if loader.facts.dataset in met:
            continue  # a framework makes a loader for each evaluation
        met.add(loader.facts.dataset)
        line = other.made.line if other.made else other.epochs[0].line
        file, blamed = _blamed(loader, other, how)
        yield Finding.at(
            loader.epochs[0],
            "this evaluation uses samples that the model is trained on",
            file=file,
            line=blamed,
            evidence=f"{num} of {total} samples of the loader at line {loader.epochs[0].line} ({how}) also "
            f"come from the training loader at line {line}",
        )


def _num_tensors(loader: ObservedLoader) -> int:
    """Return how many tensors a batch has; 0 if that is not known."""
    return max((len(batch.facts.tensors) for batch in loader.batches[:1]), default=0)


def _check_rows(evidence: Evidence) -> Iterator[Finding]:
    """Find evaluations without a loader, on rows that the model was trained on before."""
    met: set[tuple[str, int]] = set()
    for moment in evidence.of(RowsReused):
        facts = moment.facts
        for file, line in facts.lines:
            source = evidence.source(file)
            name = evaluated_at(source, line) if source is not None else None
            if source is None or name is None or (file, line) in met:
                continue
            met.add((file, line))
            yield Finding.at(
                moment,
                "this evaluation uses samples that the model is trained on",
                file=file,
                line=cut_at(source, name, before=line) or line,
                evidence=f"{facts.num_shared} of {facts.num_scored} rows evaluated at line {line} "
                f"are bit-for-bit equal to rows among the {facts.num_trained} trained on before",
            )
            break


def _blamed(loader: ObservedLoader, other: ObservedLoader, how: str) -> tuple[str | None, int | None]:
    """Return the line of the loader that takes too much, if it is known, or that of the evaluation."""
    is_all = bool(other.orders) and other.orders[0].indices is None
    wrong, right = (other, loader) if is_all else (loader, other)
    made = wrong.made if wrong.facts.is_direct and how == _BY_INDEX else None
    is_shared = made and right.made and (made.file, made.line) == (right.made.file, right.made.line)
    place = loader.epochs[0] if made is None or is_shared else made
    return place.file, place.line


def _is_on_purpose(
    evidence: Evidence, loader: ObservedLoader, other: ObservedLoader, is_any_disjoint: bool
) -> bool:
    """Whether it is meant to score the training data, as for the training accuracy or a memory bank."""
    says = loader.name_says(evidence)
    if says is not None:
        return says == "training"
    return is_any_disjoint or loader.facts.dataset == other.facts.dataset


def _shared(
    loader: ObservedLoader, training: list[ObservedLoader]
) -> tuple[ObservedLoader, int, int, str] | None:
    """Return the training loader with the most samples of this one, how many, of how many, how known."""
    best: tuple[ObservedLoader, int, int, str] | None = None
    for other in training:
        if other.number == loader.number or not _are_together(loader, other):
            continue
        for found in (_shared_indices(loader, other), _shared_digests(loader, other)):
            if found is not None and (best is None or found[0] > best[1]):
                best = (other, *found)
    return best


def _are_together(loader: ObservedLoader, other: ObservedLoader) -> bool:
    """Whether both serve one model: folds of a cross-validation have a model and loaders each."""
    if not other.trained or not any(step >= other.trained[0] for step in loader.scored):
        return False
    if loader.models & other.models:
        return True
    is_between = any(other.trained[0] < step < other.trained[-1] for step in loader.scored)
    return is_between and len(loader.epochs) > 1


def _shared_indices(loader: ObservedLoader, other: ObservedLoader) -> tuple[int, int, str] | None:
    if not loader.orders or not other.orders or loader.orders[0].base != other.orders[0].base:
        return None
    mine, theirs = loader.orders[0].indices, other.orders[0].indices
    if mine is None or theirs is None:  # all samples of the dataset, of unknown number
        known = mine or theirs
        return None if known is None else (len(known), len(known), _BY_INDEX)
    num = len(set(mine) & set(theirs))
    return (num, len(set(mine)), _BY_INDEX) if num >= _LEAST_SHARED else None


def _shared_digests(loader: ObservedLoader, other: ObservedLoader) -> tuple[int, int, str] | None:
    mine, theirs = _digests(loader), _digests(other)
    own = set(mine)
    num = len(own & set(theirs))
    if num < _LEAST_SHARED or num < _LEAST_SHARE * len(own):
        return None
    pages = [loader.samples[0], other.samples[0]]
    if min(page.num_distinct for page in pages) >= _LEAST_DISTINCT:
        return num, len(own), "bit-for-bit equal"
    is_wide = min(page.width for page in pages) >= _LEAST_WIDTH
    is_unlike = _share_repeated(loader) <= _MOST_OWN and _share_repeated(other) <= _MOST_OWN
    is_much = num >= _LEAST_SHARE_DISCRETE * len(own)
    return (num, len(own), "bit-for-bit equal") if is_wide and is_unlike and is_much else None


def _share_repeated(loader: ObservedLoader) -> float:
    """Return which part of an epoch's samples equals others of it: so often two are equal by chance."""
    first = list(chain(*loader.samples[0].digests))
    return 1 - len(set(first)) / len(first) if first else 1.0


def _digests(loader: ObservedLoader) -> list[int]:
    return [digest for page in loader.samples for batch in page.digests for digest in batch]
