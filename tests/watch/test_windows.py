"""Windows: what `check` costs between them, and how soon it reports a mistake that begins late."""

from pathlib import Path

import pytest

from tests.gathering import judged
from tests.watch.watching import run_bare, run_watched, write
from truestep import watch
from truestep.check import check_plan
from truestep.watch.evidence.facts.optimizing import GradientsApplied, LossLevel, OptimizerStep
from truestep.watch.evidence.facts.passes import BackwardPass

BEGINS = 600
LOOP = """
import sys
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

torch.manual_seed(0)
layers = [nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)]
model = nn.Sequential(*layers)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(4096, 8)
y = x.sum(1, keepdim=True)
held_out = x[:100]
{start}
for step in range({num_steps}):
    batch = torch.randint(0, 4096, (16,))
    loss = nn.functional.mse_loss(model(x[batch]), y[batch])
    {before}
    loss.backward()
    {after}
    optimizer.step()
    {end}
"""
"""A loop without a mistake, and places for one."""
USUAL = {"start": "pass", "before": "optimizer.zero_grad()", "after": "pass", "end": "pass"}
COUNTING = """
counts, num = [], 0
def count(frame, event, _):
    global num
    num += event == "call" and "truestep" in frame.f_code.co_filename
sys.setprofile(count)
"""
ENDS_STEP = """
    counts.append(num)
    num = 0
    if step == 1015:
        sys.setprofile(None)
        print(sorted(counts[16:])[len(counts) // 2], sum(counts[16:]) / len(counts[16:]))
"""
EVALUATE = """
        with torch.no_grad():
            error = nn.functional.mse_loss(model(held_out), y[:100]).item()
"""


def script_of(folder: Path, *, num_steps: int = 1000, **places: str) -> Path:
    """Write the loop, with something else at some places."""
    return write(folder, LOOP.format(num_steps=num_steps, **USUAL | places))


@pytest.fixture
def plan() -> watch.Plan:
    return check_plan()


def output_of(script: Path, folder: Path, plan: watch.Plan) -> str:
    done = run_watched(script, folder=folder, plan=plan)
    assert (done.code, done.stderr) == (0, "")
    (process,) = watch.read(folder)
    assert process.troubles == []
    return done.stdout


@pytest.mark.parametrize(
    ("after", "most", "most_in_the_mean"),
    # Clipping enters `no_grad` five times.
    [("pass", 4, 20), ("clip_grad_norm_(model.parameters(), 1.0)", 10, 25)],
)
def test_between_windows_a_step_costs_five_calls(
    tmp_path: Path, plan: watch.Plan, after: str, most: int, most_in_the_mean: int
) -> None:
    script = script_of(tmp_path, num_steps=1016, start=COUNTING, after=after, end=ENDS_STEP)
    usual, mean = map(float, output_of(script, tmp_path, plan).split())
    assert usual <= most
    assert mean <= most_in_the_mean


def test_a_part_of_a_process_costs_as_little_between_windows(tmp_path: Path) -> None:
    begin = "import truestep; part = truestep.checking(); part.__enter__()"
    script = script_of(tmp_path, num_steps=1016, start=f"{begin}\n{COUNTING}", end=ENDS_STEP)
    done = run_bare(script)
    assert (done.code, done.stderr) == (0, "")
    usual, mean = map(float, done.stdout.split())
    assert usual <= 4
    assert mean <= 20


def test_between_windows_the_functions_are_torchs_own(tmp_path: Path, plan: watch.Plan) -> None:
    functions = "(nn.Module.__call__, torch.autograd.backward, nn.Module.zero_grad, clip_grad_norm_)"
    show = f"step in (10, 20, 255) and print([hasattr(item, '__wrapped__') for item in {functions}])"
    bare = "[False, False, False, True]"  # torch has a decorator of its own around the last one
    kept = output_of(script_of(tmp_path, num_steps=300, end=show), tmp_path, plan).splitlines()
    assert kept[1] == bare
    assert kept[0] == kept[2] == "[True, True, True, True]"


def test_a_function_of_the_scripts_around_ours_stays(tmp_path: Path, plan: watch.Plan) -> None:
    start = "own = nn.Module.__call__\nnn.Module.__call__ = lambda *args, **kwargs: own(*args, **kwargs)"
    end = "step in (10, 20, 254) and print(nn.Module.__call__.__name__)"
    assert output_of(script_of(tmp_path, num_steps=300, start=start, end=end), tmp_path, plan).split() == [
        "<lambda>",
        "<lambda>",
        "<lambda>",
    ]


