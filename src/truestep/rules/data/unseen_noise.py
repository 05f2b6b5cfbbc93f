"""The model never sees the noise that was drawn for it.

## What it finds
Noise that is mixed into the input, while the loss compares the output with another draw of the same shape
that is used nowhere else. It also finds a noisy version of the input that is computed in each step and never
used, while the model gets the clean input. The rule follows the operations of the first steps. Random data of
a test script are not reported.

## Why it matters
A denoiser learns from the noise that it was given. Compared with other noise, the best that it can predict is
zero. With the clean input, it learns to copy. The loss looks plausible in both cases, and samples or restored
data are bad.

## How to fix
Draw once and keep it: `noise = torch.randn_like(x)`, mix this `noise` into the input, and compare with it.
Pass the noisy version to the model.
"""

import ast
from collections.abc import Iterable, Iterator
from math import prod

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.analysis.flow import OperationGraph, place_of
from truestep.rules.analysis.places import Function, calls, covers, scopes_of
from truestep.rules.analysis.syntax import walk
from truestep.watch import Operation
from truestep.watch.evidence.facts.passes import BackwardPass
from truestep.watch.evidence.operation import In

RULE = Meta(
    code="DATA15",
    severity="error",
    needs=(BackwardPass,),
    fix="Draw the noise once: mix it into what the model is given, and compare with the same tensor.",
)
_NORMAL = frozenset({"randn", "randn_like", "normal", "normal_"})
_LOSSES = frozenset(
    f"aten.{name}.default" for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
)
_POWERS = frozenset({"aten.pow.Tensor_Scalar", "aten.square.default", "aten.abs.default"})
_SCALING = frozenset({"aten.mul.Tensor", "aten.mul.Scalar", "aten.div.Tensor"})
_ADDING = frozenset({"aten.add.Tensor", "aten.sub.Tensor"})
_CLAMPING = frozenset({"aten.clamp.default", "aten.clamp_min.default", "aten.clamp_max.default"})
_INDEXING = frozenset({"aten.index.Tensor", "aten.index_select.default", "aten.embedding.default"})
_LEAST_STEPS, _LEAST_AXES = 2, 2


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find noise in the target that is not in the input, and noisy inputs that nothing reads."""
    flow = evidence.flow
    found: dict[tuple[str | None, int | None], list[tuple[Operation, Operation]]] = {}
    for loss in flow.all:
        mixed = _find_other_noise(flow, loss)
        target = flow.maker(loss.ins[1]) if mixed is not None else None
        if mixed is not None and target is not None:
            found.setdefault((target.file, target.line), []).append((target, mixed))
    for pairs in found.values():
        if len({target.step for target, _ in pairs}) >= _LEAST_STEPS:
            target, mixed = pairs[0]
            yield Finding.at(
                target,
                "the target is new noise, not the noise that was mixed into the input",
                count=len(pairs),
                evidence=f"noise of shape {tuple(target.outs[0].shape)} was drawn at line {target.line} and "
                f"used in the loss alone; the input got another draw {place_of(mixed, target.file)}",
            )
    yield from _find_unused(evidence, flow)


def _is_noise(item: Operation | None) -> bool:
    if item is None or not item.is_random or item.phase == "forward":
        return False
    return item.name.removeprefix("aten.").partition(".")[0] in _NORMAL and bool(item.outs)


def _find_other_noise(flow: OperationGraph, loss: Operation) -> Operation | None:
    """Return the noise in the input of a loss whose target is noise of no other use."""
    if len(loss.ins) != 2 or not loss.ins[0].has_grad or loss.ins[0].shape != loss.ins[1].shape:
        return None
    is_square = loss.name == "aten.sub.Tensor" and any(user.name in _POWERS for user in flow.users(loss))
    target = flow.maker(loss.ins[1])
    if target is None or not (is_square or loss.name in _LOSSES):
        return None
    if not _is_noise(target) or flow.users(target) != [loss] or target.step != loss.step:
        return None
    before = flow.before(loss.ins[0], _kept)
    shape = loss.ins[1].shape
    noises = [item for item in before if _is_noise(item) and item.outs[0].shape == shape]
    mixed = [item for item in noises if item.step == loss.step and _mixed_with(flow, item) is not None]
    # All noise in the input must be of this kind: data may be noise too, in a test of shapes.
    return mixed[0] if len(mixed) == 1 and len(noises) == 1 and len(shape) >= _LEAST_AXES else None


def _kept(item: Operation) -> Iterable[In]:
    """Return the inputs whose values are in a result: of `randn_like` none, of an index what it reads."""
    if item.is_random:
        return ()
    return item.ins[:1] if item.name in _INDEXING else item.ins


def _mixed_with(flow: OperationGraph, noise: Operation) -> Operation | None:
    """Return the sum of noise, perhaps scaled, and data that are not drawn; None if it has other uses."""
    part, users = noise, flow.users(noise)
    if len(users) == 1 and users[0].name in _SCALING:
        part, users = users[0], flow.users(users[0])
    if len(users) != 1 or users[0].name not in _ADDING or len(users[0].ins) != 2:
        return None
    total = users[0]
    data = [given for given in total.ins if given.producer != part.index]
    if len(data) != 1 or data[0].has_grad or data[0].shape != noise.outs[0].shape != ():
        return None
    size = prod(data[0].shape)
    drawn = [item for item in flow.before(data[0], _kept) if item.is_random and item.outs]
    is_made_up = any(prod(item.outs[0].shape) >= size for item in drawn)
    return None if is_made_up or total.phase == "forward" else total


def _find_unused(evidence: Evidence, flow: OperationGraph) -> Iterator[Finding]:
    """Find noisy inputs that nothing reads, neither a tensor operation nor a line of the source."""
    found: dict[tuple[str, int, str], set[int]] = {}
    for noise in flow.all:
        total = _mixed_with(flow, noise) if _is_noise(noise) else None
        if total is None or not _is_dead(flow, total) or not _is_trained_clean(flow, total):
            continue
        place = _unused_at(evidence, total)
        if place is not None:
            found.setdefault(place, set()).add(total.step)
    for (file, line, name), steps in found.items():
        if len(steps) >= _LEAST_STEPS:
            yield Finding(
                message=f"the noisy input `{name}` is never used: the model gets the clean one",
                file=file,
                line=line,
                step=min(steps) + 1,
                count=len(steps),
                evidence=f"in {len(steps)} steps, noise was added to the input of the model and no operation "
                f"used the result; no line reads `{name}`",
                fix=f"Pass `{name}` to the model instead of the clean input.",
            )


def _is_dead(flow: OperationGraph, item: Operation) -> bool:
    users = flow.users(item)
    while len(users) == 1 and users[0].name in _CLAMPING:
        users = flow.users(users[0])
    return not users


def _is_trained_clean(flow: OperationGraph, total: Operation) -> bool:
    """Whether a model that is trained is given the data without their noise."""
    producers = {
        given.producer for given in total.ins if (maker := flow.maker(given)) and not _is_part(maker)
    }
    return any(
        item.phase == "forward"
        and item.step == total.step
        and not item.in_evaluation
        and any(given.producer in producers for given in item.ins)
        and any(given.has_grad for given in item.ins)
        for item in flow.all
    )


def _is_part(maker: Operation) -> bool:
    """Whether it is the noise of a sum, perhaps scaled."""
    return _is_noise(maker) or maker.name in _SCALING


def _unused_at(evidence: Evidence, total: Operation) -> tuple[str, int, str] | None:
    """Return file, line and name of the variable that holds a sum, if nothing reads it."""
    own = evidence.source(total.file)
    if own is None:
        return None
    around = [node for node in walk(own.tree) if isinstance(node, Function) and covers(node, total.line)]
    inner = max(around, key=lambda node: node.lineno).name if around else None
    is_returned = any(isinstance(node, ast.Return) and covers(node, total.line) for node in walk(own.tree))
    for source in evidence.sources:
        made = {id(call) for call in calls(source.tree, inner)} if inner and is_returned else set()
        for scope in scopes_of(source.tree):
            for node in walk(scope):
                if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
                    continue
                is_here = source is own and not is_returned and covers(node, total.line)
                name = node.targets[0].id
                if len(node.targets) == 1 and (is_here or id(node.value) in made) and _is_unread(scope, name):
                    return source.path, node.lineno, name
    return None


def _is_unread(scope: ast.AST, name: str) -> bool:
    """Whether a function, or a whole file, never reads a variable."""
    for node in walk(scope):
        is_read = isinstance(node, ast.Name) and node.id == name and not isinstance(node.ctx, ast.Store)
        is_shared = isinstance(node, ast.Global | ast.Nonlocal) and name in node.names
        is_hidden = isinstance(node, ast.Name) and node.id in ("locals", "globals", "vars", "eval", "exec")
        if is_read or is_shared or is_hidden:
            return False
    return not name.startswith("_")


BUGGY = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
turn = torch.linspace(0, 6.28, 64)
points = torch.stack([turn.cos(), turn.sin()], 1)
model = nn.Sequential(nn.Linear(3, 32), nn.SiLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    share = torch.rand(64, 1)
    noise = torch.randn_like(points)
    noisy = (1 - share).sqrt() * points + share.sqrt() * noise
    predicted = model(torch.cat([noisy, share], 1))
    loss = F.mse_loss(predicted, torch.randn_like(points))  # expect: DATA15
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

CLEAN = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
turn = torch.linspace(0, 6.28, 64)
points = torch.stack([turn.cos(), turn.sin()], 1)
model = nn.Sequential(nn.Linear(2, 32), nn.SiLU(), nn.Linear(32, 2))
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    noisy = points + 0.1 * torch.randn_like(points)
    target = points + 0.1 * torch.randn_like(points)  # noise2noise
    jittered = points + 0.1 * torch.randn_like(points)
    steady = (model(points) - model(jittered)).square().mean()
    loss = F.mse_loss(model(noisy), target) + 0.1 * steady
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FIXED = BUGGY.replace("torch.randn_like(points))  # expect: DATA15", "noise)")
