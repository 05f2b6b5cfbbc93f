"""Random numbers come from a generator that is not seeded.

## What it finds
Draws from torch's, NumPy's or Python's generator before any seed was set, and generators created without a
seed, with the line of the first draw. If a library draws, it is your line that called the library.
One finding names all generators. It is a warning if the script seeds another generator, and a remark if the
script seeds nothing. If it has a seed, as an option or a constant, and gives it to nothing that seeds torch,
that is a warning at the line where the seed is known.

## Why it matters
Each run starts from different weights, another split or another order. A better score may be luck, a bug may
not come back, and no one can reproduce the result. Seeding one library does not seed the others.

## How to fix
At the start of the script, before you create models and data, call `torch.manual_seed(0)`,
`numpy.random.seed(0)` and `random.seed(0)`. Pass a seed to generators that you create:
`numpy.random.default_rng(0)`.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.kit.flow import OperationGraph
from truestep.rules.kit.loaders import find_loaders
from truestep.rules.kit.order import built_for, maker_of
from truestep.rules.kit.where import has_run
from truestep.rules.repro._given_seed import find_given_seed
from truestep.rules.repro._promise import is_asked_here, is_meant_to_repeat, seeds
from truestep.watch import Operation
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.passes import BackwardPass
from truestep.watch.evidence.facts.surroundings import (
    GeneratorSeeded,
    NumbersDrawn,
    SeededLate,
)

_TRAINING = (OptimizerStep, BackwardPass)
RULE = Meta(
    code="REPRO01",
    severity="warning",
    is_observed=lambda evidence: not evidence.is_part and any(map(evidence.has, _TRAINING)),
    fix="Seed it at the start of the script, before you create models and data.",
    is_quiet=True,
)
_SEED = {
    "torch": "torch.manual_seed(SEED)",
    "numpy": "numpy.random.seed(SEED)",
    "random": "random.seed(SEED)",
}
_MUCH = 8
_ORDERING = frozenset({"shuffle", "sample", "permutation", "choices", "choice"})
_WRITING = frozenset({"normal", "uniform", "zero", "copy", "fill"})
"""What writes a whole tensor and reads nothing of what it was."""


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find the first unseeded draw from each generator, and report them together."""
    found = [
        *_check_torch(evidence),
        *_check_global(evidence, "numpy"),
        *_check_global(evidence, "random"),
        *_check_own(evidence),
    ]
    if not found:
        return
    first, others = found[0], found[1:]
    given = find_given_seed(evidence) if first.fix and _SEED["torch"] in first.fix else None
    if given is not None:
        where = f"random numbers are drawn at {Path(first.file or '').name}:{first.line}"
        first = replace(
            first,
            message=f"{given.name} is not given to torch's generator, which is never seeded",
            file=given.file,
            line=given.line,
            evidence="; ".join(part for part in (where, first.evidence) if part),
            fix=f"Call torch.manual_seed() with {given.name} before you create models and data.",
        )
    places = [f"{Path(item.file or '').name}:{item.line}: {item.message}" for item in others]
    yield replace(
        first,
        evidence="; ".join(part for part in (first.evidence, *places) if part),
        fix=" ".join(dict.fromkeys(item.fix for item in found if item.fix)),
        severity="warning" if given is not None or is_meant_to_repeat(evidence) else "info",
    )


def _check_torch(evidence: Evidence) -> Iterator[Finding]:
    seeded = seeds(evidence, "torch")
    places = {(item.file, item.line) for item in seeded}
    is_late = any((item.file, item.line) in places for item in evidence.of(SeededLate))
    if seeded and not is_late:
        return
    draws = [item for item in evidence.operations if item.is_random and not item.has_generator]
    draws = _still_used(evidence, [item for item in draws if not _is_loaders_own(item)])
    when = " before torch.manual_seed() is called" if is_late else ", which is never seeded"
    if draws and draws[0].file is not None and (not is_late or _size(draws[0]) > 1):
        yield Finding.at(
            draws[0],
            f"random numbers come from torch's generator{when}",
            line=_asked_at(evidence, draws[0]),
            evidence=f"the first draw is {draws[0].name.removeprefix('aten.')} of shape "
            f"{list(draws[0].outs[0].shape) if draws[0].outs else []}",
            fix=f"Call {_SEED['torch']} at the start of the script.",
        )
    elif not is_late and not draws:
        for loader in find_loaders(evidence):
            if loader.is_training and loader.facts.is_random and loader.made is not None:
                yield Finding.at(
                    loader.made,
                    f"the order of the training data comes from torch's generator{when}",
                    fix=f"Call {_SEED['torch']} at the start of the script.",
                )


