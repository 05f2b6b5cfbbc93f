"""What goes wrong in watching is reported, and the script ends as it does alone."""

import ast
import json
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.watch.forked import run_forked
from truestep.watch import look, optimizer, wrap
from truestep.watch.tape import Tape

MANY = """
import hashlib, io, os, random, threading
from concurrent.futures import ThreadPoolExecutor
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
random.seed(3)
np.random.seed(3)
torch.set_rng_state(torch.get_rng_state())
torch.set_num_threads(1)
os.listdir("."), [entry.name for entry in os.scandir(".")]
model = nn.Sequential(nn.Conv1d(2, 4, 1), nn.Flatten(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
scaler = torch.amp.GradScaler("cpu")
loader = DataLoader(TensorDataset(torch.randn(24, 2, 2), torch.randint(0, 2, (24,))), 4)
thread = threading.Thread(target=lambda: torch.ones(2) + 1)
thread.start()
thread.join()
with ThreadPoolExecutor(1) as pool:
    print(pool.submit(lambda: (torch.ones(2) + 1).sum().item()).result())
for step, (x, y) in enumerate(loader):
    model.train(step % 2 == 0)
    x = x.to("cpu") + random.random() * np.random.rand()
    loss = nn.functional.cross_entropy(model(x), y)
    loss = loss + torch.autograd.grad(model(x).sum(), model[2].weight, create_graph=True)[0].pow(2).sum()
    optimizer.zero_grad() if step % 2 else model.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    nn.utils.clip_grad_value_(model.parameters(), 0.5)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    print(step, loss.item())
file = io.BytesIO()
torch.save(model.state_dict(), file)
file.seek(0)
model.load_state_dict(torch.load(file))
optimizer.load_state_dict(optimizer.state_dict())
scheduler.load_state_dict(scheduler.state_dict())
try:
    model(torch.zeros(3))
except RuntimeError as error:
    print(error)
print(hashlib.sha256(b"".join(item.detach().numpy().tobytes() for item in model.parameters())).hexdigest())
"""

FEW = """
import torch
weight = torch.ones(3, requires_grad=True)
for _ in range(3):
    (weight * torch.arange(3.0)).pow(2).sum().backward()
    with torch.no_grad():
        weight -= 0.1 * weight.grad
print(weight.tolist())
"""


class Injected(Exception):
    """An error of ours."""


def break_wrappers(when: str) -> Callable[[], None]:
    """Return what lets all wrappers fail, before they call what they wrap or after it."""
    wrappers: set[Any] = set()

    def guard(wrapper: Any, original: Any, **where: Any) -> Any:
        result = wrap_guard(wrapper, original, **where)
        wrappers.add(getattr(wrapper, "__func__", wrapper).__code__)
        return result

    def trace(frame: FrameType, event: str, _value: Any) -> Any:
        if frame.f_code not in wrappers:
            return None
        if event == "line" and (when == "before" or "result" in frame.f_locals):
            raise Injected
        return trace

    def note_trouble(*args: Any, **kwargs: Any) -> None:
        note(*args, **kwargs)
        sys.settrace(trace)  # Python takes one off that raises

    wrap_guard, note = wrap.guard, Tape.note_trouble

    def prepare() -> None:
        for module in (wrap, optimizer, look):
            module.guard = guard  # type: ignore[attr-defined]
        Tape.note_trouble = note_trouble  # type: ignore[method-assign]
        threading.settrace(trace)
        sys.settrace(trace)

    return prepare


@pytest.mark.parametrize(("when", "least"), [("before", 30), ("after", 30)])
def test_wrappers_that_fail_change_nothing_and_are_reported(when: str, least: int) -> None:
    bare = run_forked(MANY)
    assert not bare.code, bare.output
    watched = run_forked(MANY, break_wrappers(when), is_watched=True)
    assert (watched.code, watched.output) == (bare.code, bare.output)
    assert watched.process is not None
    off = [text for text in watched.process.switched_off if "Injected" in text]
    assert len(off) >= least, off


def test_nothing_is_reported_where_nothing_fails() -> None:
    bare, watched = run_forked(MANY), run_forked(MANY, is_watched=True)
    assert (watched.code, watched.output) == (bare.code, bare.output)
    assert watched.process is not None
    assert not watched.process.troubles


