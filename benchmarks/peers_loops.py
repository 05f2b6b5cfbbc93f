"""The same small training written for truestep and for the other tools, each resumed as its documents say.

Owns data, model, loops and the tape of what every step consumed. Starting, killing, comparing and printing
are left to peers_resume.py. Each framework is imported in its loop, so that none changes another's process.
The loops called `repaired` have the lines that `truestep verify --kill` prints for such a script.
"""

from __future__ import annotations

import itertools
import json
import random
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW
from torch.utils.data import DataLoader, Dataset

import truestep as ts
from truestep.run.data import SeededOrder, SeededSamples

SEED = 7
NUM_STEPS, EVERY_STEPS = 80, 10
NUM_SAMPLES, BATCH, WIDTH, CLASSES = 230, 8, 16, 4
"""An epoch has 29 steps, its last batch 6 samples: checkpoints and kills fall into the middle of epochs."""

Batch = tuple[Tensor, Tensor, Tensor]


class Samples(Dataset[tuple[int, Tensor, int]]):
    """Vectors with their index and class, augmented by draws from all three global generators."""

    def __init__(self) -> None:
        made = torch.Generator().manual_seed(5)
        self.x = torch.randn(NUM_SAMPLES, WIDTH, generator=made)
        self.y = torch.randint(0, CLASSES, (NUM_SAMPLES,), generator=made).tolist()

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[int, Tensor, int]:
        x = self.x[index] + 0.1 * torch.randn(WIDTH) + 0.1 * float(numpy.random.rand())
        return index, x.flip(-1) if random.random() < 0.5 else x, self.y[index]


class SamplesWithState(Samples):
    """The same, offering the generators of the process it lives in as its state.

    https://docs.pytorch.org/data/0.11/stateful_dataloader_tutorial.html: "If your dataset has
    worker-specific state (eg RNG transform state) you can add state_dict / load_state_dict".
    """

    def state_dict(self) -> dict[str, Any]:
        return get_generators()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_generators(state)


def get_generators(own: torch.Generator | None = None) -> dict[str, Any]:
    """The states of all global generators, and that of the loader's own one where it has one."""
    return {
        "torch": torch.get_rng_state(),
        "numpy": numpy.random.get_state(),
        "random": random.getstate(),
        "own": None if own is None else own.get_state(),
    }


def set_generators(state: dict[str, Any], own: torch.Generator | None = None) -> None:
    torch.set_rng_state(state["torch"])
    numpy.random.set_state(state["numpy"])
    random.setstate(state["random"])
    if own is not None and state["own"] is not None:
        own.set_state(state["own"])


def make_model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, CLASSES))


def make_optimizer(model: nn.Module) -> AdamW:
    return AdamW(model.parameters(), lr=1e-2)


class Tape:
    """Writes down what each training step consumed; stands still at `stop_at` until the process is killed."""

    def __init__(self, path: Path, *, stop_at: int | None, report: Connection) -> None:
        self._file = path.open("a", buffering=1)
        self._stop_at, self._report = stop_at, report
        self._write({"start": True})

    def note(self, step: int, index: Tensor, x: Tensor) -> None:
        """Called in every training step, before the forward, with the number of finished steps."""
        if step == self._stop_at:
            self._report.send(step)
            while True:
                signal.pause()
        self._write({"step": step, "order": index.tolist(), "data": ts.digest([("x", x)])})

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")


@dataclass(frozen=True, kw_only=True)
class Desk:
    """What a loop is given: a folder of its own for checkpoints, the number of workers, the tape."""

    folder: Path
    workers: int
    tape: Tape


def truestep(desk: Desk) -> nn.Module:
    """The loop of the README."""
    run = ts.Run(
        desk.folder,
        seed=SEED,
        threads=1,
        progress=False,
        snapshots=ts.Snapshots(every_s=None, every_steps=EVERY_STEPS),
    )
    model = run.place(make_model())
    optimizer = make_optimizer(model)
    run.track(model=model, optimizer=optimizer)
    for step in run.steps(ts.Loader(Samples(), batch_size=BATCH, workers=desk.workers), steps=NUM_STEPS):
        for index, x, y in step:
            desk.tape.note(run.cursor, index, x)
            step.backward(F.cross_entropy(model(x), y))
        step.update(optimizer)
    run.close()
    return model


