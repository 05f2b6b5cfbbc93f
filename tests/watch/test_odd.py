"""`truestep check` changes nothing about a script: odd ones print, write and end as they do alone."""

import signal
from pathlib import Path

import pytest

from tests.watch.both import Case, odd_cases, run, try_case
from tests.watch.forked import run_forked
from truestep.watch.inspect.probe import probes

CASES = {case.name: case for case in odd_cases()}
TICKING = "printing_thread"
SLOW = [case.name for case in CASES.values() if case.said("slow") is not None]
FAST = [name for name in CASES if name not in (*SLOW, TICKING)]
NO_STEPS = ("excepthook", "limits", "thread_errors")
"""Scripts in which no step of an optimizer ends, or nobody may write so much."""


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_an_odd_script_cannot_tell_that_it_is_watched(tmp_path: Path, name: str) -> None:
    differing, bare, watched = try_case(CASES[name], tmp_path)
    assert not differing, "\n".join(differing)
    assert bare.stdout or bare.code
    assert watched.switched_off == ()
    assert watched.num_steps or name in NO_STEPS


def test_no_line_of_another_thread_is_lost(tmp_path: Path) -> None:
    watched = run(CASES[TICKING], tmp_path, is_watched=True)
    lines = watched.stdout.splitlines()
    assert (watched.code, watched.stderr, watched.num_steps) == (0, "", 8)
    assert len(lines) > 8 and lines == [f"tick {number}" for number in range(len(lines))]


VISIBLE = """
import os, sys, weakref
import torch
from torch import nn
from training import batches, small

def depth():
    frame, number = sys._getframe(1), 0
    while frame.f_code.co_name != "<module>":
        frame, number = frame.f_back, number + 1
    return number

class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = small()
    def forward(self, x):
        self.depth = depth()
        return self.inner(x)

model = Deep()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in batches(3):
    optimizer.zero_grad()
    out = model(x)
    loss = nn.functional.cross_entropy(out, y)
    loss.backward()
    optimizer.step()
print("frames", model.depth)
print("modules", len([name for name in sys.modules if name.startswith("truestep")]) > 0)
print("finders", len(sys.meta_path))
print("functions", nn.Module.__call__ is nn.Module._wrapped_call_impl, nn.Module.train.__code__.co_filename)
print("metadata", loss.grad_fn.metadata != {})
print("weak references", weakref.getweakrefcount(model), weakref.getweakrefcount(model.inner[0].weight))
print("registered hooks", len(nn.modules.module._global_module_registration_hooks))
print("references", sys.getrefcount(model), sys.getrefcount(loss), sys.getrefcount(x))
print("descriptors", len(os.listdir("/proc/self/fd")))
print("attributes", sorted(vars(model)), sorted(vars(optimizer)))
"""
SEEN = {"frames", "finders", "functions", "metadata", "weak references", "registered hooks"}
"""What docs/check.md names as visible; modules of ours are there in tests without watching too."""


def test_a_script_that_looks_for_it_sees_what_the_docs_name_and_no_more(tmp_path: Path) -> None:
    case = Case(name="visible", text=VISIBLE)
    bare, watched = (run(case, tmp_path, is_watched=is_watched) for is_watched in (False, True))
    assert (bare.code, watched.code) == (0, 0), bare.stderr + watched.stderr
    pairs = zip(bare.stdout.splitlines(), watched.stdout.splitlines(), strict=True)
    differing = {alone for alone, together in pairs if alone != together}
    assert {name for name in SEEN if any(line.startswith(name) for line in differing)} == SEEN
    assert len(differing) == len(SEEN)


LATE = """
import signal
import torch
from torch import nn

def stop(number, frame):
    raise TimeoutError("late")

signal.signal(signal.SIGUSR1, stop)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    try:
        optimizer.zero_grad()
        model(torch.randn(8, 4)).sum().backward()
        optimizer.step()
    except TimeoutError as error:
        print(step, error)
"""


def test_an_error_that_a_handler_of_signals_raises_in_our_code_reaches_the_script() -> None:
    def prepare() -> None:
        probes.run_apart = lambda _: signal.raise_signal(signal.SIGUSR1)

    assert run_forked(LATE).output == ""
    watched = run_forked(LATE, prepare, is_watched=True)
    assert (watched.code, watched.output) == (0, "2 late\n7 late\n")
    assert watched.process is not None
    assert (watched.process.num_steps, watched.process.switched_off) == (9, [])
