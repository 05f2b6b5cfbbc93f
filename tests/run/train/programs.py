"""Training programs put together from features, as people combine them.

A `Program` is what is trained, a `Life` one start of its script and how that ends. `train` is the script.
"""

import json
import math
import multiprocessing
import os
import random
import signal
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, ReduceLROnPlateau
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import Dataset, IterableDataset, TensorDataset
from torchmetrics import MeanMetric

import truestep as ts
from truestep import record

GENERATORS: dict[str, Callable[[], float]] = {
    "torch": lambda: torch.randn(()).item(),
    "numpy": lambda: float(numpy.random.randn()),  # these two keep the second half of a pair
    "random": lambda: random.gauss(0, 1),
}
PLACES = (
    *("before", "body", "lane", "lanes", "end", "between", "after"),
    *("sample", "forward", "evaluate", "first"),
)
"""Where a program can draw: before the first loop, in a step before, in and after its lanes, at its end,
between and after loops, in the data, in the model, in an evaluation, and on the first process alone."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """What is trained: each field is one feature, and its default is to do without."""

    lanes: int = 1
    phases: tuple[int, ...] = (5,)
    """The steps of each loop; counted in epochs, a third of them."""
    in_epochs: bool = False
    leaves_at: int | None = None
    """The step after which the script leaves its loop by `break`."""
    draws: tuple[tuple[str, str], ...] = ()
    """Places and the generator that is drawn from there."""
    draws_from: int = 0
    """The first step that draws."""
    data: str = "tensors"
    num_samples: int = 16
    shuffle: bool = True
    drop_last: bool = False
    norm: str = ""
    optimizer: str = "sgd"
    has_critic: bool = False
    """Whether a second model with an optimizer of its own learns in a pass of its own."""
    scheduler: str = ""
    has_ema: bool = False
    clips: bool = False
    losses: str = ""
    """Two losses of a lane: each with its forward and backward, or of one forward."""
    is_weighted: bool = False
    skips_at: int | None = None
    """The step in which the loss is not finite."""
    evaluates: str = ""
    precision: str = "fp32"
    every_steps: int = 2
    in_background: bool = False


@dataclass(frozen=True, kw_only=True)
class Life:
    """One start of a program's script, on how many processes, and how it ends: '' is the script's own end."""

    processes: int = 1
    workers: int = 0
    parallel: str = "ddp"
    end: str = ""
    """'kill' and 'terminate' are signals, 'fail' is an exception."""
    place: str = "end"
    at: int = 0
    """The step, the number of the system call, or hundredths of a second."""
    rank: int = 0


class Failed(Exception):
    """The script's own failure."""


class Fate:
    """Ends this process where its life says."""

    def __init__(self, life: Life, rank: int) -> None:
        self._life = life
        self._is_ours = bool(life.end) and life.rank == rank
        self._num_calls = 0
        if self._is_ours and life.place == "save":
            for name in ("write", "fsync", "rename"):
                setattr(os, name, self._counted(getattr(os, name)))

    def reach(self, place: str, index: int) -> None:
        """End here if this is the place and the time."""
        if not self._is_ours or (place, index) != (self._life.place, self._life.at):
            return
        if self._life.end == "fail":
            raise Failed
        os.kill(os.getpid(), signal.SIGTERM if self._life.end == "terminate" else signal.SIGKILL)

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **options: Any) -> Any:
            if self._num_calls == self._life.at:
                os.kill(os.getpid(), signal.SIGKILL)
            self._num_calls += 1
            return call(*args, **options)

        return called


def draw(program: Program, place: str, index: int | None = None) -> float:
    """Return the sum of what the program draws at a place; 0.0 where it draws nothing."""
    if index is not None and index < program.draws_from:
        return 0.0
    return sum((math.tanh(GENERATORS[name]()) for where, name in program.draws if where == place), 0.0)


