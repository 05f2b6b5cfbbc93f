"""What counts as a step: optimizers that take turns make one together."""

import textwrap
from pathlib import Path

import pytest

from tests.watch.watching import SCRIPTS, run_watched
from truestep import watch

HEAD = """\
import torch
from torch import nn

def train(optimizer, weight):
    weight.pow(2).sum().backward()
    optimizer.step()
    print("step", flush=True)

first, second = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
one, two = torch.optim.SGD([first], lr=0.1), torch.optim.SGD([second], lr=0.1)
"""
TURNS = "for _ in range(4):\n    train(one, first)\n    train(two, second)\n"
ONE_AFTER_ANOTHER = "for _ in range(4):\n    train(one, first)\nfor _ in range(4):\n    train(two, second)\n"


@pytest.mark.parametrize(("body", "num"), [(TURNS, 4), (ONE_AFTER_ANOTHER, 7)])
def test_steps_of_two_optimizers(tmp_path: Path, body: str, num: int) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(HEAD) + body)
    done = run_watched(script, folder=tmp_path)
    assert done.code == 0, done.stderr
    (process,) = watch.read(tmp_path)
    assert process.num_steps == num


def test_a_second_training_ends_after_enough_steps_too(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(HEAD) + ONE_AFTER_ANOTHER)
    done = run_watched(script, folder=tmp_path, plan=watch.Plan(steps=6))
    assert (done.code, done.stdout) == (0, "step\n" * 7)
    (process,) = watch.read(tmp_path)
    assert (process.num_steps, process.ended) == (6, "stopped")


def test_names_do_not_come_from_parameters_that_are_gone(tmp_path: Path) -> None:
    chains = []
    for run in ("one", "two", "three"):
        folder = tmp_path / run
        folder.mkdir()
        plan = watch.Plan(digests=watch.DIGESTS)
        done = run_watched(SCRIPTS / "many_models.py", folder=folder, plan=plan)
        assert done.code == 0, done.stderr
        (process,) = watch.read(folder)
        parts = [(update.parts["gradients"], update.parts["weights"]) for update in process.updates]
        assert len(parts) == 40
        chains.append(parts)
    assert chains[0] == chains[1] == chains[2]
