"""Dropout, noise or the order of samples is the same each time: a seed is set again and again.

## What it finds
A dropout mask or noise that has exactly the same values in each of the first steps, because a generator gets
the same seed before every draw. Also a loader that shuffles, and gives the same samples in the same order in
several epochs of one training. Noise that is drawn for an evaluation, and weights that a seed makes, are not
reported.

## Why it matters
Dropout with one mask removes the same units forever, and noise that never changes is learned like a part of
the data. Equal epochs give the gradient the same noise each time. All of this looks random in the code.

## How to fix
Seed once, before the training. If a part must be reproducible, give it a generator that is made once, or a
seed that contains the step or the epoch.
"""

import ast
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.analysis.flow import LINEAR, OperationGraph, place_of
from truestep.rules.analysis.loaders import ObservedLoader, find_loaders, uses_of
from truestep.rules.analysis.places import Function, calls, covers
from truestep.rules.analysis.syntax import walk
from truestep.watch import Moment, Operation
from truestep.watch.evidence.facts.loading import BatchFetched, SamplesSeen
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.passes import ForwardPass, NumbersGiven
from truestep.watch.evidence.facts.structure import StateLoaded
from truestep.watch.evidence.facts.surroundings import GeneratorSeeded
from truestep.watch.evidence.operation import In

RULE = Meta(
    code="MODE07",
    severity="error",
    needs=(OptimizerStep,),
    caused_by=("DATA03",),
    fix="Seed once, before the loop, or with a seed that contains the step or the epoch.",
)
_LEAST_STEPS, _LEAST_BATCHES, _LEAST_SAMPLES = 3, 3, 12
_MAX_WALK = 8
_ELEMENTWISE = ("mul", "add", "sub", "rsub", "where", "masked_fill", "addcmul", "lerp", "div")
Site = tuple[str | None, int | None]
Epoch = tuple[ObservedLoader, int, SamplesSeen]


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find draws that are equal at each step, and epochs that are equal."""
    found = list(_find_draws(evidence))
    yield from found or _find_epochs(evidence)


def _find_draws(evidence: Evidence) -> Iterator[Finding]:
    flow = evidence.flow
    series: dict[tuple[Site, str, str, int], list[tuple[Operation, int]]] = {}
    nums: dict[tuple[int, Site, str, str], int] = {}
    for moment in evidence.of(NumbersGiven):
        draw = flow.at(moment.facts.operation_index)
        if draw is None or draw.phase == "data" or draw.thread or draw.in_evaluation:
            continue
        place = ((draw.file, draw.line), draw.module, draw.name)
        num = nums[draw.step, *place] = nums.get((draw.step, *place), 0) + 1
        series.setdefault((*place, num), []).append((draw, moment.facts.digest))
    reported: set[Site] = set()
    for draws in series.values():
        first, digest = draws[0]
        is_equal = len(draws) >= _LEAST_STEPS and all(item[1] == digest for item in draws)
        use = _use_of(evidence, flow, first) if is_equal and first.outs else None
        if use is None or any(_use_of(evidence, flow, draw) is None for draw, _ in draws):
            continue
        site = _seeded_at(evidence, [draw for draw, _ in draws]) or _made_at(evidence, first)
        file, line = site or (first.file, first.line)
        if (file, line) not in reported:
            reported.add((file, line))
            yield Finding(
                message=f"the {use} is the same at every step: its generator gets the same seed each time",
                file=file,
                line=line,
                step=first.step + 1,
                count=len(draws),
                evidence=f"{first.name.split('.')[1].rstrip('_')} of shape {tuple(first.outs[0].shape)} "
                f"{place_of(first, file)} gave exactly the same values in {len(draws)} steps",
            )


def _use_of(evidence: Evidence, flow: OperationGraph, draw: Operation) -> str | None:
    """Return what a draw is in the training, in words; None if it is not known."""
    if draw.name == "aten.native_dropout.default":
        return "dropout mask" if draw.ins and draw.ins[0].has_grad else None
    queue, seen = [draw], {draw.index}
    while queue and len(seen) < _MAX_WALK:
        item = queue.pop(0)
        for user in flow.users(item):
            if user.index in seen or user.step != draw.step:
                continue
            seen.add(user.index)
            others = [given for given in user.ins if given.producer != item.index and len(given.shape) > 0]
            if not others:
                queue.append(user)
            elif any(user.name.startswith(f"aten.{name}") for name in _ELEMENTWISE):
                if all(_is_deviation(flow, given, draw) for given in others):
                    queue.append(user)
                elif _is_joined(flow, draw, others) and _is_trained(flow, user):
                    return "dropout mask" if "mul" in user.name or "where" in user.name else "noise"
            elif user.name in LINEAR and _is_layer(user, item) and _has_batches(evidence):
                return "noise that the model is given"
    return None


def _is_deviation(flow: OperationGraph, given: In, draw: Operation) -> bool:
    """Whether a factor is an exponential or a root, by which noise is scaled before it is added."""
    maker = flow.maker(given)
    name = "" if maker is None else maker.name.split(".")[1]
    return name in ("exp", "sqrt", "softplus") and given.shape == tuple(draw.outs[0].shape)


def _is_joined(flow: OperationGraph, draw: Operation, others: list[In]) -> bool:
    """Whether a draw meets something of its own form that is neither a weight nor drawn itself."""
    shape = draw.outs[0].shape
    for given in others:
        is_like = len(given.shape) == len(shape) > 1 and given.shape[0] == shape[0] > 1
        if not is_like or any(one not in (1, other) for one, other in zip(shape, given.shape, strict=True)):
            continue
        maker = flow.maker(given)
        if given.has_grad:
            return maker is not None and maker.phase != "setup"
        before = flow.before(given, limit=64)
        return not any(item.is_random and item.step == draw.step and item.phase != "setup" for item in before)
    return False


def _is_trained(flow: OperationGraph, item: Operation) -> bool:
    """Whether a gradient flows through something that depends on it."""
    for one in (item, *flow.follow(item, limit=60)):
        given = (given for user in flow.users(one) for given in user.ins if given.producer == one.index)
        if any(one.has_grad for one in given):
            return True
    return False


def _is_layer(user: Operation, item: Operation) -> bool:
    """Whether a trained layer is applied to it, and it is not the weight itself."""
    return len(user.ins) > 1 and user.ins[-2].producer == item.index and user.ins[-1].has_grad


def _has_batches(evidence: Evidence) -> bool:
    """Whether the data come from a loader: if all is drawn at each step, it may be one fixed batch."""
    return len({moment.step for moment in evidence.of(BatchFetched)}) >= _LEAST_STEPS


def _seeded_at(evidence: Evidence, draws: list[Operation]) -> Site | None:
    """Return the line that gives torch's generator one seed in each of these steps."""
    places: dict[tuple[Site, int | None], set[int]] = {}
    for moment in evidence.of(GeneratorSeeded):
        if moment.facts.generator == "torch" and moment.facts.how in ("seed", "state"):
            places.setdefault(((moment.file, moment.line), moment.facts.seed), set()).add(moment.step)
    steps = {draw.step for draw in draws}
    found = [place for (place, _), seeded in places.items() if steps <= seeded]
    if not found or any(draw.has_generator for draw in draws):
        return None
    return _called_at(evidence, found[-1])


