"""Runs of another version: a saved fingerprint, a commit, an interpreter. Rounding is told from a change."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from truestep.errors import UsageError
from truestep.verify import Script, VerifyOptions, verify
from truestep.verify.against import split
from truestep.verify.fingerprint import Called, read
from truestep.verify.others import find_other
from truestep.watch.evidence.sketch import distance

MODEL = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)
        self.last = nn.Linear(16, 4)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))))
"""
TRAIN = """\
import torch
from model import Net

torch.manual_seed(0)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
x, y = torch.randn(32, 8), torch.randint(4, (32,))
for step in range(6):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()
"""
REFACTORED_MODEL = """\
\"\"\"The model, with other names at other lines.\"\"\"

import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.reads = nn.Linear(8, width)
        self.scales = nn.LayerNorm(width)
        self.decides = nn.Linear(width, 4)

    def forward(self, batch):
        hidden = self.scales(self.reads(batch))
        return self.decides(torch.relu(hidden))
"""
REFACTORED_TRAIN = """\
import torch
from model import Classifier
from torch.nn.functional import cross_entropy


def main():
    torch.manual_seed(0)
    net = Classifier()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    batch, labels = torch.randn(32, 8), torch.randint(4, (32,))
    for _ in range(6):
        optimizer.zero_grad()
        cross_entropy(net(batch), labels).backward()
        optimizer.step()
        schedule.step()


main()
"""


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def write(folder: Path, model: str, train: str) -> None:
    (folder / "model.py").write_text(model)
    (folder / "train.py").write_text(train)


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A toy repository whose first commit is tagged `good`."""
    write(tmp_path, MODEL, TRAIN)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "good")
    git(tmp_path, "tag", "good")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def compare(**options: Any) -> Any:
    return verify(Script(path="train.py"), VerifyOptions(**{"runs": 1, "steps": 8, **options}))


def test_a_refactoring_is_the_same(repository: Path) -> None:
    write(repository, REFACTORED_MODEL, REFACTORED_TRAIN)
    verdict = compare(against=("good",))
    assert verdict.same is True, verdict.reason or verdict.first_difference
    assert [run.kind for run in verdict.runs] == ["first", "commit"]
    assert verdict.exit_code == 0


@pytest.mark.parametrize(
    ("before", "now", "step", "said"),
    [
        ("nn.LayerNorm(16)", "nn.LayerNorm(16, eps=1e-4)", 1, ("aten.native_layer_norm", "norm", "model.py")),
        pytest.param(
            "StepLR(optimizer, 3)",
            "StepLR(optimizer, 4)",
            4,
            (None, None, "train.py"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "torch.relu(",
            "nn.functional.gelu(",
            1,
            ("aten.gelu", None, "model.py"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_regression_between_commits_is_found(
    repository: Path, before: str, now: str, step: int, said: tuple[str | None, str | None, str]
) -> None:
    write(repository, MODEL.replace(before, now), TRAIN.replace(before, now))
    verdict = compare(against=("good",))
    found = verdict.first_difference
    assert (verdict.same, verdict.is_rounding, verdict.exit_code) == (False, False, 1)
    assert (found.step, found.name) == (step, "training-changed")
    operation, module, file = said
    assert operation is None or found.operation.startswith(operation)
    assert module is None or found.module == module
    assert found.file == str(repository / file)


@pytest.mark.verdict("both compute the same, and round differently")
def test_a_fingerprint_finds_what_has_changed_since(repository: Path) -> None:
    golden = repository / "run.fingerprint"
    assert compare(runs=2, save=golden).saved == str(golden)
    assert len(read(golden).updates) == 6
    assert golden.stat().st_size < 40_000
    write(repository, MODEL, TRAIN.replace("loss = ", "loss = 1.001 * "))
    verdict = compare(against=(str(golden),))
    found = verdict.first_difference
    assert (verdict.same, verdict.is_rounding) == (False, False)
    assert (found.step, found.name, found.file) == (1, "training-changed", str(repository / "train.py"))


@pytest.mark.slow
def test_another_order_of_a_sum_is_called_rounding(repository: Path) -> None:
    write(repository, MODEL.replace("self.last(", "self.ends("), TRAIN)
    text = MODEL.replace(
        "return self.last(torch.relu(self.norm(self.first(x))))",
        "h = torch.relu(self.norm(self.first(x)))\n"
        "        w = self.last.weight\n"
        "        return h[:, 8:] @ w[:, 8:].T + (h[:, :8] @ w[:, :8].T + self.last.bias)",
    )
    write(repository, text, TRAIN)
    verdict = compare(against=("good",))
    assert (verdict.same, verdict.is_rounding, verdict.exit_code) == (False, True, 0)
    assert verdict.first_difference.name == "rounding-only"


@pytest.mark.slow
def test_another_interpreter_is_the_same(repository: Path) -> None:
    verdict = compare(against=(sys.executable,))
    assert verdict.same is True, verdict.reason
    assert [run.kind for run in verdict.runs] == ["first", "python"]


def test_what_is_none_of_the_three_is_refused(repository: Path) -> None:
    with pytest.raises(UsageError, match="takes a fingerprint, another Python or a commit, and nothing"):
        find_other("nothing", repository)
    with pytest.raises(UsageError, match="neither a fingerprint nor an interpreter"):
        find_other("train.py", repository)
    (repository / "cut").write_text('{"kind":"truestep-fingerprint","version":1}\n')
    with pytest.raises(UsageError, match="is not a fingerprint that this truestep can read"):
        find_other("cut", repository)
    (repository / "newer").write_text(
        json.dumps({"kind": "truestep-fingerprint", "version": 9}, separators=(",", ":"))
    )
    with pytest.raises(UsageError, match="version 9, and this truestep reads version 1"):
        find_other("newer", repository)


def called(name: str, *, scalars: str = "", ins: tuple[str, ...] = (), outs: tuple[str, ...] = ()) -> Called:
    return Called(
        name=name,
        module="",
        file=None,
        line=None,
        scalars=scalars,
        ins=ins,
        outs=outs,
        norm=1.0,
        total=0.0,
        dtype="",
    )


def test_the_first_operation_that_differs_is_found() -> None:
    same = called("mm", outs=("a",))
    for other, how in (
        (called("mm", outs=("b",)), "result"),
        (called("mm", ins=("x",), outs=("b",)), "input"),
        (called("mm", scalars="2", outs=("b",)), "argument"),
        (called("add", outs=("a",)), "flow"),
    ):
        found = split([same, same], [same, other])
        assert found is not None
        assert found.how == how
    assert split([same], [same]) is None


def test_a_distance_is_relative_and_fails_closed() -> None:
    assert distance([2.0, 1.0], [2.0, 1.5]) == pytest.approx(0.25)
    assert distance([None, 1.0], [2.0, 1.0]) == float("inf")
    assert distance([0.0, 0.0], [0.0, 0.0]) == 0.0
