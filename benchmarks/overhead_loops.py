"""The training loops that overhead.py compares, and the stopwatch that times them all in the same way.

Judging and printing are left to overhead.py. Each framework is imported in its loop: `--only` stays quick.
"""

from __future__ import annotations

import gc
import itertools
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time, thread_time
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW
from torch.utils.data import DataLoader

Pair = tuple[Tensor, Tensor]
Contender = Callable[[int], "Lap"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """What all contenders train, and how a turn is cut.

    After warm-up that is left out come `num_own` steps of the contender and `num_bare` of the bare loop by
    turns: few, for the machine's speed to be the same. The bare ones prolong the turn, so that a bar which
    refreshes by the clock is charged to fewer steps than it would be alone: against the contender.
    `num_rewarm` untimed bare steps come before the timed ones: the cold caches that a heavy framework leaves
    are not the bare loop's cost.
    """

    make_layers: Callable[[], list[nn.Module]]
    batches: list[Pair]
    num_warm: int
    num_own: int
    num_bare: int
    num_rewarm: int


class Lap(NamedTuple):
    """One turn: seconds per step, of the contender and of the bare loop beside it, chunk by chunk."""

    own: list[float]
    bare: list[float]

    @property
    def own_s(self) -> float:
        return statistics.fmean(self.own)

    @property
    def bare_s(self) -> float:
        return statistics.fmean(self.bare)

    @property
    def typical_s(self) -> float:
        """Overhead of a step without a bar's refresh or a log's flush in it."""
        return statistics.median(own - bare for own, bare in zip(self.own, self.bare, strict=True))

    def blocks(self, num_chunks: int) -> list[tuple[float, float]]:
        """Means (own, bare) of `num_chunks` neighbouring chunks each."""
        starts = range(0, len(self.own) - num_chunks + 1, num_chunks)
        return [
            (statistics.fmean(self.own[i : i + num_chunks]), statistics.fmean(self.bare[i : i + num_chunks]))
            for i in starts
        ]


class Settings(NamedTuple):
    """Those switches of torch that a framework may turn for the whole process."""

    num_threads: int
    deterministic: int
    fills_memory: bool
    matmul_precision: str

    @classmethod
    def now(cls) -> Settings:
        return cls(
            torch.get_num_threads(),
            torch.get_deterministic_debug_mode(),
            torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
            torch.get_float32_matmul_precision(),
        )

    def apply(self) -> None:
        torch.set_num_threads(self.num_threads)
        torch.set_deterministic_debug_mode(self.deterministic)
        torch.utils.deterministic.fill_uninitialized_memory = self.fills_memory  # type: ignore[attr-defined]
        torch.set_float32_matmul_precision(self.matmul_precision)


def queue_clock() -> Callable[[], float]:
    """A clock of this thread's waiting for a processor that others held (always 0 where none is kept)."""
    try:
        handle = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    except OSError:
        return lambda: 0.0
    return lambda: int(os.pread(handle, 64, 0).split()[1]) * 1e-9


def threads_s() -> float:
    """Processor time so far of all threads of this process but the one that trains."""
    return process_time() - thread_time()


class Stopwatch:
    """Times a loop from inside: `tick` sits in the model's forward, which every loop calls once a step.

    Between two ticks lies one whole step of the contender, whatever the framework does in it; set-up and
    tear-down lie outside, in the same way for all. After a few steps, with the contender's clock stopped, the
    bare loop runs a few. A shared machine changes its speed within milliseconds by more than the overheads
    are: neighbouring steps feel the same speed, slices of a second do not. Time that the kernel gave to other
    processes is taken off.
    """

    def __init__(self, bare_step: Callable[[], None], task: Task) -> None:
        self._bare_step = bare_step
        self._task = task
        self._plain = Settings.now()
        self._queued = queue_clock()
        self.reset()

    def reset(self) -> None:
        self._num_ticks = 0
        self._own: list[float] = []
        self._bare: list[float] = []
        self._changed: Settings | None = None
        self._threads: list[tuple[float, float]] = []
        self._resumed = 0.0

    def tick(self) -> None:
        num_ticks = self._num_ticks
        self._num_ticks = num_ticks + 1
        if num_ticks % self._task.num_own == 0:
            self._own.append(perf_counter() - self._queued() - self._resumed)
            self._threads.append((threads_s(), perf_counter()))
            if num_ticks == self._task.num_warm:
                settings = Settings.now()
                self._changed = None if settings == self._plain else settings
            self._run_bare()
            self._resumed = (
                -self._queued() + perf_counter()
            )  # last, as it comes first above: reading takes 1 us

    def _run_bare(self) -> None:
        # The bare loop pays neither for a framework's switches nor for collecting its garbage.
        if self._changed:
            self._plain.apply()
        gc.disable()
        for _ in range(self._task.num_rewarm):
            self._bare_step()
        begun = -self._queued() + perf_counter()
        for _ in range(self._task.num_bare):
            self._bare_step()
        self._bare.append(perf_counter() - self._queued() - begun)
        gc.enable()
        if self._changed:
            self._changed.apply()

    def read(self, num_steps: int) -> Lap:
        expected = self._task.num_warm + num_steps + 1
        if self._num_ticks != expected:
            raise RuntimeError(
                f"the contender called the model {self._num_ticks} times, expected {expected}: its loop "
                "stops early, or does not call the model once a step."
            )
        # The contender's time is noted at the tick after its steps, the bare loop's at the tick before them.
        first = self._task.num_warm // self._task.num_own
        # A bar that refreshes in a thread does so during the bare steps as well: that share is not theirs.
        (busy_before, before), (busy_after, after) = self._threads[first], self._threads[-1]
        alone = 1 - (busy_after - busy_before) / (after - before)
        return Lap(
            own=[seconds / self._task.num_own for seconds in self._own[first + 1 :]],
            bare=[seconds / self._task.num_bare * alone for seconds in self._bare[first:-1]],
        )


class Net(nn.Sequential):
    """The task's layers with the stopwatch in front."""

    def __init__(self, task: Task, tick: Callable[[], None]) -> None:
        super().__init__(*task.make_layers())
        self.tick = tick

    def forward(self, x: Tensor) -> Tensor:
        self.tick()
        return super().forward(x)  # type: ignore[no-any-return, no-untyped-call]


class LossNet(Net):
    """The same for the Hugging Face Trainer, which wants the loss from the model."""

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:  # type: ignore[override]
        return {"loss": F.cross_entropy(super().forward(x), y)}


class Bench:
    """One task: the stopwatch over it, and fresh models, optimizers and batches for its contenders."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.resources = ExitStack()
        model = Net(task, lambda: None)
        optimizer = AdamW(model.parameters())
        batches = itertools.cycle(task.batches)

        def bare_step() -> None:
            x, y = next(batches)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()

        self.watch = Stopwatch(bare_step, task)

    def make(self) -> tuple[Net, AdamW]:
        model = Net(self.task, self.watch.tick)
        return model, AdamW(model.parameters())

    def num_total(self, num_steps: int) -> int:
        """Steps that a turn must run: warm-up, the timed ones, and one whose forward stops the clock."""
        return self.task.num_warm + num_steps + 1

    def cycle(self, num_steps: int) -> list[Pair]:
        """The turn's batches as one list: one epoch, so that nobody pays for an epoch's end."""
        return list(itertools.islice(itertools.cycle(self.task.batches), self.num_total(num_steps)))

    def contender(self, make: Callable[[Bench], Callable[[int], None]]) -> Contender:
        """Make a loop and time it; what it changes in torch's switches holds for its own turns only."""
        plain = Settings.now()
        turn = make(self)
        settings = Settings.now()
        plain.apply()

        def contend(num_steps: int) -> Lap:
            nonlocal settings
            gc.collect()
            self.watch.reset()
            settings.apply()
            try:
                turn(num_steps)
            finally:
                settings = Settings.now()
                plain.apply()
            return self.watch.read(num_steps)

        return contend

    def make_folder(self) -> Path:
        """A folder that is gone when the bench is closed."""
        return Path(self.resources.enter_context(tempfile.TemporaryDirectory(prefix="overhead-")))


def bare(bench: Bench) -> Callable[[int], None]:
    """The bare loop against itself: what it shows is the error of the method."""
    model, optimizer = bench.make()

    def turn(num_steps: int) -> None:
        for x, y in bench.cycle(num_steps):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()

    return turn


def truestep(bench: Bench) -> Callable[[int], None]:
    """Everything on: bar, record, snapshots every 60 s, seeds for each lane, finite check, shuffled order."""
    import truestep as ts

    run = ts.Run(bench.make_folder(), seed=7)
    bench.resources.callback(run.close)
    net, optimizer = bench.make()
    model = run.place(net)
    run.track(model=model, optimizer=optimizer)
    loader = ts.Loader(bench.task.batches, batch_size=None, shuffle=True)

    def turn(num_steps: int) -> None:
        for step in run.steps(loader, steps=bench.num_total(num_steps)):
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y))
            step.update(optimizer)

    return turn


