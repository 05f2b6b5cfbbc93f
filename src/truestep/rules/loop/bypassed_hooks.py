"""A module's `forward` is called directly: its hooks do not run.

## What it finds
`module.forward(x)` in the script, on a module that is called from outside. A class that calls its own
`forward` is reported only if it has registered hooks, which the call skips. Without hooks it is `info`.

## Why it matters
`module(x)` runs hooks and everything built on them: older weight and spectral normalization, pruning,
profilers, quantization, compiled and parallel wrappers. `forward` runs none of them and gives no error.

## How to fix
Call the module itself: `module(x)`.
"""

import ast
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta, Source
from truestep.rules.analysis.edits import Edit, call_at, replace_node, text_of
from truestep.rules.analysis.syntax import walk
from truestep.watch.evidence.facts.passes import BackwardPass, ForwardCalledDirectly, ForwardPass
from truestep.watch.evidence.facts.surroundings import TorchImported

RULE = Meta(
    code="LOOP14",
    severity="warning",
    needs=(TorchImported,),
    fix="Call the module itself, module(x), not its forward.",
)
_HOLDERS = ("ModuleList", "Sequential")


def is_observed(evidence: Evidence) -> bool:
    """Whether a module was called, in one way or the other."""
    return any(evidence.has(kind) for kind in (ForwardPass, ForwardCalledDirectly, BackwardPass))


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find direct calls of forward."""
    seen = set()
    for moment in evidence.of(ForwardCalledDirectly):
        source = evidence.source(moment.file)
        owner = _owner(source, moment.line) if source is not None else None
        hooks, name = moment.facts.num_hooks, moment.facts.class_name
        if owner is None or (owner == "self" and not hooks):
            continue
        seen.add((moment.file, moment.line))
        yield Finding.at(
            moment,
            f"forward() of {name} is called directly: "
            + ("its hooks do not run" if hooks else "hooks would not run"),
            evidence=f"{owner}.forward(...); {hooks} hooks are registered on it",
            severity="error" if hooks else "info",
        )
    places = {(item.file, item.line): item for item in reversed(evidence.operations)}
    for source in evidence.sources:
        known = _modules(source)
        for owner, line in _calls(source):
            place = places.get((source.path, line))
            if owner in known and place is not None and (source.path, line) not in seen:
                yield Finding.at(
                    place,
                    f"forward() of {known[owner]} is called directly: hooks would not run",
                    evidence=f"{owner}.forward(...)",
                    severity="info",
                )


def _calls(source: Source) -> Iterator[tuple[str, int]]:
    """Yield whose forward is called, and where; `super()` is no one."""
    for node in walk(source.tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "forward"
        ):
            owner = ast.unparse(node.func.value)
            if not owner.startswith("super("):
                yield owner, node.lineno


def _owner(source: Source, line: int | None) -> str | None:
    return next((owner for owner, number in _calls(source) if number == line), None)


def _modules(source: Source) -> dict[str, str]:
    """Return the names that are given one of torch's modules, with its class."""
    found: dict[str, str] = {}
    own = _own_classes(source.tree)
    for node in walk(source.tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and len(node.targets) == 1:
            kind = _kind(node.value, own)
            if kind is not None:
                found[ast.unparse(node.targets[0])] = kind
    for node in walk(source.tree):
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            holder = ast.unparse(node.iter)
            if found.get(holder) in _HOLDERS:
                found.setdefault(node.target.id, f"a layer of {holder}")
    return found


def _kind(call: ast.expr, own: set[str]) -> str | None:
    """Return the class of the module that a call makes, also through a function around it."""
    if not isinstance(call, ast.Call):
        return None
    name = ast.unparse(call.func)
    first, _, last = name.rpartition(".")
    if name in own or (first in ("nn", "torch.nn") and last[:1].isupper()):
        return None if last in ("Parameter", "Buffer") else last
    if first.startswith(("nn.", "torch.nn.")) or last.endswith("_norm"):  # as spectral_norm(nn.Linear(4, 4))
        return _kind(call.args[0], own) if call.args else None
    return None


def _own_classes(tree: ast.Module) -> set[str]:
    """Return the names of modules that are imported from torch or defined here."""
    found = set()
    for node in walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "torch.nn":
            found |= {item.asname or item.name for item in node.names if item.name[:1].isupper()}
        elif isinstance(node, ast.ClassDef) and any(
            ast.unparse(base).endswith("Module") for base in node.bases
        ):
            found.add(node.name)
    return found


def make_edits(source: Source, finding: Finding) -> list[Edit]:
    """Call the module instead of its forward."""
    call = call_at(source, finding.line, name="forward")
    owner = call.func.value if call is not None and isinstance(call.func, ast.Attribute) else None
    if call is None or owner is None or text_of(source, owner).startswith("super("):
        return []
    return replace_node(source, call.func, text=text_of(source, owner))


BUGGY = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
norms = []
model.register_forward_hook(lambda module, given, output: norms.append(output.norm().item()))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(3):
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    loss = (model.forward(x) - x.sum(1, keepdim=True)).square().mean()  # expect: LOOP14
    loss.backward()
    optimizer.step()
"""

CLEAN = """
import torch
from torch import nn


class Net(nn.Sequential):
    def forward(self, x):
        return super().forward(x).tanh()

    def loss(self, x):
        return (self.forward(x) - x.mean(1, keepdim=True)).square().mean()


class Filter:
    def forward(self, x):  # no module
        return x.clamp(-2, 2)


torch.manual_seed(0)
model, limit = Net(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)), Filter()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(3):
    optimizer.zero_grad()
    model.loss(limit.forward(torch.randn(8, 4))).backward()
    optimizer.step()
"""

FIXED = BUGGY.replace("model.forward(x)", "model(x)")