def _made_at(evidence: Evidence, draw: Operation) -> Site | None:
    """Return the only line that seeds a generator in the function around a draw."""
    source = evidence.source(draw.file)
    if source is None or draw.line is None:
        return None
    around = [node for node in walk(source.tree) if isinstance(node, Function) and covers(node, draw.line)]
    loops = [node for node in walk(source.tree) if isinstance(node, ast.For | ast.While)]
    inner = [max(around, key=lambda node: node.lineno)] if around else loops
    lines = {call.lineno for node in inner for call in calls(node, "manual_seed")}
    return (draw.file, lines.pop()) if len(lines) == 1 else None


def _find_epochs(evidence: Evidence) -> Iterator[Finding]:
    """Find loaders that shuffle and give the same order in several epochs."""
    made: dict[tuple[Site, int], list[Epoch]] = {}
    for loader in find_loaders(evidence):
        is_shuffling = any("Random" in item.sampler for item in uses_of(evidence, loader))
        if loader.is_training and loader.made is not None and is_shuffling:
            key = ((loader.made.file, loader.made.line), loader.facts.dataset)
            for samples in loader.samples:
                if samples.epoch in loader.trained_epochs and samples.epoch < len(loader.epochs):
                    made.setdefault(key, []).append((loader, samples.epoch, samples))
    for epochs in made.values():
        in_order = sorted(epochs, key=lambda item: item[0].epochs[item[1]].at_s)
        for before, after in pairwise(in_order):
            if _is_equal(before[2], after[2]) and _is_one_training(evidence, before, after):
                begins = after[0].epochs[after[1]]
                file, line = _seeded_between(evidence, before, after) or _given_at(evidence, begins)
                yield Finding(
                    message="every epoch has the same order: the generator gets the same seed before each",
                    file=file,
                    line=line,
                    severity="warning",
                    step=begins.step + 1,
                    evidence=f"the loader shuffles, and its epochs {before[1] + 1} and {after[1] + 1} gave "
                    f"the same {min(before[2].num_samples, after[2].num_samples)} samples in the same order",
                )
                break


