"""All workers draw the same random numbers.

## What it finds
A random generator that has the same state in every worker of a loader, and that the samples draw from. It is
an object that the dataset holds, or a global generator that `worker_init_fn` sets to one seed for all
workers.

## Why it matters
Workers are copies of the process that starts them, including any generator in the dataset. All workers then
draw the same numbers: each crop and each noise is used once per worker, and without persistent workers once
more in every epoch. You get a fraction of the augmentation you expect. Torch seeds only the global generators
differently in each worker.
"""

import ast
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta, Source
from truestep.rules.kit.loaders import ObservedLoader, find_loaders
from truestep.rules.kit.syntax import walk
from truestep.watch.evidence.facts.loading import (
    GeneratorPlace,
    LoaderUsed,
    WorkerGenerator,
    WorkerState,
)
from truestep.watch.evidence.kinds import Place

RULE = Meta(
    code="DATA01",
    severity="error",
    is_observed=lambda evidence: any(loader.facts.num_workers > 1 for loader in find_loaders(evidence)),
    needs=(LoaderUsed,),
    fix="Create the generator in worker_init_fn from get_worker_info().seed, or use torch's global one.",
)
_GLOBAL = ("numpy.random", "random", "torch")


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find generators that workers share the state of."""
    for loader in find_loaders(evidence):
        if loader.facts.num_workers < 2 or loader.facts.is_iterable:
            continue
        reports = [item.facts for item in evidence.of(WorkerState) if item.facts.loader == loader.number]
        if len(reports) > 1:
            yield from _judge_states(evidence, loader, reports)


def _judge_states(
    evidence: Evidence, loader: ObservedLoader, reports: list[WorkerState]
) -> Iterator[Finding]:
    """The states were seen in the workers themselves."""
    known: dict[GeneratorPlace, list[WorkerGenerator]] = {}
    for report in reports:
        for item in report.generators:
            known.setdefault(item.place, []).append(item)
    for place, items in known.items():
        is_same = len({item.before.digest for item in items}) == 1 and len(items) > 1
        pairs = [(item.before, item.after) for item in items if item.after is not None]
        is_drawn = sum(before.digest != after.digest for before, after in pairs) > 1
        # If it is seeded for each sample, as from its index, its stream changes and draws do not repeat.
        is_same_stream = len({after.digest for _, after in pairs}) == 1 or (
            len(pairs) == len(items) and all(before.stream == after.stream for before, after in pairs)
        )
        if is_same and is_drawn and is_same_stream:
            text = f"{len(items)} workers started with {_name(place)} in the same state and drew from it"
            yield _finding(evidence, loader, place, text)


def _named(node: ast.AST) -> str | None:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def _name(place: GeneratorPlace) -> str:
    return f"`{place.owner}.{place.name}`" if place.owner else f"`{place.name}`"


def _finding(evidence: Evidence, loader: ObservedLoader, place: GeneratorPlace, text: str) -> Finding:
    owner, name, file = place
    what = "the global generator" if owner is None and name in _GLOBAL else "a generator in the dataset"
    message = f"all workers draw the same numbers from {what}"
    line = _line_of(evidence.source(file), owner, name) if file else None
    at = Place(file, line, "") if file and line else loader.made or loader.epochs[0]
    return Finding.at(at, message, evidence=text, step=0)


def _line_of(source: Source | None, owner: str | None, name: str | None) -> int | None:
    """Return the line that makes the generator; if there is none, one that names it."""
    if source is None or name is None:
        return None
    scopes: list[ast.AST] = [
        node
        for node in walk(source.tree)
        if isinstance(node, ast.ClassDef) and owner is not None and node.name == owner.rpartition(".")[2]
    ] or [source.tree]
    nodes = [node for scope in scopes for node in walk(scope) if _named(node) == name]
    stores = [node.lineno for node in nodes if isinstance(node.ctx, ast.Store)]  # type: ignore[attr-defined]
    return min(stores or [node.lineno for node in nodes], default=None)  # type: ignore[attr-defined]
