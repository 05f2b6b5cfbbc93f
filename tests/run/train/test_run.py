"""The run beside the loop: modes, precision, non-finite values, signals, disk full."""

import contextlib
import math
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import ReduceLROnPlateau, StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torchmetrics import Accuracy, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

import truestep as ts
from tests.run.train.small import data, net, tracked, train, train_on
from truestep.errors import NonFiniteError, SaveFailed, UsageError
from truestep.record import read, read_steps
from truestep.run.train.gradients import FiniteCheck
from truestep.run.train.progress import Terminal
from truestep.run.train.step import Step


def test_one_lane_without_dropout_is_exactly_the_bare_loop(tmp_path: Path) -> None:
    with ts.Run(tmp_path, seed=1, progress=False) as run:
        model = run.place(nn.Linear(6, 3))
        bare = nn.Linear(6, 3)
        bare.load_state_dict(model.state_dict())
        optimizer, other = (AdamW(each.parameters(), lr=0.01) for each in (model, bare))
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(ts.Loader(data(), batch_size=16), epochs=3):
            for x, y in step:
                other.zero_grad()
                F.cross_entropy(bare(x), y).backward()
                other.step()
                step.backward(F.cross_entropy(model(x), y))
            step.update(optimizer)
        assert ts.digest_state(model.state_dict()) == ts.digest_state(bare.state_dict())


@pytest.mark.practice("P73")
@pytest.mark.practice("P18")
@pytest.mark.practice("P30")
def test_evaluation_sees_each_sample_once_and_gives_modes_back(tmp_path: Path) -> None:
    """Evaluation sees each sample once, in eval mode and without gradients, and restores every mode."""
    with ts.Run(tmp_path, seed=1, lanes=4, progress=False) as run:
        model = run.place(net())
        model[2].eval()
        modes = [module.training for module in model.modules()]
        seen = []
        accuracy = run.evaluate(
            model,
            ts.Loader(data(), batch_size=16),
            metric=Accuracy(task="multiclass", num_classes=3),
            forward=lambda model, batch: (
                seen.append((batch[0], torch.is_grad_enabled(), model.training)),
                model(batch[0]),
                batch[1],
            )[1:],
        )
        assert [module.training for module in model.modules()] == modes
        x, y = data().tensors
        assert torch.equal(torch.cat([batch for batch, _, _ in seen]), x)
        assert {(grad, training) for _, grad, training in seen} == {(False, False)}
        model.eval()
        assert accuracy == pytest.approx((model(x).argmax(1) == y).float().mean().item(), abs=1e-6)


class _Counting:
    """A metric of one's own that answers in NumPy's numbers."""

    def reset(self) -> None:
        self.count = np.int64(0)

    def update(self, _: torch.Tensor, target: torch.Tensor) -> None:
        self.count += len(target)

    def compute(self) -> dict[str, Any]:
        return {"count": self.count, "half": np.float32(0.5), "both": np.arange(2)}


def test_a_metric_in_numpys_numbers_is_returned_and_recorded(tmp_path: Path) -> None:
    with ts.Run(tmp_path, seed=1, progress=False) as run:
        found = run.evaluate(run.place(net()), ts.Loader(data(), batch_size=16), metric=_Counting())
    assert found == {"count": 50, "half": 0.5, "both": [0, 1]} and type(found["count"]) is int
    (event,) = [event for event in read(tmp_path / "record.jsonl") if event["kind"] == "evaluate"]
    assert event["value"] == found


def test_evaluation_in_the_middle_does_not_change_training(tmp_path: Path) -> None:
    def trained(folder: Path, is_evaluated: bool) -> str:
        with ts.Run(folder, seed=1, lanes=2, progress=False) as run:
            model, optimizer = tracked(run)
            valid = ts.Loader(data(), batch_size=20)
            for step in run.steps(ts.Loader(data(), batch_size=16), epochs=2):
                for x, y in step:
                    step.backward(F.cross_entropy(model(x), y))
                step.update(optimizer)
                if is_evaluated and step.is_epoch_end:
                    metric = MetricCollection([MulticlassAccuracy(3), MulticlassF1Score(3)])
                    assert set(run.evaluate(model, valid, metric=metric)) == {
                        "MulticlassAccuracy",
                        "MulticlassF1Score",
                    }
                    assert run.cursor == step.index + 1
            return ts.digest_state(model.state_dict())

    assert trained(tmp_path / "a", True) == trained(tmp_path / "b", False)


