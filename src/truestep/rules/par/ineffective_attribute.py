"""An attribute is set that has no effect: `requires_grad_ = False`.

## What it finds
`p.requires_grad_ = False` (overwrites a method), `require_grad`, `trainable`, and
`module.requires_grad = False` (modules have no such attribute).

## Why it matters
Python lets you set any attribute on tensors and modules, so there is no error, and nothing is frozen or
unfrozen.
"""

import ast
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta, Source
from truestep.rules.kit.syntax import walk
from truestep.rules.kit.where import assignments, name_of
from truestep.watch.evidence.facts.passes import ForwardPass
from truestep.watch.evidence.facts.structure import SwitchIneffective

RULE = Meta(
    code="PAR11",
    severity="error",
    needs=(ForwardPass,),
    fix="Write parameter.requires_grad = False, or module.requires_grad_(False) for a whole module.",
)
_METHOD = "requires_grad_"


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find switches that are none."""
    seen = {moment.facts.attribute: moment for moment in evidence.of(SwitchIneffective)}
    for source in evidence.sources:
        for name in sorted({_METHOD, *seen}):
            moment = seen.get(name)
            facts = moment.facts if moment is not None else None
            for line, text in _set_lines(source, name, facts.is_on if facts is not None else None):
                yield Finding.at(
                    source.at(line),
                    f"`{text}` has no effect: "
                    + ("it overwrites a method" if name == _METHOD else f"torch does not read {name} on it"),
                    step=moment.step + 1 if moment is not None else 0,
                    evidence=f"{facts.path or 'the model'} has {name} = {facts.is_on}, and "
                    f"{facts.num_unaffected} parameters have requires_grad = {not facts.is_on}"
                    if facts is not None
                    else "requires_grad of the tensors does not change",
                )


def _set_lines(source: Source, name: str, wanted: bool | None) -> Iterator[tuple[int, str]]:
    tensors = _names_of_tensors(source) if name == "requires_grad" else set()
    for statement, value in assignments(source.tree, name):
        targets = statement.targets if isinstance(statement, ast.Assign) else []
        owners = [target.value for target in targets if isinstance(target, ast.Attribute)]
        is_other = isinstance(value, ast.Constant) and wanted is not None and value.value is not wanted
        if not owners or is_other or name_of(owners[0]) in {"self", *tensors}:
            continue
        if isinstance(value, ast.Constant | ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Name | ast.Call):
            yield statement.lineno, source.line(statement.lineno).split("#")[0].strip()


def _names_of_tensors(source: Source) -> set[str]:
    """Return names that stand for tensors, which do have `requires_grad`."""
    found = {"weight", "bias"}
    for node in walk(source.tree):
        if isinstance(node, ast.For) and "parameters(" in ast.unparse(node.iter):
            found |= {item.id for item in walk(node.target) if isinstance(item, ast.Name)}
    return found
