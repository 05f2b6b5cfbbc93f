"""Watching as `check` does it: not a bit changed, nothing kept alive, and no trouble on the way."""

import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.watch.test_zoo import QUICK, REST
from tests.watch.watching import SCRIPTS, Done, run, run_bare, run_watched
from truestep import watch
from truestep.check import check_plan
from truestep.watch.evidence.facts.loading import SamplesSeen, WorkerState
from truestep.watch.evidence.facts.optimizing import (
    GradientsApplied,
    GraphMeasured,
    SchedulerMade,
    SchedulerStep,
    StepSkipped,
)
from truestep.watch.evidence.facts.passes import LayersListed, PassExamined
from truestep.watch.evidence.facts.structure import CheckpointLoaded, ModelRefilled, ParametersListed
from truestep.watch.evidence.facts.surroundings import ReplicaDigested
from truestep.watch.inspect.data.inputs import _measure
from truestep.watch.inspect.data.samples import array_of
from truestep.watch.inspect.model import kept
from truestep.watch.inspect.probe.copies import replicate
from truestep.watch.inspect.training import gradients
from truestep.watch.script.tape import Tape

EXAMPLES = Path(__file__).parents[2] / "examples"
LOOPS = ("recompute", "scale", "search", "work", "penalise")


def check(script: Path, *arguments: str, folder: Path) -> tuple[Done, watch.Process]:
    """Run a script bare and as `check` does: it prints the same, and the evidence is whole."""
    bare = run_bare(script, *arguments, cwd=_new(folder / "bare"))
    assert bare.code == 0, bare.stderr
    kept = _new(folder / "evidence")
    done = run_watched(script, *arguments, folder=kept, plan=check_plan(), cwd=_new(folder / "watched"))
    assert (done.code, done.stdout) == (bare.code, bare.stdout)
    assert _without_times(done.stderr) == _without_times(bare.stderr)
    (process,) = watch.read(kept)
    assert process.troubles == []
    assert process.ended == "finished"
    assert (
        process.num_steps > 0
        and process.operations
        and _kinds(process) >= {ParametersListed, GradientsApplied, GraphMeasured}
    )
    return bare, process


def _without_times(text: str) -> str:
    lines = [line for line in text.splitlines() if "steps/s" not in line]  # those are printed by the clock
    lines = [re.sub(r"^[IWE]\d{4} [\d:.]+ \d+ ", "... ", line) for line in lines]  # torch's own log
    return re.sub(r"\d+\.\d s\b", "... s", "\n".join(lines))