class _Poisoned(nn.Module):
    """Gives a non-finite loss or gradient at one step."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.linear, self.kind, self.calls = nn.Linear(6, 3), kind, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        out = self.linear(x)
        if self.calls == 4:
            if self.kind == "loss":
                return out * math.inf
            out.register_hook(lambda gradient: gradient * math.nan)
        return out


@pytest.mark.parametrize(
    ("kind", "precision", "words"),
    [
        ("loss", "fp32", "step 4: the loss of lane 0 is nan"),
        ("loss", "fp16", "step 4: the loss of lane 0 is nan"),
        ("gradient", "fp32", r"step 4: the gradient of model\.linear\."),
    ],
)
def test_a_non_finite_step_stops_before_the_weights_are_touched(
    tmp_path: Path, kind: str, precision: Any, words: str
) -> None:
    with ts.Run(tmp_path, seed=1, progress=False) as run:
        model, optimizer = tracked(run, _Poisoned(kind), precision=precision)
        for step in run.steps(ts.Loader(data(), batch_size=16), steps=4):
            before = ts.digest_state(model.state_dict())
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y))
            if step.index < 3:
                step.update(optimizer)
                continue
            with pytest.raises(NonFiniteError, match=words):
                step.update(optimizer)
            break
        assert ts.digest_state(model.state_dict()) == before


@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_a_non_finite_step_is_left_out_by_choice_and_counted(tmp_path: Path, kind: str) -> None:
    with ts.Run(tmp_path, seed=1, progress=False, nonfinite="skip") as run:
        model = run.place(_Poisoned(kind))
        optimizer = SGD(model.parameters(), lr=0.1)
        scheduler = StepLR(optimizer, 1, gamma=0.5)
        run.track(model=model, optimizer=optimizer, scheduler=scheduler)
        done = []
        for step in run.steps(ts.Loader(data(), batch_size=16), steps=9):
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y))
            done.append(step.update(optimizer, scheduler=scheduler))
        assert done == [True] * 3 + [False] + [True] * 5
        assert scheduler.last_epoch == 8
        assert all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters())
    steps = read_steps(tmp_path / "record.jsonl")
    assert [step for step, values in steps.items() if values.get("skipped")] == [3]


@pytest.mark.parametrize("nonfinite", ["stop", "skip"])
@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_a_device_leaves_a_non_finite_step_out_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, nonfinite: Any
) -> None:
    # What runs on GPUs, tried on the CPU: nobody asks whether the step was finite before the loop goes on.
    monkeypatch.setattr(FiniteCheck, "__call__", lambda *_: pytest.fail("the loop waited for the device"))
    monkeypatch.setattr(FiniteCheck, "defers", property(lambda _: True, lambda *_: None), raising=False)
    monkeypatch.setattr(Step, "_on_cpu", property(lambda _: False, lambda *_: None), raising=False)
    digests = {}
    with ts.Run(tmp_path, seed=1, progress=False, nonfinite=nonfinite) as run:
        model = run.place(_Poisoned(kind))
        optimizer = AdamW(model.parameters(), lr=0.1, fused=True)
        run.track(model=model, optimizer=optimizer)
        steps = iter(run.steps(ts.Loader(data(), batch_size=16), steps=6))
        for _ in range(6):
            step = next(steps)
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y))
            step.update(optimizer)
            digests[step.index] = ts.digest_state([model.state_dict(), optimizer.state_dict()["state"]])
        if nonfinite == "stop":
            with pytest.raises(NonFiniteError, match=r"step 4: the loss or a gradient is not finite"):
                next(steps)
        else:
            assert next(steps, None) is None
    changed = [digests[step] != digests[step - 1] for step in range(1, 6)]
    assert changed == [True, True, False, *([nonfinite == "skip"] * 2)]


def test_a_scheduler_that_would_be_lost_or_needs_a_metric_is_refused(tmp_path: Path) -> None:
    with ts.Run(tmp_path, seed=1, progress=False) as run:
        model = run.place(net())
        optimizer = SGD(model.parameters(), lr=0.1)
        by_metric = ReduceLROnPlateau(optimizer)
        run.track(model=model, optimizer=optimizer, by_metric=by_metric)
        step = next(iter(run.steps(ts.Loader(data(), batch_size=16), steps=1)))
        for x, y in step:
            step.backward(F.cross_entropy(model(x), y))
        with pytest.raises(UsageError, match=r"StepLR is not tracked.*run.track\(scheduler=scheduler\)"):
            step.update(optimizer, scheduler=StepLR(optimizer, 1))
        with pytest.raises(UsageError, match=r"call scheduler.step\(metric\) after run.evaluate"):
            step.update(optimizer, scheduler=by_metric)


@pytest.mark.practice("P69")
def test_fp16_finds_its_scale_and_resumes_with_it(tmp_path: Path) -> None:
    """Training in fp16 finds its loss scale, and resumes with it to the same bits."""

    def trained(folder: Path, stop_at: int | None) -> tuple[str, list[Any]]:
        digest, snapshots = "", ts.Snapshots(every_steps=2)
        stopped = contextlib.suppress(InterruptedError)
        with stopped, ts.Run(folder, seed=1, lanes=2, progress=False, snapshots=snapshots) as run:
            model, optimizer = tracked(run, precision="fp16")
            for step in run.steps(ts.Loader(data(), batch_size=16), steps=8):
                if step.index == stop_at:
                    raise InterruptedError
                for x, y in step:
                    step.backward(1000 * F.cross_entropy(model(x), y))
                step.update(optimizer, clip_norm=1.0)
            digest = ts.digest_state(model.state_dict())
        values = read_steps(folder / "record.jsonl")
        return digest, [values[step]["loss_scale"] for step in values]

    whole, scales = trained(tmp_path / "whole", None)
    assert scales[0] == 65536 and scales[-1] < 65536
    trained(tmp_path / "cut", 5)
    assert trained(tmp_path / "cut", None) == (whole, scales)


class _Twins(nn.Module):
    """Two parameters that always have the same gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.ones(6)), nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((self.a + self.b) * x).mean()


