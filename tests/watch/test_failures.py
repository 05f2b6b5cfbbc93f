"""What goes wrong in watching is reported, and the script ends as it does alone."""

import contextlib
import importlib
import json
import pkgutil
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.watch.forked import run_forked
from truestep import tune, watch
from truestep.watch.hooks import engine, events, steps
from truestep.watch.hooks import table as hooks
from truestep.watch.script import import_hooks

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


def break_observers(when: str) -> Callable[[], None]:
    """Return what lets all observers fail, before the function that they observe or after it."""
    observing = hooks.observing

    def break_one(observe: Any, original: Any, hook: Any, *, tape: Any) -> Any:
        def fail(*args: Any, **kwargs: Any) -> Any:
            pending = None if when == "before" else observe(*args, **kwargs)
            if pending is None:
                raise Injected
            return fail_later(pending)

        return observing(fail, original, hook, tape=tape)

    def fail_later(pending: Any) -> Any:
        result = yield pending.send(None)
        with contextlib.suppress(StopIteration):
            pending.send(result)
        raise Injected

    def fail_at_step(*_: Any, **__: Any) -> None:
        raise Injected

    def prepare() -> None:
        hooks.observing = break_one
        setattr(steps.Steps, "_observe" if when == "before" else "_note", fail_at_step)

    return prepare


@pytest.mark.parametrize(("when", "least"), [("before", 30), ("after", 20)])
def test_observers_that_fail_change_nothing_and_are_reported(when: str, least: int) -> None:
    bare = run_forked(MANY)
    assert not bare.code, bare.output
    watched = run_forked(MANY, break_observers(when), is_watched=True)
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
    """Return owner and name of all that is hooked in others' packages."""
    assert engine  # imported before anything is taken away
    found: list[str] = []
    put = hooks._set

    def seen(owner: Any, name: str, made: Any) -> None:
        found.append(f"{getattr(owner, '__module__', '')}:{owner.__name__}:{name}")
        put(owner, name, made)

    def prepare() -> None:
        hooks._set = seen

    ended = run_forked("", prepare, is_watched=True, at_end=lambda: print(json.dumps(found)))
    places = []
    for module, owner, name in (place.split(":") for place in json.loads(ended.output)):
        if module.startswith("truestep"):  # whether it is imported depends on the tests before
            continue
        places.append((getattr(sys.modules[module], owner) if module else sys.modules[owner], name))
    return list(dict.fromkeys(places))


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


def all_hooks() -> Iterator[hooks.Hook]:
    """Yield the hooks of all tables."""
    for rows in events.EVENTS.values():
        yield from rows
    for package in (watch, tune):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            for table in vars(importlib.import_module(found.name)).values():
                if isinstance(table, tuple) and table and isinstance(table[0], hooks.Hook):
                    yield from table


def test_every_hook_names_a_function_that_is_there() -> None:
    for name in {*import_hooks._OBSERVERS, *events.EVENTS} - {"numpy:digests"}:
        importlib.import_module(name)
    found = [*all_hooks()]
    assert len(found) > 60
    for hook in found:
        for target in (hook.target, *hook.also):
            owner, name = hooks.resolve(target)
            assert callable(getattr(owner, name)), target
        if isinstance(hook.act, str):
            home, _, act = hook.act.partition(":")
            owner, name = hooks.resolve(f"truestep.watch.hooks.{home}.{act}")
            assert callable(getattr(owner, name)), hook.act
