"""The command on scripts that repeat and on scripts that do not: verdict, line, cause, exit code."""

import contextlib
import json
import os
import pty
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from truestep.verify.describe import source_line

CAUSES = Path(__file__).parents[2] / "benchmarks" / "corpus" / "causes"
TRUESTEP = str(Path(sys.executable).with_name("truestep"))

TRAIN = """\
import random
import sys
import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scale = SCALE
for step in range(6):
    loss = (model(torch.randn(8, 4)) * scale).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("end", *sys.argv[1:])
"""


BESIDE = """\
from pathlib import Path
import torch

torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
saved, start = Path(__file__).parent / "last.pt", 0
if saved.exists():
    start, state = torch.load(saved)
    model.load_state_dict(state)
for step in range(start, 8):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).pow(2).mean().backward()
    optimizer.step()
    torch.save((step + 1, model.state_dict()), saved)
"""


def verify(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [TRUESTEP, "verify", *words], cwd=folder, capture_output=True, text=True, check=False, timeout=540
    )


def write(folder: Path, scale: str, more: str = "") -> None:
    (folder / "train.py").write_text(TRAIN.replace("SCALE", scale) + textwrap.dedent(more))


def answer(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    return json.loads(done.stdout)


NOTHING_SEEDED = """\
import random
import numpy as np
import torch

torch.set_num_threads(1)
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    inputs = torch.from_numpy(np.random.rand(8, 4)).float()
    loss = (model(inputs) * random.random()).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_generators_that_are_left_unseeded_are_named_together(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(NOTHING_SEEDED)
    found = answer(verify(tmp_path, "--format", "json", "train.py"))["first_difference"]
    assert (found["name"], found["line"], found["proved"]) == ("unseeded-torch", 6, True), found
    assert "NumPy's generator is used before it is seeded, or never seeded (train.py:9)" in found["cause"]
    assert "Python's `random` is used before it is seeded, or never seeded (train.py:10)" in found["cause"]
    assert all(call in found["fix"] for call in ("torch.manual_seed", "numpy.random.seed", "random.seed"))


def test_the_same(tmp_path: Path) -> None:
    write(tmp_path, "1.0")
    done = verify(tmp_path, "train.py", "--lr", "1")
    lines = done.stdout.splitlines()
    assert (done.returncode, len(lines)) == (0, 3), done.stdout + done.stderr
    assert lines[0].split()[-1] == lines[1].split()[-1]
    assert lines[2].startswith("same in all ")
    assert done.stderr == "end --lr 1\n"  # of the first run
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.parametrize("words", [(), ("--kill",)])
def test_a_script_that_writes_beside_itself_leaves_the_folder_as_it_was(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "train.py").write_text(BESIDE)
    said = answer(verify(tmp_path, "--format", "json", *words, "train.py"))
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
    assert said["same"] is not bool(words), said
    if words:  # the momentum is not saved
        found = said["first_difference"]
        assert (found["name"], found["file"]) == ("optimizer-not-saved", str(tmp_path / "train.py")), found


@pytest.mark.practice("P60")
def test_a_difference_by_the_contract(tmp_path: Path) -> None:
    """A script that is not reproducible is reported with the first step that differs, line and cause."""
    write(tmp_path, "random.random()")
    done = verify(tmp_path, "--format", "json", "--steps", "3", "train.py")
    said = answer(done)
    assert (done.returncode, said["same"]) == (1, False)
    assert [(run["kind"], run["processes"]) for run in said["runs"]] == [("first", 1), ("again", 1)]
    assert said["runs"][0]["digest"] != said["runs"][1]["digest"]
    found = said["first_difference"]
    assert (found["step"], found["file"], found["line"]) == (1, str(tmp_path / "train.py"), 10)
    assert (found["name"], found["proved"]) == ("unseeded-random", True)
    assert "never seeded" in found["cause"]
    assert done.stderr == ""  # ended before it printed


@pytest.mark.practice("P62")
def test_p62_a_kernel_without_an_order_is_named_and_has_one_when_asked_for(tmp_path: Path) -> None:
    """An operation that sums in any order is named with its line; fixing it is the proof."""
    source = (CAUSES / "scatter_order.py").read_text()
    line = next(number for number, text in enumerate(source.splitlines(), 1) if "# <- here" in text)
    (tmp_path / "train.py").write_text(source)
    found = answer(verify(tmp_path, "--format", "json", "train.py"))["first_difference"]
    assert (found["name"], found["line"], found["proved"]) == ("racy-operation", line, True), found
    mended = source.replace(
        "torch.manual_seed(0)", "torch.manual_seed(0)\n    torch.use_deterministic_algorithms(True)"
    )
    (tmp_path / "train.py").write_text(mended)
    assert answer(verify(tmp_path, "--format", "json", "train.py"))["same"] is True


def test_a_run_that_is_finished_already_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""\
        import torch
        import truestep as ts

        with ts.Run("runs/small", seed=1, snapshots=ts.Snapshots(every_steps=2), progress=False) as run:
            model = run.place(torch.nn.Linear(4, 2))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            run.track(model=model, optimizer=optimizer)
            for step in run.steps(ts.Loader(torch.ones(64, 4), batch_size=8), epochs=1):
                for x in step:
                    step.backward(model(x).pow(2).mean())
                step.update(optimizer)
        """)
    )
    subprocess.run([sys.executable, "train.py"], cwd=tmp_path, check=True, timeout=120)
    record = (tmp_path / "runs/small/record.jsonl").read_bytes()
    done = verify(
        tmp_path, "--kill", "--steps", "6", "train.py"
    )  # fewer than it would make: also after the resume
    assert done.returncode == 0 and done.stdout.count(" 6 steps   ") == 3, done.stdout + done.stderr
    assert (tmp_path / "runs/small/record.jsonl").read_bytes() == record


