"""An update of weights is lost: it changes a name or a copy, not the weights.

## What it finds
A loop over `parameters()` or `state_dict()` that assigns the new value to the loop's own variable (`for p,
q in zip(teacher.parameters(), student.parameters()): p = 0.99 * p + 0.01 * q`), or that assigns into the
dictionary that `model.state_dict()` has just made. Neither changes the model. Also an update of pairs of
weights that never reads the other weight: `p.mul_(0.99).add_(p, alpha=0.01)`.

## Why it matters
A teacher, target or averaged model keeps its first weights for the whole run, or a weight is never clipped
or initialized. Nothing fails, and the loss may even fall.

## How to fix
Change the tensor in place, under `torch.no_grad()`: `p.lerp_(q, 0.01)`, `p.copy_(new)` or `p.clamp_(-1,
1)`.
"""

import ast
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.analysis.places import has_run, name_of
from truestep.rules.analysis.syntax import walk
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.passes import ForwardPass

RULE = Meta(
    code="PAR15",
    severity="error",
    needs=(OptimizerStep, ForwardPass),
    fix="Change the weights in place under torch.no_grad(): p.lerp_(q, 0.01), p.copy_(new), p.clamp_(-1, 1).",
)
_TENSORS = frozenset({"parameters", "buffers"})
_NAMED = frozenset({"named_parameters", "named_buffers"})
_BLENDS = frozenset({"add_", "lerp_", "copy_"})


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find assignments that no weight notices."""
    for source in evidence.sources:
        for node in walk(source.tree):
            lost = [*_rebound(node), *_self_fed(node)] if isinstance(node, ast.For) else []
            lost += _stored_in_copy(node) if isinstance(node, ast.Assign) else []
            for statement, why in lost:
                if has_run(evidence, source, line=statement.lineno):
                    yield Finding(
                        message=f"`{_first_line(statement)}` changes no weight",
                        file=source.path,
                        line=statement.lineno,
                        evidence=why,
                    )


def _self_fed(loop: ast.For) -> Iterator[tuple[ast.stmt, str]]:
    """Yield an update of one of a pair of weights that does not read the other one."""
    names = sorted(_tensor_names(loop.target, loop.iter)) if _is_zip(loop.iter) else []
    mentions = [node.id for statement in loop.body for node in walk(statement) if isinstance(node, ast.Name)]
    used, unused = ([name for name in names if (name in mentions) is is_used] for is_used in (True, False))
    if len(used) != 1 or len(unused) != 1 or unused[0].startswith("_") or len(loop.body) != 1:
        return
    changes = [
        node
        for node in walk(loop.body[0])
        if isinstance(node, ast.Call) and name_of(node.func) in _BLENDS and _reads(node, used[0])
    ]
    if changes and isinstance(loop.body[0], ast.Expr):
        why = f"it blends {used[0]} with {used[0]}; {unused[0]}, the other weight of the pair, is never read"
        yield loop.body[0], why


def _is_zip(values: ast.expr) -> bool:
    return isinstance(values, ast.Call) and name_of(values.func) == "zip"


def _reads(call: ast.Call, name: str) -> bool:
    """Whether a call is given a variable, or something of it."""
    given = [*call.args, *(item.value for item in call.keywords)]
    return any(isinstance(node, ast.Name) and node.id == name for item in given for node in walk(item))


def _first_line(statement: ast.stmt) -> str:
    text = ast.unparse(statement)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _tensor_names(target: ast.expr, values: ast.expr) -> set[str]:
    """Return the loop variables that stand for tensors of a model."""
    if not isinstance(values, ast.Call):
        return set()
    items = target.elts if isinstance(target, ast.Tuple) else []
    function = name_of(values.func)
    if function == "zip" and len(items) == len(values.args):
        pairs = zip(items, values.args, strict=True)
        return set().union(*(_tensor_names(item, value) for item, value in pairs))
    if function == "enumerate" and len(items) == 2 and values.args:
        return _tensor_names(items[1], values.args[0])
    if not isinstance(values.func, ast.Attribute):
        return set()
    is_state = name_of(getattr(values.func.value, "func", None)) == "state_dict"
    if function in _TENSORS or (function == "values" and is_state):
        named: ast.expr | None = target
    elif function in _NAMED or (function == "items" and is_state):
        named = items[1] if len(items) == 2 else None
    else:
        named = None
    return {named.id} if isinstance(named, ast.Name) else set()


def _rebound(loop: ast.For) -> Iterator[tuple[ast.stmt, str]]:
    """Yield assignments to the loop's own variables that nothing reads afterwards."""
    names = _tensor_names(loop.target, loop.iter)
    for place, statement in enumerate(loop.body if names else ()):
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            continue
        target = statement.targets[0]
        if not isinstance(target, ast.Name) or target.id not in names:
            continue
        after = [node for later in loop.body[place + 1 :] for node in walk(later)]
        if not any(isinstance(node, ast.Name) and node.id == target.id for node in after):
            why = f"{target.id} is the loop's variable and now names a new tensor, which nothing reads"
            yield statement, f"{why}; the weight that it named before is unchanged"


def _stored_in_copy(statement: ast.Assign) -> list[tuple[ast.stmt, str]]:
    """Return the assignment if it goes into a dictionary that is thrown away at once."""
    made = [target.value for target in statement.targets if isinstance(target, ast.Subscript)]
    for call in made:
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr == "state_dict"
        ):
            return [(statement, "state_dict() makes a new dictionary each time: this one is discarded")]
    return []


BUGGY = """
import copy

import torch
from torch import nn

torch.manual_seed(0)
student = nn.Linear(4, 2)
teacher = copy.deepcopy(student)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
for step in range(6):
    x = torch.randn(8, 4)
    with torch.no_grad():
        goal = teacher(x).softmax(1)
    loss = nn.functional.cross_entropy(student(x + 0.1 * torch.randn_like(x)), goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for old, new in zip(teacher.parameters(), student.parameters()):
            old = 0.9 * old + 0.1 * new  # expect: PAR15
"""

CLEAN = """
import copy

import torch
from torch import nn

torch.manual_seed(0)
student = nn.Linear(4, 2)
teacher = copy.deepcopy(student)
optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
for step in range(6):
    x = torch.randn(8, 4)
    with torch.no_grad():
        goal = teacher(x).softmax(1)
    loss = nn.functional.cross_entropy(student(x + 0.1 * torch.randn_like(x)), goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total = 0.0
    with torch.no_grad():
        for old, new in zip(teacher.parameters(), student.parameters()):
            old *= 0.9
            old += 0.1 * new
        for weight in student.parameters():
            weight = weight.detach().flatten()
            total += weight.norm().item()
        state = teacher.state_dict()
        for name, value in student.state_dict().items():
            state[name] = value.clone()
        teacher.load_state_dict(state)
"""

FIXED = BUGGY.replace("old = 0.9 * old + 0.1 * new", "old.mul_(0.9).add_(new, alpha=0.1)")