def torchdata(
    desk: Desk, *, data: type[Samples] = Samples, has_generator: bool = False, after_iter: bool = False
) -> nn.Module:
    """A bare loop over StatefulDataLoader that saves weights, optimizer, loader and all generators.

    Loader: https://docs.pytorch.org/data/0.11/stateful_dataloader_tutorial.html. `has_generator`: with the
    generator and worker_init_fn of https://docs.pytorch.org/docs/stable/notes/randomness.html#dataloader.
    `after_iter` is in no document: generators are restored once `iter()` has drawn from them.
    """
    from torchdata.stateful_dataloader import StatefulDataLoader

    seed_all(SEED)
    torch.use_deterministic_algorithms(True)
    model = make_model()
    optimizer = make_optimizer(model)
    options: dict[str, Any] = {"num_workers": desk.workers, "batch_size": BATCH, "shuffle": True}
    if has_generator:
        options |= {"worker_init_fn": seed_worker, "generator": torch.Generator().manual_seed(SEED)}
    loader = StatefulDataLoader(data(), **options)
    parts = {"model": model, "optimizer": optimizer, "loader": loader}
    path = desk.folder / "checkpoint.pt"
    saved = torch.load(path, weights_only=False) if path.exists() else None
    done = 0
    if saved is not None:
        for name, part in parts.items():
            part.load_state_dict(saved[name])
        done = saved["done"]
        set_generators(saved["generators"], loader.generator)
    while done < NUM_STEPS:
        batches = iter(loader)
        if after_iter and saved is not None:
            set_generators(saved["generators"])
            saved = None
        for batch in batches:
            train_step(desk, batch, model=model, optimizer=optimizer, done=done)
            done += 1
            if done % EVERY_STEPS == 0:
                state = {name: part.state_dict() for name, part in parts.items()}
                save(path, {**state, "done": done, "generators": get_generators(loader.generator)})
            if done == NUM_STEPS:
                break
    return model


def bare_repaired(desk: Desk) -> nn.Module:
    """The bare loop with the lines that verify prints: position and draws follow from the step."""
    seed_all(SEED)
    torch.use_deterministic_algorithms(True)
    model = make_model()
    optimizer = make_optimizer(model)
    dataset = Samples()
    order = SeededOrder(len(dataset), seed=SEED)
    samples = SeededSamples(dataset, seed=SEED)
    loader = DataLoader(samples, sampler=order, batch_size=BATCH, num_workers=desk.workers)
    path = desk.folder / "checkpoint.pt"
    step = 0
    if path.exists():
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
        order.skip(batches=step, batch_size=BATCH)
    while step < NUM_STEPS:
        for batch in itertools.islice(loader, NUM_STEPS - step):
            torch.manual_seed(SEED + 1 + step)
            train_step(desk, batch, model=model, optimizer=optimizer, done=step)
            step += 1
            if step % EVERY_STEPS == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                save(path, {**state, "step": step})
    return model


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    numpy.random.seed(seed)
    random.seed(seed)


def seed_worker(_worker: int) -> None:
    seed = torch.initial_seed() % 2**32
    numpy.random.seed(seed)
    random.seed(seed)


def save(path: Path, state: dict[str, Any]) -> None:
    """A kill shall not tear the file: that is another benchmark's question."""
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    temporary.replace(path)


def train_step(desk: Desk, batch: Batch, *, model: nn.Module, optimizer: AdamW, done: int) -> None:
    index, x, y = batch
    desk.tape.note(done, index, x)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()