@pytest.mark.slow
def test_two_causes_are_not_called_proved(tmp_path: Path) -> None:
    write(tmp_path, "random.random() + __import__('time').time() % 1")
    found = answer(verify(tmp_path, "--format", "json", "--steps", "2", "train.py"))["first_difference"]
    assert (found["line"], found["proved"]) == (10, False)


def test_a_script_that_fails_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit(3)")
    done = verify(tmp_path, "--format", "json", "train.py")
    said = answer(done)
    assert (done.returncode, said["same"], said["first_difference"]) == (2, None, None)
    assert "exit code 3" in said["reason"]


def test_a_script_that_trains_nothing_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nprint(torch.ones(2))\n")
    done = verify(tmp_path, "train.py")
    assert done.returncode == 2
    assert "inconclusive: no optimizer step ran in the script's process" in done.stdout


def test_runs_without_one_of_the_observers_are_not_called_the_same(tmp_path: Path) -> None:
    broken = 'sys.modules["truestep.watch.hooks.data"].outline = None'
    text = TRAIN.replace("SCALE", "1.0").replace("for step in", f"{broken}\nfor step in")
    text = text.replace("torch.randn(8, 4)", "next(iter(torch.utils.data.DataLoader(torch.ones(8, 4))))")
    (tmp_path / "train.py").write_text(text)
    done = verify(tmp_path, "--format", "json", "train.py")
    assert (done.returncode, answer(done)["same"]) == (2, None), done.stderr
    assert "was switched off" in answer(done)["reason"] and "TypeError" in answer(done)["reason"]


def test_runs_with_a_tensor_that_cannot_be_read_are_not_called_the_same(tmp_path: Path) -> None:
    more = """
    class Odd(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, *_, **__):
            raise RuntimeError("no part of it is here")
    odd = torch.Tensor._make_wrapper_subclass(Odd, (3,))
    for step in range(2):
        optimizer.step()
    """
    write(tmp_path, "1.0", more)
    said = answer(verify(tmp_path, "--format", "json", "train.py"))
    assert said["same"] is None and "RuntimeError: no part of it is here" in said["reason"], said


def test_a_script_that_begins_again_after_a_kill_is_not_judged(tmp_path: Path) -> None:
    write(tmp_path, "1.0")
    text = (tmp_path / "train.py").read_text()
    text = text.replace("    optimizer.step()\n", "    optimizer.step()\n    torch.save(step, 'last.pt')\n")
    (tmp_path / "train.py").write_text(text)
    done = verify(tmp_path, "--kill", "train.py")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "the script started over" in done.stdout
    assert "--resume-with" in done.stdout


def test_a_checkpoint_outside_of_the_folder_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    kept = tmp_path / "kept.pt"
    head = f"import os, torch\nstart = torch.load({str(kept)!r}) if os.path.exists({str(kept)!r}) else 0\n"
    write(folder, "1.0", f"torch.save(3, {str(kept)!r})\n")
    (folder / "train.py").write_text(
        head + (folder / "train.py").read_text().replace("range(6)", "range(start, 6)")
    )
    done = verify(folder, "train.py")
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"the second run loaded {kept}" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["missing.py"], "missing.py is not a file"),
        (["--workers", "2,x", "train.py"], "--workers takes numbers"),
        (["--workers", "-1", "train.py"], "--workers must be 0 or more"),
        (["--env", "CI", "train.py"], "--env takes NAME=VALUE"),
        (["--runs", "1", "train.py"], "--runs 1 compares nothing"),
        (["--steps", "-1", "train.py"], "--steps must be"),
        (
            ["--resume-with", "--resume 'last.pt", "train.py"],
            "--resume-with cannot be read (No closing quotation)",
        ),
        (["--record", "run", "--runs", "1", "train.py"], "--runs 1 compares nothing"),
        (["n" * 300], "is not a file"),
    ],
)
def test_bad_usage(tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "train.py").write_text("")
    done = verify(tmp_path, *words)
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "cause",
    [
        pytest.param("set-order", marks=pytest.mark.cold),
        pytest.param("uninitialised-memory", marks=pytest.mark.cold),
        "loader-position-not-saved",
        "dataset-generator",
        "compiled-once",
    ],
)
def test_corpus(cause: str) -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "verify_corpus.py"
    done = subprocess.run(
        [sys.executable, str(script), "--json", "--only", cause],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout)["right"] == 1