def test_every_step_is_counted_and_the_passes_of_some_are_noted(tmp_path: Path, plan: watch.Plan) -> None:
    output_of(script_of(tmp_path, num_steps=600), tmp_path, plan)
    (process,) = watch.read(tmp_path)
    assert process.num_steps == len(process.of(OptimizerStep)) == 600
    observed = {moment.step for moment in process.of(BackwardPass)}
    windows = {
        *range(16),
        *range(30, 34),
        *range(62, 66),
        *range(126, 130),
        *range(252, 260),
        *range(508, 516),
    }
    assert observed == windows
    assert {moment.step for moment in process.of(LossLevel)} == {*range(16), *range(16, 600, 16)}
    assert all(len(moment.facts.passes) == 1 for moment in process.of(GradientsApplied))


def test_the_last_steps_are_observed_if_their_number_is_given(tmp_path: Path) -> None:
    output_of(script_of(tmp_path), tmp_path, check_plan(100))
    (process,) = watch.read(tmp_path)
    assert process.num_steps == 100
    assert {moment.step for moment in process.of(BackwardPass)} >= {96, 97, 98, 99}


def test_steps_inside_of_steps_and_in_threads_are_counted_once(tmp_path: Path, plan: watch.Plan) -> None:
    script = """
    import threading
    import torch

    class Around(torch.optim.SGD):
        def step(self, closure=None):
            inner.step()
            return super().step(closure)

    x = torch.nn.Parameter(torch.ones(3))
    inner = torch.optim.SGD([x], lr=0.01)
    optimizer = Around([x], lr=0.01)

    def train():
        for _ in range(50):
            optimizer.zero_grad()
            (x * x).sum().backward()
            optimizer.step()

    for _ in range(2):
        thread = threading.Thread(target=train)
        thread.start()
        thread.join()
    """
    output_of(write(tmp_path, script), tmp_path, plan)
    (process,) = watch.read(tmp_path)
    assert process.num_steps == 100


NONFINITE, STAYS_IN_EVAL, NEVER_IN_EVAL, AGAIN = "LOOP11", "MODE03", "MODE01", "LOOP17"
LATE = {
    "a loss that is NaN from then on": (
        {"before": "optimizer.zero_grad(); loss = loss * (float('nan') if step >= 600 else 1)"},
        NONFINITE,
        1,
    ),
    "one loss that is NaN": (
        {"before": "optimizer.zero_grad(); loss = loss * (float('nan') if step == 600 else 1)"},
        NONFINITE,
        1,
    ),
    "a weight that is NaN": (
        {"end": "if step == 600:\n        with torch.no_grad(): model[0].weight.fill_(float('nan'))"},
        NONFINITE,
        2,
    ),
    "a mode that is left on": (
        {"end": f"if step == 600:\n        model.eval(){EVALUATE}"},
        STAYS_IN_EVAL,
        2,
    ),
    "an evaluation in train mode": (
        {"end": f"if step >= 600 and step % 20 == 0:{EVALUATE}"},
        NEVER_IN_EVAL,
        41,
    ),
    "a second step": ({"end": "step >= 600 and optimizer.step()"}, AGAIN, 170),
}
"""Where the loop goes wrong from step 600 on, the rule that reports it, and how many steps later at most."""


def test_an_optimizer_that_cannot_be_read_between_windows_does_not_end_the_script(tmp_path: Path) -> None:
    hide = "if step == 40: optimizer.param_groups[:] = map(Hidden, optimizer.param_groups)"
    script = script_of(tmp_path, num_steps=60, start="class Hidden(dict): get = None", end=hide)
    done = run_watched(script, folder=tmp_path, plan=check_plan())
    assert (done.code, done.stderr) == (0, "")
    (process,) = watch.read(tmp_path)
    assert any("optim" in name for name in process.switched_off)


@pytest.mark.parametrize("name", LATE)
def test_a_mistake_that_begins_late_is_reported(tmp_path: Path, name: str) -> None:
    places, code, most = LATE[name]
    found, told = judged(script_of(tmp_path, **places))
    assert found.evidence.first.troubles == []
    (finding,) = [item.finding for item in told.findings if item.rule.meta.code == code]
    assert BEGINS < (finding.step or 0) <= BEGINS + most