def ignite_custom(bench: Bench) -> Callable[[int], None]:
    """Ignite takes any iterable: the plain list. No handler is attached."""
    from ignite.engine import Engine

    model, optimizer = bench.make()

    def process(_engine: Engine, batch: Pair) -> Tensor:
        x, y = batch
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    def turn(num_steps: int) -> None:
        Engine(process).run(bench.cycle(num_steps), max_epochs=1)

    return turn


def ignite_supervised(bench: Bench) -> Callable[[int], None]:
    """Ignite's ready trainer with its bar showing the running average of the loss."""
    from ignite.engine import create_supervised_trainer
    from ignite.handlers import ProgressBar
    from ignite.metrics import RunningAverage

    model, optimizer = bench.make()

    def turn(num_steps: int) -> None:
        trainer = create_supervised_trainer(model, optimizer, F.cross_entropy)
        RunningAverage(output_transform=lambda loss: loss).attach(trainer, "loss")
        ProgressBar().attach(trainer, ["loss"])
        trainer.run(bench.cycle(num_steps), max_epochs=1)

    return turn


def fabric(bench: Bench) -> Callable[[int], None]:
    """Model and optimizer set up; the batches stay a plain list, cheaper than its wrapped DataLoader."""
    from lightning.fabric import Fabric

    engine = Fabric(accelerator="cpu", devices=1)
    model, optimizer = engine.setup(*bench.make())

    def turn(num_steps: int) -> None:
        for x, y in bench.cycle(num_steps):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            engine.backward(loss)
            optimizer.step()

    return turn