def test_what_looks_like_markup_in_a_variable_is_told_as_it_is(tmp_path: Path) -> None:
    write(tmp_path, "1.0")
    ours, theirs = pty.openpty()
    words = [TRUESTEP, "verify", "--steps", "2", "--env", "X=[/a]", "train.py"]
    process = subprocess.Popen(words, cwd=tmp_path, stdout=theirs, stderr=subprocess.STDOUT, text=True)
    os.close(theirs)
    said = b""
    with contextlib.suppress(OSError):  # Linux ends a terminal that nobody writes to any more so
        while part := os.read(ours, 4096):
            said += part
    os.close(ours)
    assert process.wait(60) == 0, said.decode()


def test_a_form_feed_ends_no_line_of_a_source(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_bytes(b"\x0cimport torch\r\nloss.backward()\r\n")
    assert source_line(str(tmp_path / "train.py"), 2) == "loss.backward()"


AVERAGED = """\
import copy, os, random, torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
average, start, draws = copy.deepcopy(model), 0, random.SystemRandom()
if os.path.exists("last.pt"):
    start, state = torch.load("last.pt")
    model.load_state_dict(state)
    average = copy.deepcopy(model)
for step in range(start, 8):
    optimizer.zero_grad()
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
    share = SHARE
    with torch.no_grad():
        for mine, item in zip(average.parameters(), model.parameters()):
            mine.lerp_(item, share)
    torch.save((step + 1, model.state_dict()), "last.pt")
torch.save(average.state_dict(), "average.pt")
"""
SAVED = """if step % 3 == 2:
        state = model.state_dict()
        torch.save((step + 1, state, average.state_dict()), "last.pt")"""


def test_a_checkpoint_in_a_variable_is_not_state_of_its_own(tmp_path: Path) -> None:
    """What `state_dict()` gives follows the weights, what was loaded does not: both runs are the same."""
    text = AVERAGED.replace("SHARE", "0.1").replace("start, state =", "start, state, other =")
    text = text.replace("    average = copy.deepcopy(model)\nfor", "    average.load_state_dict(other)\nfor")
    text = text.replace('torch.save((step + 1, model.state_dict()), "last.pt")', SAVED)
    (tmp_path / "train.py").write_text(text)
    said = answer(verify(tmp_path, "--format", "json", "--kill", "--runs", "1", "train.py"))
    assert said["same"] is True, said


def test_an_average_that_the_checkpoint_lacks_is_named(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(AVERAGED.replace("SHARE", "0.1"))
    said = answer(verify(tmp_path, "--format", "json", "--kill", "--runs", "1", "train.py"))
    found = said["first_difference"]
    assert said["same"] is False and found["name"] == "kept-state-not-saved", said
    assert found["what"].startswith("other state: average.weight") and found["proved"], found
    assert found["evidence"][0].startswith("with `average` put back as without the kill"), found
    assert found["repair"][0].startswith('state["average"] = average.state_dict()'), found
    assert (said["steps"], said["whole"]) == (8, True)


@pytest.mark.slow
@pytest.mark.cold
def test_an_average_by_numbers_that_no_seed_fixes_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(AVERAGED.replace("SHARE", "draws.random() / 2"))
    done = verify(tmp_path, "--steps", "3", "train.py")
    assert done.returncode == 1 and "other state: average.weight" in done.stdout, done.stdout
    assert "train.py:14\n    share = draws.random() / 2\n" in done.stdout
    assert "system's entropy, which no seed can fix" in done.stdout
    assert "runs are the same; a run without it differs" in done.stdout


@pytest.mark.parametrize(
    ("loop", "wanted"),
    [
        ("range(start, 8)", "same in the first 3 of about 8 steps: "),
        ("iter(range(8))", "same in the first 3 steps: "),
    ],
)
def test_the_number_of_steps_that_were_compared_is_told(tmp_path: Path, loop: str, wanted: str) -> None:
    (tmp_path / "train.py").write_text(
        AVERAGED.replace("SHARE", "0.1")
        .replace("range(start, 8)", loop)
        .replace('if os.path.exists("last.pt")', "if 0")
    )
    done = verify(tmp_path, "--steps", "3", "train.py")
    assert done.returncode == 0 and wanted in done.stdout, done.stdout