def tensors(num_samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.Generator().manual_seed(num_samples)
    labels = torch.randint(0, 3, (num_samples,), generator=made)
    return torch.randn(num_samples, 4, generator=made), labels


class Samples(Dataset[Any]):
    """Samples with augmentation."""

    def __init__(self, program: Program, fate: Fate) -> None:
        self._program, self._fate = program, fate
        self._x, self._y = tensors(program.num_samples)

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        self._fate.reach("sample", index)
        return self._x[index] + draw(self._program, "sample"), self._y[index]


class Stream(IterableDataset[Any]):
    """The same samples from front to back; it knows where it stands."""

    def __init__(self, program: Program, fate: Fate, *, is_endless: bool) -> None:
        self._samples, self._next = Samples(program, fate), 0
        self._is_endless = is_endless

    def __iter__(self) -> Iterator[Any]:
        while self._is_endless or self._next < len(self._samples):
            self._next = self._next % len(self._samples) + 1
            yield self._samples[self._next - 1]

    def state_dict(self) -> dict[str, Any]:
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._next = state["next"]


NORMS: dict[str, Callable[[], nn.Module]] = {
    "": nn.Identity,
    "batch": lambda: nn.BatchNorm1d(6),
    "cumulative": lambda: nn.BatchNorm1d(6, momentum=None),
    "dropout": lambda: nn.Dropout(0.3),
}


class Model(nn.Module):
    """Two layers, with what the program puts between them."""

    def __init__(self, program: Program) -> None:
        super().__init__()
        self._program = program
        self.first, self.norm, self.last = nn.Linear(4, 6), NORMS[program.norm](), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noise = draw(self._program, "forward") if self.training else 0.0
        return self.last(torch.tanh(self.norm(self.first(x)) + noise))


OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda parameters: SGD(parameters, lr=0.1),
    "adamw": lambda parameters: AdamW(parameters, lr=0.02, amsgrad=True),
}
SCHEDULERS: dict[str, Callable[[Optimizer], Any]] = {
    "cosine": lambda optimizer: CosineAnnealingLR(optimizer, T_max=6),
    "by hand": lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "plateau": lambda optimizer: ReduceLROnPlateau(optimizer, patience=0),
}