def _is_equal(one: SamplesSeen, other: SamplesSeen) -> bool:
    num = min(len(one.digests), len(other.digests))
    first, second = one.digests[:num], other.digests[:num]
    distinct = {digest for batch in first for digest in batch}
    return num >= _LEAST_BATCHES and first == second and len(distinct) >= _LEAST_SAMPLES


def _is_one_training(evidence: Evidence, before: Epoch, after: Epoch) -> bool:
    """Whether one optimizer trains one model in both, which is not set back between them."""
    start, middle = (loader.epochs[epoch].at_s for loader, epoch, _ in (before, after))
    if any(start < item.at_s < middle for item in evidence.of(StateLoaded) if item.facts.what == "model"):
        return False
    models: tuple[set[int], set[int]] = (set(), set())
    for item in evidence.of(ForwardPass):
        if item.facts.is_grad_enabled and item.at_s > start:
            models[item.at_s > middle].add(item.facts.model)
    owners: tuple[set[int], set[int]] = (set(), set())
    for step in evidence.of(OptimizerStep):
        if step.at_s > start:
            owners[step.at_s > middle].add(step.facts.optimizer)
    return not models[0].isdisjoint(models[1]) and not owners[0].isdisjoint(owners[1])


def _seeded_between(evidence: Evidence, before: Epoch, after: Epoch) -> Site | None:
    """Return the line that seeds torch's generator for both epochs, last before the second."""
    end = after[0].epochs[after[1]].at_s
    known = [
        item
        for item in evidence.of(GeneratorSeeded)
        if item.facts.generator == "torch" and item.facts.how == "seed" and item.at_s <= end
    ]
    if not known or known[-1].at_s < before[0].epochs[before[1]].at_s:
        return None
    last = known[-1]
    num = sum((item.file, item.line, item.facts) == (last.file, last.line, last.facts) for item in known)
    return _called_at(evidence, (last.file, last.line)) if num > 1 else None


def _called_at(evidence: Evidence, place: Site) -> Site:
    """Return a line, or the only one in a loop that calls the function which that line is in."""
    source, line = evidence.source(place[0]), place[1]
    if source is None or line is None:
        return place
    around = [node for node in walk(source.tree) if isinstance(node, Function) and covers(node, line)]
    loops = [node for node in walk(source.tree) if isinstance(node, ast.For | ast.While)]
    if not around or any(covers(loop, line) for loop in loops):
        return place
    name = max(around, key=lambda node: node.lineno).name
    lines = {call.lineno for loop in loops for call in calls(loop, name)}
    return (place[0], lines.pop()) if len(lines) == 1 else place


def _given_at(evidence: Evidence, begins: Moment[Any]) -> Site:
    """Return the only line in a loop that seeds a generator; else where the epoch begins."""
    source = evidence.source(begins.file)
    lines: set[int] = set()
    for node in walk(source.tree) if source is not None else ():
        if isinstance(node, ast.For | ast.While):
            lines |= {call.lineno for call in calls(node, "manual_seed")}
    return (begins.file, lines.pop()) if len(lines) == 1 else (begins.file, begins.line)


BUGGY = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(160, 8)
y = x[:, :1] - x[:, 1:2]
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(6):
    torch.manual_seed(1)  # expect: MODE07
    rows = slice(step * 20, step * 20 + 20)
    loss = (model(x[rows]) - y[rows]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

CLEAN = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(160, 8)
y = x[:, :1] - x[:, 1:2]
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(6):
    generator = torch.Generator().manual_seed(7)
    directions = torch.randn(8, 8, generator=generator)  # features that a seed stands for
    torch.manual_seed(1 + step)
    rows = slice(step * 20, step * 20 + 20)
    loss = (model(x[rows] @ directions) - y[rows]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FIXED = BUGGY.replace("torch.manual_seed(1)  # expect: MODE07", "torch.manual_seed(1 + step)")
