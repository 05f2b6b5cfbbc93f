"""Weight decay applies to biases and normalization weights.

## What it finds
An optimizer whose groups without weight decay miss most biases or all normalization weights, because names in
the filter match nothing: a warning. An optimizer that misses them possibly on purpose, and one with weight
decay for everything, are reported as info. Groups that split a model by its layers are not reported, and
neither are optimizers whose `step` is not torch's, which may skip parameters whatever stands in their groups.

## Why it matters
Decay pulls scales and shifts towards zero for no reason: a normalization weight should be near one. A filter
that matches nothing has no effect and gives no error.

## How to fix
Select by what a parameter is, not by its name: decay those with two or more dimensions and nothing else.
"""

import ast
import re
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta, Source
from truestep.rules.kit.optimizers import decay_of
from truestep.rules.kit.roster import at, names, read_roster
from truestep.rules.kit.syntax import walk
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.structure import Optimizer, Parameter, ParametersListed

RULE = Meta(
    code="PAR08",
    severity="info",
    needs=(OptimizerStep, ParametersListed),
    fix="Decay parameters with two or more dimensions only: p.ndim >= 2.",
    is_quiet=True,
)
_MIN_SHARE = 0.5
_LIKELY = re.compile(r"bias|norm|gamma|beta|(^|[._])(ln|bn)")
_STANDARD = {"AdamW": 0.01, "NAdamW": 0.01}
"""What an optimizer decays by if it is not told: that alone is no decision of the script's."""


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find decay where it does harm."""
    roster = read_roster(evidence)
    for optimizer in roster.stepped if roster is not None else ():
        own = [item for item in roster.of(optimizer) if not item.is_frozen] if roster is not None else []
        vectors = [item for item in own if len(item.shape) <= 1 and item.path is not None]
        decayed = [item for item in vectors if _decay_of(item, optimizer)]
        kinds = {bool(decay_of(optimizer, number)) for number in range(len(optimizer.groups))}
        if not decayed:
            continue
        if kinds == {True, False}:
            spared = [item for item in own if not _decay_of(item, optimizer)]
            if _misses(vectors, decayed) and all(len(item.shape) <= 1 for item in spared):
                yield _missed(evidence, optimizer, vectors, decayed)
        elif kinds == {True} and _is_chosen(optimizer) and any(item.is_norm for item in decayed):
            yield Finding(
                message="weight decay also pulls biases and normalization weights towards zero",
                **at(optimizer.made_at),
                step=optimizer.first_step + 1,
                evidence=f"{_values(decayed, optimizer)} applies to {len(decayed)} vectors: {names(decayed)}",
            )


def _missed(
    evidence: Evidence, optimizer: Optimizer, vectors: list[Parameter], decayed: list[Parameter]
) -> Finding:
    paths = [item.path for item in vectors if item.path]
    filters = [name for source in evidence.sources for name in _filters(source)]
    dead = sorted({name for name in filters if not any(name in path for path in paths)})
    is_wrong = len(decayed) == len(vectors) or bool(dead)
    message = "the groups without weight decay miss biases or normalization weights"
    return Finding(
        message=message + (": names in the filter match no parameter" if is_wrong else ""),
        **at(optimizer.made_at),
        step=optimizer.first_step + 1,
        evidence=f"{_values(decayed, optimizer)} applies to {len(decayed)} of {len(vectors)} vectors: "
        f"{names(decayed)}" + (f"; no parameter is named {', '.join(dead[:4])}" if dead else ""),
        severity="warning" if is_wrong else None,
    )


def _filters(source: Source) -> Iterator[str]:
    """Yield texts that names of biases and normalisation are chosen by."""
    for node in walk(source.tree):
        found: list[ast.expr] = []
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            found = node.elts
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            found = [node.left]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            found = node.args if node.func.attr in ("endswith", "startswith") else []
        texts = [item.value for item in found if isinstance(item, ast.Constant)]
        if len(texts) == len(found):
            yield from (text for text in texts if isinstance(text, str) and _LIKELY.search(text.lower()))


def _decay_of(item: Parameter, optimizer: Optimizer) -> float:
    return decay_of(optimizer, item.groups.get(optimizer.number, 0))


def _values(decayed: list[Parameter], optimizer: Optimizer) -> str:
    """Return the values of weight decay that they get, as in `weight_decay=0.01`."""
    values = sorted({_decay_of(item, optimizer) for item in decayed})
    return f"weight_decay={' and '.join(f'{value:g}' for value in values)}"


def _misses(vectors: list[Parameter], decayed: list[Parameter]) -> bool:
    scales = [item for item in vectors if item.is_norm and not (item.path or "").endswith("bias")]
    are_all = bool(scales) and all(item in decayed for item in scales)
    return are_all or len(decayed) > _MIN_SHARE * len(vectors)


def _is_chosen(optimizer: Optimizer) -> bool:
    decays = {group.weight_decay for group in optimizer.groups}
    return decays != {_STANDARD.get(optimizer.class_name)}
