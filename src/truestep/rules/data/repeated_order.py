"""Every epoch has the same order: nothing is shuffled, or the sampler does not know the epoch.

## What it finds
A training loader with a shuffling `DistributedSampler` whose `epoch` is the same in every epoch. Also (a
warning) a training loader that goes through its data in their stored order in each of several epochs, or in
the first one if a loop around it goes through them again. Recurrent models are left out unless each sample
has one class: what follows in time may belong together. So are datasets that draw which sample they return.

## Why it matters
`DistributedSampler` shuffles by its seed and its epoch number, so that all processes agree. If you never call
`set_epoch`, every epoch has the order of the first: the same batches in the same sequence, for the whole
training. The noise of a step then has the same sign in each epoch, and BatchNorm always meets the same
batches.

## How to fix
Pass `shuffle=True` to the training loader. Call `sampler.set_epoch(epoch)` of a distributed sampler at the
beginning of each epoch.
"""

import ast
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.edits import around, call_at
from truestep.rules.kit.loaders import ObservedLoader, find_loaders, uses_of
from truestep.rules.kit.syntax import walk
from truestep.rules.kit.where import calls, covers, name_of
from truestep.watch.evidence.facts.loading import EpochNumber, EpochSet, LoaderOrder

RULE = Meta(
    code="DATA03",
    severity="error",
    needs=(LoaderOrder,),
    caused_by=("DATA04",),
    fix="Call sampler.set_epoch(epoch) before iterating the loader, in every epoch.",
)
_LEAST_BATCHES = 3
_LOOPS = (ast.For, ast.While)
_CHOOSING = frozenset({"randint", "randrange", "choice", "choices", "sample", "integers", "randperm"})
_RECURRENT = ("lstm", "gru", "rnn")


def is_observed(evidence: Evidence) -> bool:
    """Whether a loader with such a sampler was iterated more than once."""
    loaders = find_loaders(evidence)
    if any(_is_stored(evidence, loader) for loader in loaders):
        return True
    return any(len(_epochs(loader)) > 1 for loader in loaders)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find epochs with one number, and training in the stored order."""
    yield from _find_stored(evidence)
    is_set = len({moment.facts.epoch for moment in evidence.of(EpochSet)}) > 1
    for loader in find_loaders(evidence):
        numbers, name = _epochs(loader), _name(loader)
        if loader.is_training and not is_set and len(numbers) > 1 and len(set(numbers)) == 1:
            yield Finding.at(
                loader.epochs[1],
                f"every epoch has the same order: set_epoch() is never called on the {name}",
                line=_line(evidence, loader, name),
                evidence=f"{len(loader.trained_epochs)} epochs; in each of the first {len(numbers)} the "
                f"epoch of the {name} was {numbers[0]}",
            )


def _find_stored(evidence: Evidence) -> Iterator[Finding]:
    """Find training loaders that nothing shuffles."""
    is_recurrent = any(word in item.name for item in evidence.operations for word in _RECURRENT)
    for loader in find_loaders(evidence):
        if is_recurrent and not _has_classes(evidence, loader):
            continue
        is_meant = loader.is_training and loader.facts.is_direct
        if is_meant and _is_stored(evidence, loader) and not _draws_samples(evidence, loader):
            num, size = len(loader.trained_epochs), len(loader.batches) // len(loader.epochs)
            yield Finding.at(
                loader.made or loader.epochs[0],
                "every epoch has the same order: the training data are never shuffled",
                line=_shuffle_line(evidence, loader),
                severity="warning",
                evidence=f"{num} epoch{'s' * (num > 1)} of {size} batches, in the order in which the dataset "
                "stores its samples",
                fix="Pass shuffle=True to this DataLoader.",
            )


def _draws_samples(evidence: Evidence, loader: ObservedLoader) -> bool:
    """Whether the dataset's own code draws which of its samples it returns, whatever it is asked for."""
    names = {item.dataset for item in uses_of(evidence, loader)}
    made = [
        method
        for source in evidence.sources
        for node in walk(source.tree)
        if isinstance(node, ast.ClassDef) and node.name in names
        for method in node.body
        if isinstance(method, ast.FunctionDef) and method.name == "__getitem__"
    ]
    called = {name_of(call.func) for method in made for call in walk(method) if isinstance(call, ast.Call)}
    return not called.isdisjoint(_CHOOSING)


def _has_classes(evidence: Evidence, loader: ObservedLoader) -> bool:
    """Whether each sample has one class, and so is a sequence of its own."""
    losses = [item for item in evidence.operations if item.kind == "nll_loss_forward" and len(item.ins) > 1]
    shapes = {item.ins[1].shape for item in losses}
    return any((item.batch_size,) in shapes for item in uses_of(evidence, loader))


def _shuffle_line(evidence: Evidence, loader: ObservedLoader) -> int | None:
    """Return where the call that makes a loader says `shuffle=`; if it does not, where it begins."""
    place = loader.made or loader.epochs[0]
    source = evidence.source(place.file)
    call = None if source is None or place.line is None else call_at(source, place.line, name="DataLoader")
    words = [] if call is None else [word for word in call.keywords if word.arg == "shuffle"]
    return words[0].value.lineno if words else place.line


def _is_stored(evidence: Evidence, loader: ObservedLoader) -> bool:
    """Whether epochs are trained on in the order of the dataset, and there are several."""
    num = len(loader.batches) // max(len(loader.epochs), 1)
    num_epochs = len(loader.trained_epochs)
    is_long = loader.facts.is_ordered and num >= _LEAST_BATCHES
    return is_long and (num_epochs > 1 or (num_epochs == 1 and _is_repeating(evidence, loader)))


def _is_repeating(evidence: Evidence, loader: ObservedLoader) -> bool:
    """Whether a loop of the script goes through the loader again, in which it is not made again."""
    place = loader.epochs[0]
    source = evidence.source(place.file)
    if source is None or loader.made is None:
        return False
    loop = around(source, place.line, *_LOOPS, ast.FunctionDef)
    if isinstance(loop, ast.FunctionDef):
        called = list(calls(source.tree, loop.name))
        called = [call for call in called if isinstance(call.func, ast.Name)] or called  # model.train()
        loops = [around(source, call.lineno, *_LOOPS, ast.FunctionDef) for call in called]
        loop = loops[0] if len(loops) == 1 else None
    is_remade = (
        loader.made.file == place.file and isinstance(loop, ast.stmt) and covers(loop, loader.made.line)
    )
    return isinstance(loop, _LOOPS) and not is_remade


def _epochs(loader: ObservedLoader) -> list[int]:
    return [item.epoch for item in _distributed(loader) if item.is_shuffled]


def _distributed(loader: ObservedLoader) -> list[EpochNumber]:
    return [order.distributed for order in _orders(loader) if order.distributed is not None]


def _orders(loader: ObservedLoader) -> list[LoaderOrder]:
    """Return the orders of epochs that were trained on: `next(iter(loader))` only looks at a batch."""
    return [loader.orders[epoch] for epoch in loader.trained_epochs if epoch < len(loader.orders)]


def _name(loader: ObservedLoader) -> str:
    samplers = _distributed(loader)
    return samplers[0].class_name if samplers else ""


def _line(evidence: Evidence, loader: ObservedLoader, name: str) -> int | None:
    """Return the line that makes what needs the epoch; if that is not known, the loop over batches."""
    looped = loader.epochs[-1]
    source = evidence.source(looped.file)
    nodes = walk(source.tree) if source is not None else ()
    made = {node.lineno for node in nodes if isinstance(node, ast.Call) and name_of(node.func) == name}
    return made.pop() if len(made) == 1 else looped.line