def lightning(
    desk: Desk, *, is_best: bool = False, is_repaired: bool = False, data: type[Samples] = Samples
) -> nn.Module:
    """Lightning's Trainer, a checkpoint callback every few steps, `ckpt_path="last"`.

    https://lightning.ai/docs/pytorch/stable/common/checkpointing_intermediate.html. `is_best`: seeds and
    switch of https://lightning.ai/docs/pytorch/stable/common/trainer.html#reproducibility, and a stateful
    loader, for which the Trainer saves and restores its state (Lightning-AI/pytorch-lightning#19361, #19475).
    """
    from lightning.pytorch import LightningModule, Trainer, seed_everything
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_model()

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            if is_repaired:
                progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
                order.skip(batches=progress["total"]["ready"], batch_size=BATCH)

        def training_step(self, batch: Batch) -> Tensor:
            if is_repaired:
                torch.manual_seed(SEED + 1 + self.trainer.fit_loop.epoch_loop.total_batch_idx)
            index, x, y = batch
            desk.tape.note(self.global_step, index, x)
            return F.cross_entropy(self.net(x), y)

        def configure_optimizers(self) -> AdamW:
            return make_optimizer(self.net)

    seed_everything(SEED, workers=is_best, verbose=False)
    make_loader: Any = DataLoader
    if is_best:
        from torchdata.stateful_dataloader import StatefulDataLoader

        make_loader = StatefulDataLoader
    if is_repaired:
        dataset = data()
        order = SeededOrder(len(dataset), seed=SEED)
        samples = SeededSamples(dataset, seed=SEED)
        loader = DataLoader(samples, sampler=order, batch_size=BATCH, num_workers=desk.workers)
    else:
        loader = make_loader(data(), batch_size=BATCH, shuffle=True, num_workers=desk.workers)
    module = Module()
    trainer = Trainer(
        accelerator="cpu",
        devices=1,
        max_steps=NUM_STEPS,
        default_root_dir=desk.folder,
        deterministic=is_best,
        callbacks=[ModelCheckpoint(dirpath=desk.folder, every_n_train_steps=EVERY_STEPS, save_last=True)],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    # A dataset's state holds generators, which are no tensors.
    trainer.fit(module, loader, ckpt_path="last", weights_only=False)
    return module.net


def accelerate(
    desk: Desk,
    *,
    is_seedable: bool = False,
    is_stateful: bool = False,
    is_repaired: bool = False,
    data: type[Samples] = Samples,
) -> nn.Module:
    """Accelerate with save_state and load_state every few steps, the rest of the epoch by its documents.

    https://huggingface.co/docs/accelerate/usage_guides/checkpoint: skip_first_batches for a plain loader; for
    `is_stateful` (use_stateful_dataloader) load_state alone. `is_seedable`: use_seedable_sampler, "ensures
    training results are fully reproducible" (DataLoaderConfiguration), with set_seed.
    """
    from accelerate import Accelerator, DataLoaderConfiguration  # type: ignore[import-untyped]
    from accelerate.utils import set_seed  # type: ignore[import-untyped]

    set_seed(SEED, deterministic=is_seedable)
    options = {"use_seedable_sampler": is_seedable, "use_stateful_dataloader": is_stateful}
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))
    net = make_model()
    samples = SeededSamples(data(), seed=SEED) if is_repaired else None
    loader: Any = DataLoader(samples or data(), batch_size=BATCH, shuffle=True, num_workers=desk.workers)
    model, optimizer, loader = accelerator.prepare(net, make_optimizer(net), loader)
    done = max((int(path.name.removeprefix("step_")) for path in desk.folder.glob("step_*")), default=0)
    if done:
        accelerator.load_state(str(desk.folder / f"step_{done}"))
    first_epoch, num_skipped = divmod(done, len(loader))
    for epoch in itertools.count(first_epoch):
        if samples:
            samples.set_epoch(epoch)
        loader.set_epoch(epoch)
        active = loader
        if epoch == first_epoch and num_skipped and not is_stateful:
            active = accelerator.skip_first_batches(loader, num_skipped)
        for index, x, y in active:
            if is_repaired:
                torch.manual_seed(SEED + 1 + done)
            desk.tape.note(done, index, x)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            optimizer.step()
            done += 1
            if done % EVERY_STEPS == 0:
                accelerator.save_state(str(desk.folder / f"step_{done}"))
            if done == NUM_STEPS:
                return net
    raise AssertionError("epochs are counted without end")


