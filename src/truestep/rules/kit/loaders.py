"""Loaders as rules see them: how each was made, what its batches were used for, and what samples it gave.

Owns telling training from evaluation by what followed a batch. Judges nothing.
"""

import ast
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from truestep.rules.evidence import Evidence
from truestep.rules.kit.edits import call_at
from truestep.rules.kit.syntax import walk
from truestep.rules.kit.where import argument, assignments, name_of
from truestep.watch import Moment
from truestep.watch.evidence.facts.loading import (
    BatchFetched,
    EpochBegan,
    LoaderMade,
    LoaderOrder,
    LoaderUsed,
    SamplesSeen,
)
from truestep.watch.evidence.facts.passes import BackwardPass, ForwardPass, ModeSet

_USES = (BatchFetched, ForwardPass, BackwardPass, ModeSet, EpochBegan)
_EVALUATION = re.compile(r"(?<![a-z])(val(?!u|or|ve)|test|eval|dev(?!i|el)|holdout|heldout|held out)")
_GIVEN = "given "
_MOST_NAMES = 4
_PARTING = frozenset({"Subset", "random_split"})
_TRAINING = re.compile(r"(?<![a-z])train")


@dataclass(kw_only=True)
class ObservedLoader:
    """One loader of the script."""

    number: int
    made: Moment[LoaderMade] | None = None
    epochs: list[Moment[EpochBegan]] = field(default_factory=list)
    orders: list[LoaderOrder] = field(default_factory=list)
    batches: list[Moment[BatchFetched]] = field(default_factory=list)
    samples: list[SamplesSeen] = field(default_factory=list)
    """For the first epochs: digests and labels."""
    trained: list[int] = field(default_factory=list)
    """Steps at which a batch of it was followed by a backward pass."""
    scored: list[int] = field(default_factory=list)
    """Steps at which a batch went into a model in eval mode or without graph, and none followed."""
    models: set[int] = field(default_factory=set)
    num_trained: Counter[int] = field(default_factory=Counter)
    """By epoch, counted from 0: how many batches were trained on, and how many were scored."""
    num_scored: Counter[int] = field(default_factory=Counter)

    @property
    def is_training(self) -> bool:
        """Whether models are trained on it; in other epochs it may be scored as well."""
        is_whole_epoch = any(self.num_trained[epoch] > 1 for epoch in self.trained_epochs)
        return is_whole_epoch or len(self.trained) > len(self.scored)

    @property
    def trained_epochs(self) -> list[int]:
        """The epochs, counted from 0, whose batches were trained on: neither scored nor only looked at."""
        return sorted(epoch for epoch, num in self.num_trained.items() if num > self.num_scored[epoch])

    @property
    def is_evaluation(self) -> bool:
        """Whether models are only run on it. A last batch may seem trained on, before a loop by hand."""
        return not self.is_training and bool(self.scored) and len(self.trained) * 4 <= len(self.scored)

    @property
    def facts(self) -> LoaderMade:
        """What was noted when it was made; if nothing was, a plain loader with a dataset of its own."""
        if self.made is not None:
            return self.made.facts
        return LoaderMade(
            self.number,
            is_direct=False,
            dataset=-1 - self.number,
            is_iterable=False,
            is_ordered=False,
            is_random=False,
            num_workers=0,
            has_init=False,
        )

    def name_says(self, evidence: Evidence) -> str | None:
        """Return `training` or `evaluation` if the lines that make and read it say one and not the other."""
        texts: list[str] = []
        for moment in (self.made, *self.epochs[:1]):
            source = evidence.source(moment.file) if moment is not None else None
            if moment is not None and source is not None:
                texts += [*_names_in(source.line(moment.line)), moment.function or ""]
        for text in sorted(texts, key=lambda text: text.startswith(_GIVEN)):
            says = words_say(text)
            if says is not None:
                return says
        return None


def uses_of(evidence: Evidence, loader: ObservedLoader) -> list[LoaderUsed]:
    """Return what was noted of a loader as it began its first epoch."""
    return [moment.facts for moment in evidence.of(LoaderUsed) if moment.facts.loader == loader.number]


def transform_line(evidence: Evidence, loader: ObservedLoader) -> int | None:
    """Return the line of the transform that a loader's dataset is given, if the script shows it."""
    made = loader.made
    source = evidence.source(made.file) if made is not None else None
    if made is None or source is None or not loader.facts.is_direct:
        return None
    loading = call_at(source, made.line, name="DataLoader")
    given = argument(loading, "dataset", place=0)
    kinds = {item.dataset for item in uses_of(evidence, loader)}
    dataset = _followed(source.tree, given, made.line, kinds=kinds)
    transform = _followed(source.tree, argument(dataset, "transform"), made.line)
    if transform is None:
        return None
    random = (call for call in walk(transform) if isinstance(call, ast.Call) and _is_random(call))
    first = min(random, key=lambda call: call.lineno, default=transform)
    return int(first.lineno)


def scaled_at(evidence: Evidence, moment: Moment[Any], *, is_training: bool) -> int | None:
    """Return the line of the transform of a model's inputs; that of the model's call if it is unknown."""
    own = [
        item
        for item in find_loaders(evidence)
        if moment.facts.model in item.models and (item.is_training if is_training else item.is_evaluation)
    ]
    lines = {transform_line(evidence, item) for item in own}
    is_in_file = all(item.made is not None and item.made.file == moment.file for item in own)
    return (lines.pop() if len(lines) == 1 and is_in_file else None) or moment.line


