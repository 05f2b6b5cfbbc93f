"""Probes pass a batch through the model once more, and the script cannot tell."""

import ctypes
import json
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch

from tests.watch.forked import Ended, run_forked
from truestep.base.memory import process_peak_bytes, room_bytes
from truestep.watch.evidence.facts.passes import LayerActivity
from truestep.watch.inspect.probe.copies import run
from truestep.watch.inspect.probe.forked_copy import ApartError, run_apart
from truestep.watch.inspect.probe.outputs import measure_moves

LOOP = """
import logging, random, sys, threading, time
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
calls, anneal = 0, [0]
open("kept.log", "w").write("kept\\n")
log = open("log", "a", buffering=1)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 16)
        self.outer = nn.Linear(16, 3)
        self.anneal = anneal
    def forward(self, x):
        global calls
        calls += 1
        self.anneal[0] += 1
{body}
        return self.outer(torch.relu(self.inner(x))) * (1 + 0.1 * calls)

model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
{before}
for x, y in DataLoader(data, batch_size=8):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
{after}
print(calls, anneal, model.outer.weight.sum().item(), torch.rand(1).item(), random.random() < 2)
print(open("log").read(), open("kept.log").read())
"""

BODIES = {
    "counts": "        pass",
    "prints": "        print('f', calls, flush=True); sys.stderr.write('f'); sys.__stdout__.write('x')",
    "logs": "        log.write(f'{calls}\\n')",
    "opens files": "        open('kept.log', 'a').write('again')",
    "empties files": "        torch.is_grad_enabled() or open('kept.log', 'w')",
    "starts processes": "        __import__('subprocess').run('echo again >> kept.log', shell=True)",
    "draws": "        x = x + torch.rand(1) * random.random() * np.random.rand()",
    "waits": "        time.sleep(0.001)",
    "ends": "        torch.is_grad_enabled() or sys.exit(3)",
    "hooks": "        x.requires_grad or None",
}


def run_both(body: str, before: str = "", after: str = "") -> tuple[Ended, Ended]:
    text = LOOP.replace("{body}", body).replace("{before}", before).replace("{after}", after)
    return run_forked(text), run_forked(text, is_watched=True)


@pytest.mark.parametrize("body", BODIES)
def test_probes_change_nothing_that_the_script_can_see(body: str) -> None:
    bare, watched = run_both("        random.seed(0); np.random.seed(0)\n" + BODIES[body])
    assert not bare.code, bare.output
    assert (watched.code, watched.output) == (bare.code, bare.output)
    assert watched.process is not None
    assert watched.process.num_steps == 12
    is_stopped = body in ("opens files", "starts processes", "ends", "empties files")
    assert any(isinstance(moment.facts, LayerActivity) for moment in watched.process.moments) or is_stopped
    assert bool(watched.process.troubles) == is_stopped
    assert not watched.process.switched_off


def test_threads_of_the_script_print_on_while_a_probe_is_made() -> None:
    before = """
ticks, stop = [], False
def work():
    while not stop:
        ticks.append(1); print("tick", flush=True); time.sleep(0.002)
thread = threading.Thread(target=work); thread.start()
"""
    after = "stop = True; thread.join(); print('TICKS', len(ticks))"
    _, watched = run_both("        time.sleep(0.01)", before, after)
    num = int(watched.output.partition("TICKS ")[2].split()[0])
    assert watched.output.count("tick") == num


def test_copies_that_fail_are_reported() -> None:
    assert run_apart(lambda: [1, {"a": (2, None)}]) == json.loads('[1, {"a": [2, null]}]')
    with pytest.raises(ApartError, match="ZeroDivisionError"):
        run_apart(lambda: 1 / 0)
    with pytest.raises(ApartError, match="killed"):
        run_apart(lambda: __import__("os")._exit(9))


def test_a_copy_takes_no_more_memory_than_fits_below_the_peak() -> None:
    held = torch.ones(process_peak_bytes() + 2**28, dtype=torch.uint8)  # what a step needs at times
    del held
    torch.ones(2**22)  # glibc takes less than that from its heap from now on
    pieces = [torch.ones(2**17) for _ in range(400)]
    pieces = [piece for number, piece in enumerate(pieces) if number % 8 == 0]  # 175 MiB lie free there
    room = room_bytes()
    assert room is not None
    assert room > 2**28
    assert run_apart(lambda: len(torch.ones(room // 8))) == room // 8
    for few in (2**20, 2**17):  # the second could be taken from what is free
        with pytest.raises(ApartError, match=r"not checked: .* peak of memory"):
            run_apart(lambda few=few: len([torch.ones(few) for _ in range(room // few // 4 + 50)]))
    del pieces
    assert run_apart(lambda: len(torch.ones(room // 2)), is_small=False) == room // 2

    def look() -> int:
        with suppress(Exception):  # as a probe that tries another call
            run(torch.nn.Upsample(scale_factor=room // 2**10), ((torch.ones(1, 1, 2**10),), {}))
        return 0

    with pytest.raises(ApartError, match=r"not checked: .* peak of memory"):
        run_apart(look)


def test_a_copy_is_limited_where_glibc_cannot_tell_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    libc = ctypes.CDLL(None)
    old = SimpleNamespace(mallopt=libc.mallopt, malloc_trim=libc.malloc_trim)  # as before glibc 2.33
    monkeypatch.setattr("truestep.base.memory.ctypes.CDLL", lambda _name: old)
    room = room_bytes()
    assert room is not None
    with pytest.raises(ApartError, match=r"not checked: .* peak of memory"):
        run_apart(lambda: len(torch.ones(room // 2)))


def test_moves_are_measured_entry_by_entry() -> None:
    torch.manual_seed(0)
    before = torch.randn(5, 3, 1000)
    after = before.clone()
    after[2] += 0.5
    for one, two in ((before, after), (before.bfloat16(), after.bfloat16())):
        whole = (two.double() - one.double()).abs() / (one.double().std() + 1e-12)
        assert torch.allclose(measure_moves(one, two), whole.flatten(1).amax(1))
    assert measure_moves(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0])).tolist()[0] == 0.0
    assert measure_moves(torch.tensor([1.0, float("nan")]), torch.tensor([1.0, 2.0])).tolist() == [0.0, 0.0]
