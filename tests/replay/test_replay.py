"""`truestep replay`: the same bits, the bad sample, the first extreme value; what is refused."""

import re
import subprocess
from pathlib import Path

import pytest

from truestep import record, watch
from truestep.cli import replay as command
from truestep.errors import UsageError
from truestep.replay import Replayed, replay_run, replay_script
from truestep.replay.in_script.looking import _by_sample
from truestep.replay.replay import _script_of

BAD = 17
TRAIN = """\
import torch
from torch import nn
from torch.nn import functional as F
import truestep as ts

torch.manual_seed(0)
x = torch.randn(320, 8)
y = x.sum(1, keepdim=True)
y[17] = 1e4
data = torch.utils.data.TensorDataset(x, y)
snapshots = ts.Snapshots(every_steps=4, every_s=None)
with ts.Run("runs/a", seed=7, lanes=2, snapshots=snapshots, progress=False) as run:
    model = run.place(nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.GELU(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    run.track(model=model, optimizer=optimizer)
    for step in run.steps(ts.Loader(data, batch_size=32), epochs=2):
        for a, b in step:
            step.backward(F.mse_loss(model(a), b))
        step.update(optimizer)
"""
PLAIN = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(5):
    x = torch.randn(8, 4) * (1e6 if step == 3 else 1)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), x.sum(1, keepdim=True)).backward()
    optimizer.step()
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A run and the digests of its weights after each step."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "train.py").write_text(TRAIN)
    evidence = folder / "evidence"
    evidence.mkdir()
    plan = watch.Plan(digests=("weights",))
    words = watch.command(folder / "train.py", plan=plan, folder=evidence)
    words = [word.replace(str(folder / "train.py"), "train.py") for word in words]  # as a user types it
    subprocess.run(words, cwd=folder, check=True, capture_output=True, timeout=300)
    (process,) = watch.read(evidence)
    return folder, [update.parts["weights"] for update in process.updates]


def test_a_replayed_step_has_the_bits_of_the_run_and_names_the_bad_sample(
    trained: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, digests = trained
    monkeypatch.chdir(folder)
    steps = record.read_steps(folder / "runs/a/record.jsonl")
    spike = max((step for step in steps if step >= 10), key=lambda step: steps[step]["loss"])
    before = sorted((folder / "runs/a").rglob("*"))
    found = replay_run(Path("runs/a"), record.step_number(spike))
    assert found.is_same and found.num_compared == spike - found.begun_at + 1
    assert found.digest == digests[spike]
    assert found.loss == steps[spike]["loss"]
    worst = max(zip(found.sample_losses, found.samples, strict=True))
    assert worst[1] == BAD and len(found.samples) == 32
    shown = found.listing.file(str(folder / "train.py"))
    assert shown is not None
    lane = {value.label: value for row in shown.rows if "for a, b" in row.source for value in row.values}
    assert lane["a"].begun.startswith("f32 16") and "1e+04" in lane["b"].words, (
        "the bad target stands at its line"
    )
    assert "‖grad‖ 3" in {value.label for row in shown.rows for value in row.values}
    assert max(row.count for row in shown.rows if "step.backward" in row.source) == 4, (
        "two lanes in two steps"
    )
    assert sorted((folder / "runs/a").rglob("*")) == before


def test_a_step_of_a_plain_script_is_replayed_from_its_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PLAIN)
    found = replay_script(watch.Script(path="train.py"), 4)
    assert found.is_same is None and found.digest
    assert len(found.sample_losses) == 8
    command._Answer(found).show()
    shown = capsys.readouterr().out
    assert "step 4 of train.py, replayed from the beginning" in shown
    (line,) = [line for line in shown.splitlines() if "x = torch.randn" in line]
    assert re.search(r"x: f32 8\u00d74 -\d\.", line), line
    assert re.search(r"→ -\d\.\d+e\+06", shown) and "import torch" not in shown


def test_the_first_value_that_is_not_finite_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PLAIN.replace("1e6", 'float("inf")'))
    found = replay_script(watch.Script(path="train.py"), 4)
    assert found.as_fields()["first_nonfinite"]["line"] == 8
    command._Answer(found).show()
    assert "first value that is not finite: train.py:8 x\n" in capsys.readouterr().out
    assert replay_script(watch.Script(path="train.py"), 3).as_fields()["first_nonfinite"] is None


def test_losses_are_by_sample_only_where_lanes_say_so() -> None:
    assert _by_sample([[1.0, 3.0], [5.0]], [2, 1]) == [1.0, 3.0, 5.0]
    assert _by_sample([[1.0, 3.0, 5.0, 7.0]], [2]) == [2.0, 6.0]  # two tokens each
    assert _by_sample([[1.0], [2.0]], [1]) == []  # two losses
    assert _by_sample([[1.0, 2.0, 3.0]], [2]) == []


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ({"argv": ["python", "train.py", "--api-key", "***"]}, "has a secret"),
        ({"argv": ["python", "-u", "gone.py"]}, "gone.py is not in this folder"),
        (
            {"argv": ["python", "-m", "pkg"], "note": "tied to 4 processes"},
            "cannot be replayed on one process",
        ),
    ],
)
def test_a_run_that_cannot_be_started_again_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: dict[str, object], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        _script_of(start)
    script = _script_of({"argv": ["python", "-u", "-m", "pkg.train", "--lr", "1"]})
    assert (script.path, script.is_module, script.arguments) == ("pkg.train", True, ("--lr", "1"))


def test_a_step_that_the_run_does_not_have_is_refused(
    trained: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(trained[0])
    with pytest.raises(UsageError, match="the run has steps 1 to 21, got --step 99"):
        replay_run(Path("runs/a"), 99)
    monkeypatch.chdir(trained[0].parent)
    with pytest.raises(UsageError, match=r"train\.py"):
        replay_run(trained[0] / "runs/a", 3)


def test_another_loss_than_the_recorded_one_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    found = Replayed(
        step=5,
        script=watch.Script(path="train.py"),
        begun_at=4,
        num_compared=2,
        first_different=4,
        loss=1.0,
        losses_before=[2.0],
        samples=[3, 1],
    )
    assert found.is_same is False and found.as_fields()["same"] is False
    command._Answer(found).show()
    shown = capsys.readouterr().out
    assert "inconclusive: the loss of step 4 is not the one in the record" in shown
    assert "2 samples, by index: 3, 1" in shown