def accelerate(bench: Bench) -> Callable[[int], None]:
    """Model, optimizer and loader prepared as its guide shows; batch_size=None spares the collating."""
    from accelerate import Accelerator  # type: ignore[import-untyped]

    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(*bench.make())

    def turn(num_steps: int) -> None:
        loader = accelerator.prepare(DataLoader(bench.cycle(num_steps), batch_size=None))  # type: ignore[arg-type]
        for x, y in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()

    return turn


class Batches:
    """For Lightning's Trainer, which takes a list for a list of loaders. Cheaper than a DataLoader."""

    def __init__(self, batches: list[Pair]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Pair]:
        return iter(self._batches)

    def __len__(self) -> int:
        return len(self._batches)


def lightning_trainer(bench: Bench, *, logs: bool) -> Callable[[int], None]:
    """A new Trainer for each turn, set up before the first tick. `logs`: bar, self.log, default logger."""
    from lightning.pytorch import LightningModule, Trainer

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.optimizer = bench.make()

        def training_step(self, batch: Pair) -> Tensor:
            x, y = batch
            loss = F.cross_entropy(self.net(x), y)
            if logs:
                self.log("loss", loss, prog_bar=True)
            return loss

        def configure_optimizers(self) -> AdamW:
            return self.optimizer

    module = Module()
    folder = bench.make_folder()

    def turn(num_steps: int) -> None:
        trainer = Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=1,
            default_root_dir=folder,
            logger=logs,
            enable_progress_bar=logs,
            enable_checkpointing=False,
            enable_model_summary=False,
        )
        trainer.fit(module, Batches(bench.cycle(num_steps)))

    return turn


def lightning_off(bench: Bench) -> Callable[[int], None]:
    """Lightning's Trainer with everything off that can be."""
    return lightning_trainer(bench, logs=False)


def lightning_bar(bench: Bench) -> Callable[[int], None]:
    """Lightning's Trainer with its default bar and logger and one logged value."""
    return lightning_trainer(bench, logs=True)


def hf_trainer(bench: Bench) -> Callable[[int], None]:
    """Hugging Face's Trainer with its bar and log; no clipping and no saving, since most others do neither.

    It builds its own DataLoader: batches of one item, whose collating takes the item out, are cheapest.
    """
    from transformers import Trainer, TrainingArguments

    model = LossNet(bench.task, bench.watch.tick)
    optimizer = AdamW(model.parameters())
    folder = bench.make_folder()

    def turn(num_steps: int) -> None:
        arguments: dict[str, Any] = {
            "output_dir": str(folder),
            "use_cpu": True,
            "num_train_epochs": 1,
            "per_device_train_batch_size": 1,
            "max_grad_norm": 0.0,
            "lr_scheduler_type": "constant",
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": False,
            "dataloader_pin_memory": False,
        }
        Trainer(
            model=model,
            args=TrainingArguments(**arguments),
            data_collator=lambda items: items[0],
            train_dataset=[{"x": x, "y": y} for x, y in bench.cycle(num_steps)],
            optimizers=(optimizer, None),
        ).train()

    return turn