def _still_used(evidence: Evidence, draws: list[Operation]) -> list[Operation]:
    """Return draws without those that are written over: weights drawn again from a generator, or loaded."""
    flow = evidence.flow if draws else None
    return [item for item in draws if flow is not None and not _is_written_over(flow, item)]


def _is_written_over(flow: OperationGraph, draw: Operation) -> bool:
    users = flow.users(draw)
    return bool(users) and all(
        user.is_in_place
        and user.kind in _WRITING
        and user.ins[0].producer == draw.index
        and user.ins[0].shape == draw.outs[0].shape
        and (user.has_generator or not user.is_random)
        for user in users
    )


def _is_loaders_own(operation: Operation) -> bool:
    """Whether it is the number that a loader draws for its workers, needed or not."""
    return operation.phase == "data" and operation.kind == "random" and _size(operation) == 1


def _asked_at(evidence: Evidence, draw: Operation) -> int | None:
    """Return the line of a draw; for weights the one that makes the model, not one of its class."""
    source = evidence.source(draw.file)
    if source is None or draw.line is None:
        return draw.line
    made = maker_of(source, draw.line)
    lines = (built_for(source, made or draw.line), made)
    return next((line for line in lines if line and has_run(evidence, source, line=line)), draw.line)


def _size(operation: Operation) -> int:
    size = 1
    for side in operation.outs[0].shape if operation.outs else ():
        size *= side
    return size


def _check_global(evidence: Evidence, generator: str) -> Iterator[Finding]:
    seeded = seeds(evidence, generator)
    chosen = {item.facts.seed for item in evidence.of(GeneratorSeeded) if item.facts.seed is not None}
    draws = [item for item in evidence.of(NumbersDrawn) if item.facts.generator == generator]
    draws = [item for item in draws if item.facts.number is None or item.facts.number not in chosen]
    heavy = [item for item in draws if item.facts.size >= _MUCH or item.facts.function in _ORDERING]
    # One number may be a port or a run's name; a seed that comes later says that the rest is meant to repeat.
    is_enough = len(draws) > 1 or any(item.facts.library for item in draws)
    reported = draws if is_enough and not seeded else heavy
    name = "NumPy's" if generator == "numpy" else "Python's"
    if reported:
        first = reported[0].facts
        when = " before it is seeded" if seeded else ", which is never seeded"
        yield Finding.at(
            reported[0],
            f"random numbers come from {name} global generator{when}",
            evidence=f"the first draw is random.{first.function}() with {first.size} "
            f"value{'s' * (first.size != 1)}" + (f", in {first.library}()" if first.library else ""),
            fix=f"Call {_SEED[generator]} at the start of the script.",
        )


def _check_own(evidence: Evidence) -> Iterator[Finding]:
    """Generators that were made without a seed."""
    seeded = [item for item in evidence.of(GeneratorSeeded) if item.facts.how == "fresh"]
    seeded = [item for item in seeded if item.facts.generator == "numpy" and is_asked_here(evidence, item)]
    drawn = [item for item in evidence.of(NumbersDrawn) if item.facts.function == "fresh"]
    for name, moments in (("numpy.random.default_rng() or seed()", seeded), ("random.Random()", drawn)):
        for moment in moments:
            yield Finding.at(
                moment,
                "a generator is created without a seed: it differs in every run",
                evidence=f"{name} was called without an argument",
                fix="Pass it a seed.",
            )
