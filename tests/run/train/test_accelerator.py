"""`Run` on an accelerator: the same as on the CPU, and never waiting for it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.accelerator import FOLDER, environment, run

ROOT = FOLDER.parents[1]
START = """
import json, os, signal, sys
from pathlib import Path
import torch, toy
import truestep as ts
from tests.run.train import small
"""


def train(folder: Path, code: str) -> str:
    return run(f"{START}\nfolder = Path({str(folder)!r})\n{code}", cwd=ROOT).strip()


@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_training_on_an_accelerator_resumes_to_the_same_bits(tmp_path: Path, lanes: int) -> None:
    code = """
whole = small.train(folder / "whole", lanes=LANES)
small.train(folder / "cut", lanes=LANES, stop_at=13)
assert whole and small.train(folder / "cut", lanes=LANES) == whole
"""
    train(tmp_path, code.replace("LANES", str(lanes)))


def test_recomputed_activations_draw_again_what_they_drew_on_the_device(tmp_path: Path) -> None:
    code = """
def trained(name, recompute):
    with ts.Run(folder / name, seed=1, lanes=2, progress=False) as run:
        model = run.place(small.net(), recompute=recompute)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(ts.Loader(small.data(), batch_size=16), steps=6):
            for x, y in step:
                step.backward(torch.nn.functional.cross_entropy(model(x), y))
            step.update(optimizer)
        return ts.digest_state(model.state_dict())
assert trained("a", []) == trained("b", ["0", "2"])
"""
    train(tmp_path, code)


def test_values_arrive_in_the_record_whatever_device_they_are_on(tmp_path: Path) -> None:
    """They are asked for after every step and written when they are there, the rest at the end."""
    code = """
from truestep import record
from truestep.run.train import loop
import torch.nn.functional as F
loop._TICK_S = 0.0
toy.set_kernel_time(us=1000)
with ts.Run(folder, seed=1, progress=False) as run:
    model = run.place(small.net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)
    for step in run.steps(ts.Loader(small.data(), batch_size=10), steps=10):
        for x, y in step:
            step.backward(F.cross_entropy(model(x), y))
        there = torch.tensor(float(step.index), device="toy")
        host, other = torch.tensor(float(step.index)), there.to("toy:1")
        step.log(host=host, there=there, other=other, number=step.index)
        there.fill_(-1)
        step.update(optimizer)
assert run.device == torch.device("toy", 0)
steps = record.read_steps(folder / "record.jsonl")
assert list(steps) == list(range(10))
for number, step in steps.items():
    assert 0 < step["loss"] < 3
    assert [step[name] for name in ("host", "there", "other", "number")] == [number] * 4, (number, step)
"""
    train(tmp_path, code)


def test_a_killed_run_on_an_accelerator_resumes_to_the_same_bits(tmp_path: Path) -> None:
    whole = train(tmp_path, "print(small.train(folder / 'whole'))")
    code = """
if os.fork() == 0:
    import toy  # the device is not in use yet: the child may have it
    small.train(folder / 'killed', on_step=lambda step: step == 13 and os.kill(os.getpid(), signal.SIGKILL))
assert os.waitstatus_to_exitcode(os.wait()[1]) == -signal.SIGKILL
print(small.train(folder / 'killed'))
"""
    assert train(tmp_path, code) == whole


@pytest.mark.parametrize("fused", [True, None])
@pytest.mark.parametrize("lanes", [1, 2])
def test_the_loop_waits_for_a_decision_only(tmp_path: Path, lanes: int, fused: bool | None) -> None:
    """A fused optimizer leaves a step out by itself. For another the loop asks once whether all is finite."""
    code = """
from truestep.run.train import loop
loop._TICK_S = 0.0  # losses are asked for after every step
toy.count_steps()
OPTIONS = dict(lanes=LANES, fused=FUSED, num_samples=640, snapshots=ts.Snapshots(every_steps=1000))
small.train(folder, num_steps=30, **OPTIONS)
steps = {}
for wait in toy.waits():
    steps.setdefault(wait.step, []).append(f"{wait.kind} {wait.line}")
print(json.dumps([steps.get(step, []) for step in range(1, 30)]))
"""
    code = code.replace("LANES", str(lanes)).replace("FUSED", str(fused))
    steps = json.loads(train(tmp_path, code))
    assert {len(waits) for waits in steps} == ({0} if fused else {1}), steps


def launched(folder: Path, size: int, *, stop_at: int | None = None) -> set[str]:
    """Return the digests with which processes that torchrun started end."""
    script = folder.parent / "train.py"
    script.write_text(f"""
import os
from pathlib import Path
from tests.run.train import small
digest = small.train(Path({str(folder)!r}), lanes=4, stop_at={stop_at})
Path({str(folder)!r} + f"-{{os.environ['RANK']}}.digest").write_text(digest)
""")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
    variables = {**os.environ, **environment(), "OMP_NUM_THREADS": "1"}
    variables["PYTHONPATH"] += os.pathsep + str(ROOT)
    done = subprocess.run(
        [*launch, str(script)], env=variables, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    digests = [path.read_text() for path in folder.parent.glob(f"{folder.name}-*.digest")]
    assert len(digests) == size, done.stdout + done.stderr
    return set(digests)


def test_lanes_on_several_processes_with_devices_end_with_one_digest(tmp_path: Path) -> None:
    whole = launched(tmp_path / "one", 1)
    assert len(whole) == 1 and whole != {""}
    assert launched(tmp_path / "several", 3) == whole
    launched(tmp_path / "cut", 2, stop_at=13)
    assert launched(tmp_path / "cut", 4) == whole