def hf_trainer(desk: Desk, *, is_best: bool = False, is_repaired: bool = False) -> nn.Module:
    """Hugging Face's Trainer: save_steps, resume_from_checkpoint=True, data skipped by itself (the default).

    https://huggingface.co/docs/transformers/trainer#checkpoints. `is_best`: full_determinism and data_seed as
    well; its seedable sampler is on in any case.
    """
    from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

    class SetEpoch(TrainerCallback):
        def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002 - called like this
            samples.set_epoch(int(state.epoch))

    class Noting(Trainer):
        def compute_loss(self, model: nn.Module, inputs: dict[str, Tensor], **_others: Any) -> Tensor:
            desk.tape.note(self.state.global_step, inputs["index"], inputs["x"])
            return F.cross_entropy(model(inputs["x"]), inputs["y"])

    set_seed(SEED)
    model = make_model()
    arguments: dict[str, Any] = {
        "output_dir": str(desk.folder),
        "use_cpu": True,
        "seed": SEED,
        "max_steps": NUM_STEPS,
        "per_device_train_batch_size": BATCH,
        "learning_rate": 1e-2,
        "save_strategy": "steps",
        "save_steps": EVERY_STEPS,
        "ignore_data_skip": False,
        "dataloader_num_workers": desk.workers,
        "dataloader_pin_memory": False,
        "remove_unused_columns": False,
        "report_to": "none",
        "disable_tqdm": True,
    }
    if is_best:
        arguments |= {"full_determinism": True, "data_seed": SEED}
    samples = SeededSamples(Samples(), seed=SEED)
    trainer = Noting(
        model=model,
        args=TrainingArguments(**arguments),
        data_collator=collate_by_name,
        train_dataset=samples if is_repaired else Samples(),
        callbacks=[SetEpoch()] if is_repaired else [],
    )
    trainer.train(resume_from_checkpoint=any(desk.folder.glob("checkpoint-*")))
    return model


def collate_by_name(items: list[tuple[int, Tensor, int]]) -> dict[str, Tensor]:
    index, x, y = zip(*items, strict=True)
    return {"index": torch.tensor(index), "x": torch.stack(x), "y": torch.tensor(y)}


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A row of the table: its label, its loop, and what the server that starts it imports beforehand."""

    label: str
    train: Callable[[Desk], nn.Module]
    modules: tuple[str, ...] = ()


def _lightning(label: str, **options: Any) -> Contender:
    return Contender(label=label, train=partial(lightning, **options), modules=("lightning.pytorch",))


def _accelerate(label: str, **options: Any) -> Contender:
    return Contender(label=label, train=partial(accelerate, **options), modules=("accelerate",))


def _torchdata(label: str, **options: Any) -> Contender:
    return Contender(label=label, train=partial(torchdata, **options))


def _hf_trainer(label: str, **options: Any) -> Contender:
    return Contender(
        label=label, train=partial(hf_trainer, **options), modules=("accelerate", "transformers.trainer")
    )


CONTENDERS: Mapping[str, Contender] = {
    "truestep": Contender(label="truestep", train=truestep),
    "lightning": _lightning("Lightning"),
    "lightning-best": _lightning("Lightning, stateful loader", is_best=True),
    "lightning-data": _lightning(
        "Lightning, stateful loader and dataset", is_best=True, data=SamplesWithState
    ),
    "lightning-repaired": _lightning("Lightning, as repaired", is_repaired=True),
    "accelerate": _accelerate("Accelerate"),
    "accelerate-seedable": _accelerate("Accelerate, seedable sampler", is_seedable=True),
    "accelerate-best": _accelerate("Accelerate, stateful loader", is_seedable=True, is_stateful=True),
    "accelerate-data": _accelerate(
        "Accelerate, stateful loader and dataset", is_seedable=True, is_stateful=True, data=SamplesWithState
    ),
    "accelerate-repaired": _accelerate("Accelerate, as repaired", is_seedable=True, is_repaired=True),
    "torchdata": _torchdata("torchdata, generators saved"),
    "torchdata-seeded": _torchdata("torchdata, loader with own generator", has_generator=True),
    "torchdata-iter": _torchdata("torchdata, restored after iter()", after_iter=True),
    "torchdata-data": _torchdata(
        "torchdata, after iter(), stateful dataset", after_iter=True, data=SamplesWithState
    ),
    "torchdata-repaired": Contender(label="torchdata, as repaired", train=bare_repaired),
    "hf": _hf_trainer("HF Trainer"),
    "hf-best": _hf_trainer("HF Trainer, full determinism", is_best=True),
    "hf-repaired": _hf_trainer("HF Trainer, as repaired", is_repaired=True),
}
"""Of each tool the default first, then what its documents offer, what a careful user can add, and last what
`truestep verify --kill` prints."""