def _followed(
    tree: ast.AST, value: ast.expr | None, line: int | None, *, kinds: Collection[str] = ()
) -> ast.expr | None:
    """Return what was last assigned to a name before a line, of a part the whole; anything else as it is.

    Of several calls, as in branches, the one that makes an object of one of these kinds.
    """
    for _ in range(_MOST_NAMES):
        if isinstance(value, ast.Call) and name_of(value.func) in _PARTING:
            value = argument(value, "dataset", place=0)
        name = name_of(value)
        before = [one for node, one in assignments(tree, name or "") if node.lineno < (line or 0)]
        if name is None or not before:
            break
        fitting = [one for one in before if isinstance(one, ast.Call) and name_of(one.func) in kinds]
        value = (fitting or before)[-1]
    return None if name_of(value) else value


def _is_random(call: ast.Call) -> bool:
    return bool(re.search(r"random|jitter", name_of(call.func) or "", re.IGNORECASE))


def words_say(text: str) -> str | None:
    """Return `training` or `evaluation` if the words of names say one and not the other."""
    words = _apart(text)
    says = (bool(_EVALUATION.search(words)), bool(_TRAINING.search(words)))
    if says[0] == says[1]:
        return None
    return "evaluation" if says[0] else "training"


def _names_in(line: str) -> Iterator[str]:
    """Yield what is assigned to or iterated, and what a single loader is made of."""
    line = line.split("#", maxsplit=1)[0]
    looped = re.search(r"\bfor\b.*?\bin\b(.*)", line)
    assigned = re.match(r"[^=(]*(?==[^=])", line.split("DataLoader")[0])
    if looped:
        yield looped.group(1)
    elif assigned:
        yield assigned.group()
    made = re.findall(r"DataLoader\(([^,()]*)", line)
    if len(made) == 1:
        yield _GIVEN + made[0]


def _apart(text: str) -> str:
    """Return the words of names."""
    return re.sub(r"[^a-zA-Z]+", " ", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)).lower()


def find_loaders(evidence: Evidence) -> list[ObservedLoader]:
    """Return all loaders that were iterated; worked out once for all rules."""
    known = vars(evidence)
    if "_loaders" not in known:
        known["_loaders"] = _find(evidence)
    found: list[ObservedLoader] = known["_loaders"]
    return found


def _find(evidence: Evidence) -> list[ObservedLoader]:
    found: dict[int, ObservedLoader] = {}

    def loader_of(moment: Moment[Any]) -> ObservedLoader:
        return found.setdefault(moment.facts.loader, ObservedLoader(number=moment.facts.loader))

    for made in reversed(evidence.of(LoaderMade)):
        loader_of(made).made = made
    for order in evidence.of(LoaderOrder):
        loader_of(order).orders.append(order.facts)
    for epoch in evidence.of(EpochBegan):
        loader_of(epoch).epochs.append(epoch)
    for samples in evidence.of(SamplesSeen):
        loader_of(samples).samples.append(samples.facts)
    for batch, follows in _uses(evidence):
        owner = found.get(batch.facts.loader)
        if owner is not None:
            _add_use(owner, batch, follows)
    _find_first_makers(list(found.values()))
    return [loader for loader in found.values() if loader.epochs]


def _find_first_makers(loaders: list[ObservedLoader]) -> None:
    """Give a loader that a framework makes the line of the user's loader that it is made from.

    Where loaders of one dataset differ, as for training and for evaluation, it is not known which.
    """
    direct: dict[int, list[Moment[LoaderMade]]] = {}
    for loader in loaders:
        if loader.made is not None and loader.facts.is_direct:
            direct.setdefault(loader.facts.dataset, []).append(loader.made)
    for loader in loaders:
        known = direct.get(loader.facts.dataset, [])
        if (
            not loader.facts.is_direct
            and len({(item.file, item.line, item.facts.is_ordered) for item in known}) == 1
        ):
            loader.made = known[-1]


def _uses(evidence: Evidence) -> Iterator[tuple[Moment[BatchFetched], list[Moment[Any]]]]:
    """Yield each batch with what happened before the next.

    Where there is `backward()`, a model that calls `torch.autograd.grad` is not trained by that.
    """
    batch: Moment[BatchFetched] | None = None
    follows: list[Moment[Any]] = []
    is_called = any(moment.facts.how == "backward" for moment in evidence.of(BackwardPass))
    for moment in evidence.of(*_USES):
        if is_called and isinstance(moment.facts, BackwardPass) and moment.facts.how != "backward":
            continue
        if isinstance(moment.facts, BatchFetched):
            if batch is not None:
                yield batch, follows
            batch, follows = moment, []
        else:
            follows.append(moment)
    if batch is not None:
        yield batch, follows


def _add_use(loader: ObservedLoader, batch: Moment[BatchFetched], follows: list[Moment[Any]]) -> None:
    loader.batches.append(batch)
    epoch = bisect_right(loader.epochs, batch.at_s, key=lambda moment: moment.at_s) - 1
    forwards: list[Moment[Any]] = []
    for moment in follows:
        if isinstance(moment.facts, ModeSet | EpochBegan) and forwards:
            break  # the loop over this loader has ended
        if isinstance(moment.facts, ForwardPass):
            forwards.append(moment)
        elif isinstance(moment.facts, BackwardPass) and any(item.facts.is_grad_enabled for item in forwards):
            loader.trained.append(batch.step)
            loader.num_trained[epoch] += 1
            loader.models |= {item.facts.model for item in forwards}
            return
    if any(not item.facts.is_grad_enabled or not item.facts.is_training for item in forwards):
        loader.scored.append(batch.step)
        loader.num_scored[epoch] += 1
        loader.models |= {item.facts.model for item in forwards}