def test_fp16_changes_its_scale_between_passes_not_between_optimizers(tmp_path: Path) -> None:
    with ts.Run(tmp_path, seed=1, progress=False) as run:
        model = run.place(_Twins(), precision="fp16")
        assert run._scaler is not None
        run._scaler.set_growth_interval(3)
        first, second = SGD([model.a], lr=0.1), SGD([model.b], lr=0.1)
        run.track(model=model, first=first, second=second)
        scales = []
        for step in run.steps(ts.Loader(data(), batch_size=16), steps=4):
            for x, _ in step:
                step.backward(model(x))
            assert step.update(first) and step.update(second)
            assert torch.equal(model.a.grad, model.b.grad)
            scales.append(run._scaler.get_scale())
        assert scales == [65536.0] * 3 + [131072.0]


def test_fp16_updates_an_optimizer_in_each_pass_of_a_step(tmp_path: Path) -> None:
    with ts.Run(tmp_path, seed=1, progress=False) as run:
        model, optimizer = tracked(run, _Twins(), precision="fp16")
        for step in run.steps(ts.Loader(data(), batch_size=16), steps=2):
            for _ in range(2):
                for x, _ in step:
                    step.backward(model(x))
                assert step.update(optimizer)


def test_fp16_tells_that_a_step_was_left_out_also_at_a_scale_of_zero(tmp_path: Path) -> None:
    with ts.Run(tmp_path, seed=1, progress=False) as run:
        model, optimizer = tracked(run, _Poisoned("gradient"), precision="fp16")
        done = []
        for step in run.steps(ts.Loader(data(), batch_size=16), steps=4):
            if step.index == 3:
                assert run._scaler is not None and run._scaler._scale is not None
                run._scaler._scale.zero_()  # as after very many gradients that were not finite
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y))
            done.append(step.update(optimizer))
        assert done == [True, True, True, False]


def test_placing_keeps_names_and_a_copy_runs_its_own_weights(tmp_path: Path) -> None:
    with ts.Run(tmp_path, seed=1, progress=False) as run:
        plain = net()
        names = list(plain.state_dict())
        model = run.place(plain, precision="bf16", recompute=["0"])
        assert list(model.state_dict()) == names
        x = torch.randn(4, 6)
        ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9)).eval()
        model.eval()
        before = ema(x)
        assert before.dtype == torch.float32
        with torch.no_grad():
            model[0].weight.zero_()
        assert torch.equal(ema(x), before) and not torch.equal(model(x), before)
        with pytest.raises(
            UsageError, match=r"recompute='layers.\*' matches no module. The model's children are: 0, 1"
        ):
            run.place(net(), recompute=["layers.*"])