def _new(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _kinds(process: watch.Process) -> set[type[watch.Facts]]:
    return {type(moment.facts) for moment in process.moments}


def test_loops_that_are_easily_disturbed_keep_their_bits(tmp_path: Path) -> None:
    bare, process = check(SCRIPTS / "inspected.py", *LOOPS, folder=tmp_path)
    assert [line.split()[0] for line in bare.stdout.splitlines() if " " in line] == list(LOOPS)
    assert {StepSkipped, SchedulerMade, WorkerState, SamplesSeen, LayersListed, PassExamined} <= _kinds(
        process
    )


@pytest.mark.parametrize("names", [("mlp", "gan"), pytest.param((*QUICK, *REST), marks=pytest.mark.slow)])
def test_zoo_keeps_its_bits(tmp_path: Path, names: tuple[str, ...]) -> None:
    script = SCRIPTS / "zoo_members.py"
    bare = run_bare(script, str(tmp_path / "bare"), *names)
    done = run_watched(
        script, str(tmp_path / "watched"), *names, folder=_new(tmp_path / "kept"), plan=check_plan()
    )
    assert done.code == bare.code == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(bare.stdout)
    assert set(json.loads(bare.stdout)) == set(names)
    (process,) = watch.read(tmp_path / "kept")
    assert process.troubles == [] and {ParametersListed, GradientsApplied} <= _kinds(process)


@pytest.mark.parametrize("num_steps", ["5", "200"])
def test_nothing_is_kept_alive(tmp_path: Path, num_steps: str) -> None:
    bare, _ = check(SCRIPTS / "inspected_memory.py", num_steps, folder=tmp_path)
    assert "alive 0 0 0 0" in bare.stdout


def test_compiled_model_stays_compiled_and_keeps_its_bits(tmp_path: Path) -> None:
    bare, _ = check(SCRIPTS / "compiled.py", folder=tmp_path)
    assert "unique_graphs" in bare.stdout


def test_company_of_other_modes_keeps_its_bits(tmp_path: Path) -> None:
    check(SCRIPTS / "look_company.py", folder=tmp_path)


def test_sharded_training_keeps_its_bits(tmp_path: Path) -> None:
    script = SCRIPTS / "look_parallel.py"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    bare = run([*launch, str(script)])
    assert bare.code == 0 and bare.stdout.startswith("digest"), bare.stderr
    done = run([*launch, "--no-python", *watch.command(script, plan=check_plan(), folder=tmp_path)])
    assert (done.code, done.stdout) == (0, bare.stdout), done.stderr
    processes = watch.read(tmp_path)
    assert [item.troubles for item in processes] == [[], [], []]
    assert all({ReplicaDigested, ParametersListed} <= _kinds(item) for item in processes)


@pytest.mark.slow
def test_own_example_keeps_its_bits(tmp_path: Path) -> None:
    check(EXAMPLES / "digits.py", folder=tmp_path)


GENERATOR = torch.Generator()


class Noisy(nn.Module):
    """Draws from whatever it is given."""

    def __init__(self, source: Any) -> None:
        super().__init__()
        self.inner, self.source = nn.Linear(3, 3), source

    def forward(self, x: Any) -> Any:
        return self.inner(x)


class Outside(Noisy):
    def forward(self, x: Any) -> Any:
        return x + torch.rand(3, generator=GENERATOR)


class Holder:
    def __init__(self) -> None:
        self.generator = torch.Generator()


@pytest.mark.parametrize(
    "source",
    [
        *(torch.Generator(), random.Random(1), np.random.default_rng(1), np.random.RandomState(1)),
        *([torch.Generator()], {"a": Holder()}, random.Random(1).random, np.random.default_rng(1).random),
    ],
)
def test_models_that_hold_generators_are_not_copied(source: Any) -> None:
    assert replicate(Noisy(source)) is None
    assert replicate(Noisy(None)) is not None
    assert replicate(Outside(None)) is None


def test_models_are_not_copied_where_a_pass_may_wait_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    assert replicate(nn.Linear(3, 3)) is None


def test_a_generator_of_the_models_own_keeps_its_bits(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(GENERATING)
    check(script, folder=tmp_path)


GENERATING = """\
import torch
from torch import nn

class Noisy(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 3)
        self.gen = torch.Generator().manual_seed(1)

    def forward(self, x):
        return self.inner(x + torch.randn(x.shape, generator=self.gen))

torch.manual_seed(0)
model = Noisy()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(16, 6), torch.randint(0, 3, (16,))
for _ in range(12):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
"""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64])
def test_what_was_read_can_still_be_resized(dtype: torch.dtype) -> None:
    x = torch.ones(4, 3, dtype=dtype)
    assert (array_of(x) != 0).all()
    x.resize_(100)


def test_inputs_that_were_read_can_still_be_resized() -> None:
    x = torch.ones(4, 3)
    measured = _measure(0, True, x, None)
    assert measured.spread is not None and measured.spread.mean == 1.0
    x.resize_(100)


def test_what_is_kept_of_loads_and_backward_passes_has_an_end(tmp_path: Path) -> None:
    tape = Tape(str(tmp_path), watch.Plan())
    file = CheckpointLoaded(*(None for _ in CheckpointLoaded._fields))  # type: ignore[arg-type]
    states, models = kept._States(tape), [nn.Linear(2, 2) for _ in range(kept._MAX_FILLED + 9)]
    for model in (*models, models[-1]):
        given: list[Any] = []
        states._give(model, {}, True, given)
        states._put(model, None, given[0][0], file)
    assert len(states._filled) == kept._MAX_FILLED
    assert [item.ref() for item in states._filled] == models[-kept._MAX_FILLED :]
    optimizer = torch.optim.SGD(models[0].parameters())
    book = gradients._Book(tape)
    page = book._page(optimizer)
    for number in range(gradients._MAX_PENDING + 9):
        page.clip_site = 1
        book._add(page, gradients._Pass(number, 0, True))
    assert len(page.pending) == gradients._MAX_PENDING and len(page.clips_inside) == 2
    tape.leave()


def test_two_threads_that_meet_a_kind_give_it_one_number(tmp_path: Path) -> None:
    tape = Tape(str(tmp_path), watch.Plan())
    key = (SchedulerStep, 0, (0, "StepLR"))
    assert tape._add_kind(key) == tape._add_kind(key)  # both have looked before one has added
    tape.leave()


NESTED_LOADS = """
import torch
from torch import nn

model, other = nn.Linear(2, 2), nn.Linear(2, 2).state_dict()
loads = []


def load_again(*_):
    if not loads:
        loads.append(1)
        model.load_state_dict(other)


model.register_load_state_dict_pre_hook(load_again)
model.load_state_dict(nn.Linear(2, 2).state_dict())
try:
    model.load_state_dict({})
except RuntimeError:
    pass
model.load_state_dict(other)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""


def test_a_load_that_raises_and_one_inside_of_another_are_each_noted_as_one(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(NESTED_LOADS)
    _, process = check(script, folder=tmp_path)
    assert [moment.line for moment in process.of(ModelRefilled)] == [12, 16, 21]
