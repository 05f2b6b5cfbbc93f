"""Each rank splits the data differently: one rank trains on what another validates on.

## What it finds
Training and validation loaders over parts of one dataset, where the parts differ between ranks and samples
that one rank validates on are trained on by another. Use `--processes 2`.

## Why it matters
Gradients are averaged over ranks, so the model learns from all of them. A validation sample of one rank that
another rank trains on makes the validation score too good.

## How to fix
Split with the same seed on all ranks, as with
`random_split(data, sizes, generator=torch.Generator().manual_seed(0))`. Seed per rank only after the split.
"""

import ast
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.dist._ranks import loaders_by_rank
from truestep.rules.kit.loaders import ObservedLoader
from truestep.rules.kit.syntax import walk
from truestep.rules.kit.where import name_of
from truestep.watch.evidence.facts.loading import LoaderOrder

RULE = Meta(
    code="DIST06",
    severity="error",
    needs=(LoaderOrder,),
    fix="Split with a generator that has the same seed on all ranks.",
)
_SPLITS = ("random_split", "train_test_split", "randperm", "permutation", "shuffle")


def is_observed(evidence: Evidence) -> bool:
    """Whether several ranks have loaders over parts of a dataset."""
    ranks = loaders_by_rank(evidence)
    return len(ranks) > 1 and all(any(_part(item) is not None for item in rank.values()) for rank in ranks)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find samples that one rank validates on and another trains on."""
    ranks = loaders_by_rank(evidence)
    if len(ranks) < 2:
        return
    for train, held_out in _pairs(ranks):
        trained = [_part(rank[train]) for rank in ranks]
        scored = [_part(rank[held_out]) for rank in ranks]
        if any(part is None for part in (*trained, *scored)):
            continue
        own = [len((one or set()) & (two or set())) for one, two in zip(trained, scored, strict=True)]
        leaked = [len((trained[0] or set()) & (part or set())) for part in scored[1:]]
        if not any(own) and any(leaked):
            other = next(rank for rank, num in enumerate(leaked, start=1) if num)
            first = ranks[0][held_out]
            place = first.made or first.epochs[0]
            yield Finding.at(
                place,
                "the split differs between ranks: one rank trains on what another validates on",
                line=_line(evidence, place.file) or place.line,
                evidence=f"rank 0 trains on {leaked[other - 1]} of the {len(scored[other] or ())} samples "
                f"that rank {other} validates on",
                step=0,
            )


def _pairs(ranks: list[dict[int, ObservedLoader]]) -> Iterator[tuple[int, int]]:
    """Yield a training and an evaluation loader over one dataset, as they are on all ranks."""
    shared = sorted(set.intersection(*(set(rank) for rank in ranks)))
    for train in shared:
        for held_out in shared:
            fits = all(
                rank[train].is_training
                and rank[held_out].is_evaluation
                and rank[train].orders
                and rank[held_out].orders
                and rank[train].orders[0].base == rank[held_out].orders[0].base
                for rank in ranks
            )
            if fits:
                yield train, held_out


def _part(loader: ObservedLoader) -> set[int] | None:
    indices = loader.orders[0].indices if loader.orders else None
    return None if indices is None else set(indices)


def _line(evidence: Evidence, file: str | None) -> int | None:
    """Return the line that splits, if there is one only."""
    source = evidence.source(file)
    nodes = walk(source.tree) if source is not None else ()
    found = {
        node.lineno
        for node in nodes
        if isinstance(node, ast.Call) and (name_of(node.func) or "").rpartition(".")[2] in _SPLITS
    }
    return found.pop() if len(found) == 1 else None