@pytest.mark.practice("P68")
def test_recomputing_activations_keeps_bits(tmp_path: Path) -> None:
    """Recomputing activations instead of storing them changes no bit of the training."""

    def trained(folder: Path, recompute: list[str]) -> str:
        with ts.Run(folder, seed=1, lanes=2, progress=False) as run:
            model, optimizer = tracked(run, recompute=recompute)
            train_on(run, model, optimizer, steps=6)
            return ts.digest_state(model.state_dict())

    assert trained(tmp_path / "a", []) == trained(tmp_path / "b", ["0", "2"])


@pytest.mark.slow  # compiles three times; watched compiled models are compared by digest in the fast tier
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own, inside the compiler
@pytest.mark.practice("P67")
def test_a_compiled_model_trains_and_resumes_to_the_same_bits(tmp_path: Path) -> None:
    """A compiled model trains, and resumes to the same bits."""

    def trained(folder: Path, stop_at: int | None) -> str:
        snapshots = ts.Snapshots(every_steps=2)
        stopped = contextlib.suppress(InterruptedError)
        with stopped, ts.Run(folder, seed=1, progress=False, snapshots=snapshots) as run:
            model, optimizer = tracked(run, compile=True)
            train_on(run, model, optimizer, loader=ts.Loader(data(), batch_size=10), stop_at=stop_at, steps=6)
            return ts.digest_state(model.state_dict())
        return ""

    whole = trained(tmp_path / "whole", None)
    trained(tmp_path / "cut", 3)
    assert trained(tmp_path / "cut", None) == whole


SLOW_SCRIPT = """
import sys, time, torch
sys.path.insert(0, {tests!r})
import torch.nn.functional as F
from tests.run.train.small import data, net
import truestep as ts
run = ts.Run("run", seed=1, lanes=2, threads=1, progress=False)
model = run.place(net())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
run.track(model=model, optimizer=optimizer)
for step in run.steps(ts.Loader(data(), batch_size=16, workers=int(sys.argv[1])), steps=60):
    for x, y in step:
        step.backward(F.cross_entropy(model(x), y))
    step.update(optimizer)
    print(step.index, flush=True)
    time.sleep(0.01)
print(ts.digest_state(model.state_dict()))
"""


