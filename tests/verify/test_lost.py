"""Variables that a checkpoint lacks, producers on a queue, and gradients that differ by a factor."""

from pathlib import Path
from typing import Any

import pytest

from tests.verify.asking import ask
from tests.verify.test_chains import update
from truestep.verify import lost, ranks
from truestep.verify.causes import CAUSES, FoundCause
from truestep.verify.runs import Ran
from truestep.verify.ways import Way
from truestep.watch import Process

TRAIN = """\
import random
from pathlib import Path
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
data = torch.randn(64, 4)
class Scaler:
    mean = 0.0
scaler, best, waited, losses, start = Scaler(), 9.0, 0, [], 0
if Path("last.pt").exists():
    saved = torch.load("last.pt", weights_only=False)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    start = saved["step"]
for step in range(start, 30):
    rows = data[step % 8 * 8 : step % 8 * 8 + 8]
    SCALE
    loss = model(rows).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    STOP
    if step % 5 == 4:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}
        torch.save(state, "last.tmp")
        Path("last.tmp").replace("last.pt")
        COPY
"""
SCALE = "scaler.mean = 0.9 * scaler.mean + float(rows.mean()); rows = rows - scaler.mean"
STOP = """waited = waited + 1 if best < 9.0 else 0; best = min(best, abs(step - 4) + 1.0)
    if waited > 16: break"""
COPY = 'if random.SystemRandom().random() < 0.5: __import__("shutil").copy("last.pt", "best.pt")'


def verify(folder: Path, *options: str, **parts: str) -> Any:
    text = TRAIN
    for name in ("SCALE", "STOP", "COPY"):
        text = text.replace(name, parts.get(name, "pass"))
    return ask(folder, text, *options)


@pytest.mark.verdict(
    "all steps are the same, and the resumed run makes another number of them: what decides its "
    "end was not saved"
)
@pytest.mark.verdict(
    "same data and weights, but a different loss: it depends on state that the checkpoint lacks"
)
@pytest.mark.slow
def test_a_variable_that_the_checkpoint_lacks_is_named_at_the_line_that_changes_it(tmp_path: Path) -> None:
    found = verify(tmp_path, "--runs", "1", "--kill", SCALE=SCALE)["first_difference"]
    assert (found["name"], found["line"]) == ("variable-not-saved", 20), found
    assert found["proved"] and found["evidence"][0].startswith("with `scaler.mean` put back"), found
    assert found["evidence"][1].startswith("`scaler.mean` is not there after the resume")
    assert found["repair"][0].startswith('state["scaler.mean"] = scaler.mean')


@pytest.mark.slow
def test_patience_that_the_checkpoint_lacks_is_named(tmp_path: Path) -> None:
    found = verify(tmp_path, "--runs", "1", "--kill", STOP=STOP)["first_difference"]
    assert found["name"] == "end-not-restored", found
    assert any(text.startswith("`waited` is ") for text in found["evidence"]), found
    assert not any("losses" in text for text in found["evidence"]), found


@pytest.mark.slow
def test_a_copy_of_the_best_checkpoint_by_chance_is_named_as_a_file_that_differs(tmp_path: Path) -> None:
    said = verify(tmp_path, "--runs", "6", COPY=COPY)
    assert [item["path"] for item in said["files"]["differing"]] == ["best.pt"], said


def process(plain: dict[int, dict[str, str]]) -> Process:
    return Process(pid=1, argv=[], plain=plain)


def test_what_has_not_changed_in_training_or_differs_anyway_is_not_lost() -> None:
    first = process(
        {0: {"a": "0", "b": "0", "c": "0", "d": "0"}, 9: {"a": "1", "b": "0", "c": "5.1", "d": "2"}}
    )
    before = process({9: {"a": "1", "b": "0", "c": "5.2", "d": "2"}})
    resumed = process({0: {"a": "0", "b": "7", "c": "5.3", "d": "2"}})
    found, unchanged = lost.find(first, before, resumed, step=9)
    assert found.words == "`a` is 0 after the resume, 1 without the kill" and found.has_changed
    assert unchanged.name == "b" and not unchanged.has_changed
    assert lost.find(first, before, process({}), step=9) == []


def ran(num: int, sums: list[float]) -> Ran:
    updates = [update(0, sketch={"gradients": sums})]
    processes = [Process(pid=rank, argv=[], rank=rank, size=num, updates=updates) for rank in range(num)]
    return Ran(way=Way(), code=0, processes=processes, before_kill=[], tail="", seconds=0.0)


@pytest.mark.verdict(
    "all numbers of processes compute the same, and round differently: each sums its share first"
)
@pytest.mark.parametrize(
    ("factor", "name"),
    [
        (1.0 + 1e-7, "process-rounding"),
        (4.0, "process-scaling"),
        (0.25, "process-scaling"),
        (1.3, "process-count"),
    ],
)
def test_a_factor_is_undone_before_rounding_is_judged(factor: float, name: str) -> None:
    sums = [3.0, 1.0, -2.0, 0.5]
    finding = FoundCause(name="process-count")
    ranks.refine(finding, [ran(4, [value * factor for value in sums]), ran(1, sums)], step=0)
    assert finding.name == name
    assert finding.name in CAUSES
    assert ("more than rounding" in finding.evidence[0]) is (name == "process-count")