def find_places() -> list[tuple[Any, str]]:
    """Return owner and name of all that is wrapped in others' packages."""
    found: list[tuple[Any, str]] = []
    put = wrap.Wraps.put

    def seen(self: Any, name: str, make: Any, *owners: Any) -> None:
        found.extend((owner, name) for owner in owners)
        put(self, name, make, *owners)

    def prepare() -> None:
        wrap.Wraps.put = seen  # type: ignore[method-assign]

    def tell() -> None:
        print(
            json.dumps(
                [
                    (owner.__module__ if isinstance(owner, type) else "", owner.__name__, name)
                    for owner, name in found
                ]
            )
        )

    ended = run_forked("", prepare, is_watched=True, at_end=tell)
    places = []
    for module, owner, name in json.loads(ended.output):
        if module.startswith("truestep"):  # whether it is imported depends on the tests before
            continue
        places.append((getattr(sys.modules[module], owner) if module else sys.modules[owner], name))
    return list(dict.fromkeys(places))


def _named(place: tuple[Any, str]) -> tuple[str, str]:
    return place[0].__name__, place[1]


def remove(places: list[tuple[Any, str]]) -> Callable[[], None]:
    def prepare() -> None:
        for owner, name in places:
            if name in vars(owner):
                delattr(owner, name)

    return prepare


def find_spare(places: list[tuple[Any, str]]) -> list[tuple[Any, str]]:
    """Return those without which the script runs."""
    if not run_forked(FEW, remove(places)).code:
        return places
    half = len(places) // 2
    return [*find_spare(places[:half]), *find_spare(places[half:])] if half else []


def test_names_that_are_missing_change_nothing_and_are_reported() -> None:
    """As in a version of torch that has no such name: whatever a script can do without is taken away."""
    places = find_places()
    spare = find_spare(places)
    bare, watched = run_forked(FEW, remove(spare)), run_forked(FEW, remove(spare), is_watched=True)
    assert (watched.code, watched.output) == (bare.code, bare.output) and not bare.code
    assert watched.process is not None
    missing = [text for text in watched.process.switched_off if "AttributeError" in text]
    assert len(spare) > 30, (len(places), len(spare))
    assert len(missing) > 30, missing


ENGINE = """
import _thread, functools, operator, time
import torch
mode = torch._C._get_dispatch_stack_at(0) if torch._C._len_torch_dispatch_stack() else None
x, calls = torch.ones(3), []
if mode is not None:  # as autograd's threads inherit it, which have no frame of Python's either
    calls.append(functools.partial(torch._C._push_on_torch_dispatch_stack, mode))
calls += [functools.partial(x.mul_, 2), functools.partial(x.add_, 1)]
_thread.start_new_thread(list, (map(operator.call, calls),))
while x[0] != 3:
    time.sleep(0.01)
print(x.tolist())
"""


def test_operations_of_a_thread_without_frames_are_observed() -> None:
    """Backward passes on any device but the CPU run in such threads."""
    bare, watched = run_forked(ENGINE), run_forked(ENGINE, is_watched=True)
    assert (watched.code, watched.output) == (bare.code, bare.output)
    assert watched.process is not None
    assert not watched.process.troubles
    assert {"aten.mul_.Tensor", "aten.add_.Tensor"} <= {item.name for item in watched.process.operations}


def calls_of(name: str, body: list[ast.stmt], *, is_inside: bool = False) -> Iterator[bool]:
    """Yield for each call of a name whether it is made where its errors are handed on."""
    for statement in body:
        if isinstance(statement, ast.Try):
            drops = any("drop_frame(error)" in ast.unparse(handler) for handler in statement.handlers)
            yield from calls_of(name, statement.body, is_inside=is_inside or drops)
            yield from calls_of(name, statement.finalbody)
        elif isinstance(statement, ast.If | ast.With):
            yield from calls_of(name, statement.body, is_inside=is_inside)
            yield from calls_of(name, getattr(statement, "orelse", []), is_inside=is_inside)
        else:
            text = ast.unparse(statement)
            if text.startswith(f"{name}(") or f" {name}(" in text:
                yield is_inside and text.startswith((f"result = {name}(", f"return {name}(", f"{name}("))


def find_wrappers() -> Iterator[tuple[str, str, ast.FunctionDef]]:
    """Yield file, name of what is wrapped, and the wrapper, of all functions that return one."""
    for path in sorted(Path(wrap.__file__).parent.rglob("*.py")):
        tree = ast.parse(path.read_text())
        for outer in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
            inner = {node.name: node for node in outer.body if isinstance(node, ast.FunctionDef)}
            last = outer.body[-1]
            returned = getattr(last.value, "id", "") if isinstance(last, ast.Return) else ""
            if outer.args.args and returned in inner:
                yield path.name, outer.args.args[0].arg, inner[returned]


def test_wrappers_hand_on_errors_and_keep_results_as_the_guard_needs_them() -> None:
    num = 0
    for file, name, wrapper in find_wrappers():
        calls = [*calls_of(name, wrapper.body)]
        num += bool(calls)
        if file not in ("hold.py", "threads.py", "vary.py", "wrap.py"):  # they change something on purpose
            assert all(calls), f"{file}:{wrapper.lineno}"
    assert num > 30