def _script(tmp_path: Path, folder: str, workers: int) -> subprocess.Popen[str]:
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / "train.py").write_text(SLOW_SCRIPT.format(tests=str(Path(__file__).parents[3])))
    return subprocess.Popen(
        [sys.executable, "train.py", str(workers)],
        cwd=tmp_path / folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@pytest.mark.parametrize(("number", "code", "workers"), [(signal.SIGINT, 130, 2), (signal.SIGTERM, 143, 0)])
def test_signals_stop_at_a_step_with_a_snapshot_and_the_command_that_goes_on(
    tmp_path: Path, number: signal.Signals, code: int, workers: int
) -> None:
    whole = _script(tmp_path, "whole", 0).communicate()[0].splitlines()[-1]
    stopped = _script(tmp_path, "cut", workers)
    assert stopped.stdout is not None
    while stopped.stdout.readline().strip() != "20":
        pass
    os.killpg(stopped.pid, number)  # as a terminal's Ctrl-C: to the whole group
    _, said = stopped.communicate()
    assert stopped.returncode == code
    last = said.strip().splitlines()
    assert len(last) == 1, said
    assert f"stopped by {number.name} after step" in last[0] and "snapshot saved" in last[0]
    assert last[0].endswith(f"train.py {workers}")
    assert list((tmp_path / "cut/run/snapshots").glob("*witness*")), "a stopped run leaves a witness"
    assert _script(tmp_path, "cut", 1).communicate()[0].splitlines()[-1] == whole
    starts = [
        event["cursor"] for event in read(tmp_path / "cut/run/record.jsonl") if event["kind"] == "start"
    ]
    assert starts[1] >= 21


def test_a_run_that_was_interrupted_goes_on_with_another_loop(tmp_path: Path) -> None:
    with ts.Run(tmp_path, seed=1, progress=False) as run:
        model, optimizer = tracked(run)
        interrupt = partial(signal.raise_signal, signal.SIGINT)
        model.register_forward_hook(lambda *_: interrupt() if run.cursor == 3 else None)
        with pytest.raises(SystemExit):
            train_on(run, model, optimizer, steps=9)
        assert run.cursor == 4
        train_on(run, model, optimizer, steps=5)
        assert run.cursor == 9


FAILING_SCRIPT = """
import shutil, signal, sys, torch
from pathlib import Path
sys.path.insert(0, {tests!r})
import torch.nn.functional as F
from tests.run.train.small import data, net
import truestep as ts
snapshots = ts.Snapshots(every_s=None, on_failure=sys.argv[1])
run = ts.Run("run", seed=1, lanes=2, threads=1, progress=False, snapshots=snapshots)
model = run.place(net())
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
run.track(model=model, optimizer=optimizer)
for step in run.steps(ts.Loader(data(), batch_size=16), steps=3):
    for x, y in step:
        step.backward(F.cross_entropy(model(x), y))
    step.update(optimizer)
    if step.index == 1:
        shutil.rmtree("run/snapshots", ignore_errors=True)
        Path("run/snapshots").write_text("no folder")
        if "signal" in sys.argv:
            signal.raise_signal(signal.SIGINT)
print("done")
"""


@pytest.mark.parametrize(
    ("arguments", "code", "last"),
    [
        (["continue"], 0, "The run ends with the snapshots before it."),
        (["stop"], 1, "could not be written"),
        (["continue", "signal"], 130, "after step 2 of 3; its snapshot could not be saved. Resume with:"),
    ],
)
def test_a_last_save_that_failed_is_told_as_what_it_is(
    tmp_path: Path, arguments: list[str], code: int, last: str
) -> None:
    (tmp_path / "train.py").write_text(FAILING_SCRIPT.format(tests=str(Path(__file__).parents[3])))
    done = subprocess.run(
        [sys.executable, "train.py", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert ("done" in done.stdout) == (code == 0)
    assert last in done.stderr.splitlines()[-1]
    assert ("Traceback" in done.stderr) == (code == 1)
    assert "save-failed" in [event["kind"] for event in read(tmp_path / "run/record.jsonl")]


def _tmpfs(folder: Path, size: str) -> None:
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=False
    ).returncode:
        pytest.skip("mounting a small tmpfs needs root")


@pytest.mark.parametrize("on_failure", ["continue", "stop"])
def test_a_full_disk_is_said_and_the_last_good_snapshot_survives(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], on_failure: Any
) -> None:
    disk = tmp_path / "disk"
    _tmpfs(disk, "400k")
    options = {"snapshots": ts.Snapshots(every_steps=5, on_failure=on_failure)}
    try:
        train(disk / "run", stop_at=6, **options)
        room = os.statvfs(disk)
        (disk / "filler").write_bytes(b"x" * (room.f_bavail * room.f_frsize - 4096))
        if on_failure == "stop":
            with pytest.raises(SaveFailed):
                train(disk / "run", **options)
        else:
            train(disk / "run", **options)
            assert "Training continues" in capfd.readouterr().err
        (disk / "filler").unlink()
        resumed = train(disk / "run", **options)
        assert resumed == train(tmp_path / "whole", **options)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": 2**63}, "at most 64 bits"),
        ({"lanes": 0}, "lanes must be 1 or more"),
        ({"nonfinite": "ignore"}, "must be 'stop' or 'skip'"),
        ({"accept": "threads"}, r"Pass accept=\['threads'\]"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        ts.Run(tmp_path, **{"seed": 1, "progress": False, **options})


def test_snapshot_options_that_make_no_sense_are_refused() -> None:
    with pytest.raises(UsageError, match="keep must be at least 2"):
        ts.Snapshots(keep=1)


def test_what_is_said_is_not_read_as_markup(capfd: pytest.CaptureFixture[str]) -> None:
    Terminal(is_on=True).say("runs/[red]a[/b]: resumed")
    assert capfd.readouterr().err == "truestep runs/[red]a[/b]: resumed\n"