class Script:
    """The objects of a program's script, and what it does with them."""

    def __init__(self, run: ts.Run, program: Program, life: Life, fate: Fate) -> None:
        self.run, self.program, self.life, self.fate = run, program, life, fate
        self.model = run.place(Model(program), precision=program.precision, parallel=life.parallel)
        self.critic = run.place(nn.Linear(3, 3), parallel=life.parallel)
        make = OPTIMIZERS[program.optimizer]
        self.optimizer, self.second = make(self.model.parameters()), make(self.critic.parameters())
        self.scheduler = SCHEDULERS[program.scheduler](self.optimizer) if program.scheduler else None
        self.ema = (
            AveragedModel(self.model, avg_fn=lambda old, new, _: 0.5 * old + 0.5 * new, use_buffers=True)
            if program.has_ema
            else None
        )
        self.before = draw(program, "before")
        self.drawn: dict[str, list[float]] = {"between": [], "after": []}
        run.track(**self.parts())

    def parts(self) -> dict[str, Any]:
        """Return everything that has a state, by name."""
        found = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "ema": self.ema,
        }
        if self.program.has_critic:
            found |= {"critic": self.critic, "second": self.second}
        return {name: item for name, item in found.items() if item is not None}

    def loader(self, *, workers: int, has_end: bool = False) -> ts.Loader:
        """Return a loader for training, or for an evaluation, which needs an end."""
        program = self.program
        x, y = tensors(program.num_samples)
        data = {
            "tensors": lambda: TensorDataset(x, y),
            "list": lambda: list(zip(x, y, strict=True)),
            "samples": lambda: Samples(program, self.fate),
            "stream": lambda: Stream(program, self.fate, is_endless=False),
            "endless": lambda: Stream(program, self.fate, is_endless=not has_end),
        }[program.data]()
        options = {"shuffle": program.shuffle, "drop_last": program.drop_last}
        return ts.Loader(data, batch_size=8, workers=workers, **options)

    def go(self) -> None:
        """Run all loops."""
        loader = self.loader(workers=self.life.workers)
        for phase, length in enumerate(self.program.phases):
            amount = {"epochs": 1 + length // 4} if self.program.in_epochs else {"steps": length}
            for step in self.run.steps(loader, **amount):
                self.step(step)
                if step.index == self.program.leaves_at:
                    break
            self.between(phase)
        self.fate.reach("after", 0)
        self.drawn["after"].append(draw(self.program, "after"))

    def step(self, step: Any) -> None:
        """Do one step as the program says."""
        program, index = self.program, step.index
        self.fate.reach("body", index)
        scale = 1 + 0.1 * draw(program, "body", index)
        if program.has_critic:
            for x, y in step:
                step.backward(F.cross_entropy(self.critic(self.model(scale * x).detach()), y))
            step.update(self.second)
        for x, y in step:
            self.lane(step, scale * x, y)
        self.fate.reach("lanes", index)
        noise = draw(program, "lanes", index)
        step.log(noise=noise)
        moves = self.scheduler if program.scheduler == "cosine" else None
        step.update(self.optimizer, clip_norm=0.1 if program.clips else None, scheduler=moves)
        self.finish(index)
        self.fate.reach("end", index)

    def lane(self, step: Any, x: torch.Tensor, y: torch.Tensor) -> None:
        """Compute one lane's loss and gradients."""
        program, index = self.program, step.index
        self.fate.reach("lane", index)
        x = x + 0.1 * (self.before + draw(program, "lane", index))
        loss = F.cross_entropy(self.model(x), y)
        if index == program.skips_at and int(y[0]) == 0:
            loss = loss * math.inf
        weight = 1 + int((y > 0).sum()) if program.is_weighted else None
        step.backward(loss, weight=weight, retain_graph=program.losses == "retained")
        if program.losses == "retained":
            step.backward(loss * 0.5, weight=weight)
        if program.losses == "two":
            step.backward(self.model(0.5 * x).square().mean(), weight=weight)

    def finish(self, index: int) -> None:
        """Do what comes after a step's update."""
        program = self.program
        with torch.no_grad():
            self.model.first.bias += 0.01 * draw(program, "end", index)
        if program.evaluates == "step" and index % 2:
            value = self.evaluate("step")
            if program.scheduler == "plateau":
                self.scheduler.step(value)
        if program.scheduler == "by hand":
            self.scheduler.step()
        if self.ema is not None:
            self.ema.update_parameters(self.model)
        if self.run.is_first:
            draw(program, "first", index)

    def between(self, phase: int) -> None:
        """Do what comes after a loop."""
        program = self.program
        if phase == len(program.phases) - 1:
            return
        self.fate.reach("between", phase)
        value = draw(program, "between")
        self.drawn["between"].append(value)
        with torch.no_grad():
            self.model.last.bias += 0.01 * value
        for group in self.optimizer.param_groups:
            group["lr"] *= 0.5
        if program.evaluates == "between":
            self.evaluate("between")

    def evaluate(self, name: str) -> float:
        """Return the mean loss over all samples."""

        def forward(model: nn.Module, batch: Any) -> tuple[Any, ...]:
            self.fate.reach("evaluate", self.run.cursor)
            x, y = batch
            return (F.cross_entropy(model(x + 0.1 * draw(self.program, "evaluate")), y),)

        loader = self.loader(workers=0, has_end=True)
        return self.run.evaluate(self.model, loader, metric=MeanMetric(), forward=forward, name=name)


def train(program: Program, folder: Path, *, life: Life, rank: int) -> dict[str, Any]:
    """Run a program's script in this process; return what it ends with, part by part."""
    fate = Fate(life, rank)
    snapshots = ts.Snapshots(every_steps=program.every_steps, in_background=program.in_background)
    nonfinite = "stop" if program.skips_at is None else "skip"
    options = {"threads": 1, "progress": False, "snapshots": snapshots, "nonfinite": nonfinite}
    with ts.Run(folder, seed=7, lanes=program.lanes, **options) as run:
        script = Script(run, program, life, fate)
        script.go()
        found: dict[str, Any] = {
            name: ts.digest_state(item.state_dict()) for name, item in script.parts().items()
        }
        found |= {name: [value.hex() for value in values] for name, values in script.drawn.items()}
        found["cursor"] = run.cursor
    return found | (_recorded(folder / "record.jsonl") if run.is_first else {})


def _recorded(path: Path) -> dict[str, Any]:
    """Return the record's values by step; a learning rate holds until the next one."""
    found: dict[str, dict[str, Any]] = {}
    rates: dict[str, Any] = {}
    for step, values in sorted(record.read_steps(path).items()):
        rates |= {name: value for name, value in values.items() if name.startswith("learning_rate")}
        kept = {name: value for name, value in values.items() if name not in ("end_us", "memory_bytes")}
        for name, value in (kept | rates).items():
            found.setdefault(f"recorded {name}", {})[str(step)] = float(value).hex()
    for event in record.read(path):
        if event["kind"] == "evaluate" and event["name"] == "step":
            found.setdefault("evaluated", {})[str(event["cursor"])] = float(event["value"]).hex()
    return found


def live(program: Program, life: Life, folder: str, rank: int) -> None:
    """Be one process of one life; what it ends with, or how it failed, is left in a file of the folder."""
    multiprocessing.set_start_method("fork", force=True)  # of loader workers, as in a script started by hand
    torch.set_num_threads(1)
    place = Path(folder)
    os.dup2(os.open(place / f"printed-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
    code = 0
    try:
        if life.processes > 1:
            store = f"file://{place / 'store'}"
            dist.init_process_group("gloo", init_method=store, rank=rank, world_size=life.processes)
        found = train(program, place / "run", life=life, rank=rank)
        (place / f"found-{rank}").write_text(json.dumps(found))
    except BaseException:  # noqa: BLE001 - judged by who started it
        (place / f"error-{rank}").write_text(traceback.format_exc())
        code = 1
    os._exit(code)
