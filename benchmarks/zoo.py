"""The zoo: small models of many kinds, each trained by one plain loop, for proofs that bits stay.

Every dataset augments with draws from the global generators, every member keeps an EMA and evaluates.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import Dataset, IterableDataset
from torchmetrics import MeanMetric

import truestep as ts

NUM_SAMPLES, BATCH, CLASSES, VOCABULARY = 150, 32, 5, 40
Batch = Any


@dataclass(kw_only=True)
class Member:
    """One model of the zoo with what it needs to train."""

    model: nn.Module
    data: Any
    valid: Any
    loss: Callable[[nn.Module, Batch], torch.Tensor]
    make_optimizers: Callable[["Member"], dict[str, Optimizer]]
    """Called once the model is placed: sharding gives it new parameters."""
    weight: Callable[[Batch], torch.Tensor | None] = lambda _batch: None
    collate: Any = None
    clip_norm: float = 0.5
    """Such that some steps are clipped and some are not."""
    placement: dict[str, Any] = field(default_factory=dict)
    others: dict[str, nn.Module] = field(default_factory=dict)
    step: Callable[["Member", dict[str, Optimizer], Any], None] | None = None


class Vectors(Dataset[tuple[torch.Tensor, int]]):
    """Vectors with a class; noise is drawn from torch, random and NumPy when `is_noisy`."""

    def __init__(self, shape: tuple[int, ...], *, is_noisy: bool) -> None:
        made = torch.Generator().manual_seed(5)
        self.x = torch.randn(NUM_SAMPLES, *shape, generator=made)
        self.y = torch.randint(0, CLASSES, (NUM_SAMPLES,), generator=made).tolist()
        self.is_noisy = is_noisy

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        x = self.x[index]
        if self.is_noisy:
            x = x + 0.1 * torch.randn_like(x) + 0.1 * float(numpy.random.rand())
            x = x.flip(-1) if random.random() < 0.5 else x
        return x, self.y[index]


class Sentences(Dataset[torch.Tensor]):
    """Token sequences of uneven length; some tokens are replaced at random when `is_noisy`."""

    def __init__(self, *, is_noisy: bool, fixed_length: int | None = None) -> None:
        made = numpy.random.default_rng(5)
        lengths = made.integers(4, 12, NUM_SAMPLES) if fixed_length is None else [fixed_length] * NUM_SAMPLES
        self.rows = [torch.from_numpy(made.integers(1, VOCABULARY, int(length))) for length in lengths]
        self.is_noisy = is_noisy

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        row = self.rows[index]
        if self.is_noisy:
            row = torch.where(torch.rand(row.shape) < 0.1, random.randrange(1, VOCABULARY), row)
        return row


class Stream(IterableDataset[tuple[torch.Tensor, int]]):
    """A stream with a position of its own that can be saved, as a reader of log files would have."""

    def __init__(self) -> None:
        self.source = Vectors((20,), is_noisy=True)
        self.position = 0

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        while self.position < NUM_SAMPLES:
            self.position += 1
            yield self.source[(self.position * 7) % NUM_SAMPLES]
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class Block(nn.Module):
    """A transformer block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, 4, dropout=0.1, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        normed = self.norm1(x)
        x = x + self.attention(normed, normed, normed, attn_mask=mask, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):
    """A small language model whose output weights are its embedding."""

    def __init__(self, width: int = 32, depth: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Tagger(nn.Module):
    """An LSTM over sequences of vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 24, num_layers=2, dropout=0.2, batch_first=True)
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def _mlp_model() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, CLASSES)
    )


def _cnn_model() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, CLASSES),
    )


def _class_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def _token_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    tokens = batch.values
    targets = tokens[:, 1:].masked_fill(~batch.mask[:, 1:], -100)
    return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), targets.flatten())


def _num_targets(batch: Batch) -> torch.Tensor:
    return batch.mask[:, 1:].sum()


def _vectors(shape: tuple[int, ...]) -> dict[str, Any]:
    return {
        "data": Vectors(shape, is_noisy=True),
        "valid": Vectors(shape, is_noisy=False),
        "loss": _class_loss,
    }


def _sentences() -> dict[str, Any]:
    parts = {"data": Sentences(is_noisy=True), "valid": Sentences(is_noisy=False)}
    return {**parts, "loss": _token_loss, "weight": _num_targets, "collate": ts.pad_collate()}


def _adamw(member: Member) -> dict[str, Optimizer]:
    return {"optimizer": AdamW(ts.decay_groups(member.model, weight_decay=0.05), lr=3e-3)}


def _sgd(member: Member) -> dict[str, Optimizer]:
    return {"optimizer": SGD(member.model.parameters(), lr=0.05, momentum=0.9, nesterov=True)}


def _adam(member: Member) -> dict[str, Optimizer]:
    return {"optimizer": Adam(member.model.parameters(), lr=3e-3)}


def _adagrad(member: Member) -> dict[str, Optimizer]:
    return {"optimizer": Adagrad(member.model.parameters(), lr=0.05)}


def _adams(member: Member) -> dict[str, Optimizer]:
    return {
        "for_critic": Adam(member.others["critic"].parameters(), lr=2e-3),
        "optimizer": Adam(member.model.parameters(), lr=2e-3),
    }


def mlp() -> Member:
    """Dropout."""
    return Member(model=_mlp_model(), make_optimizers=_adamw, **_vectors((20,)))


def cnn() -> Member:
    """Convolution and BatchNorm."""
    return Member(model=_cnn_model(), make_optimizers=_sgd, **_vectors((3, 8, 8)))


def transformer() -> Member:
    """Attention, tied weights, padded tokens."""
    return Member(model=Decoder(), make_optimizers=_adamw, clip_norm=9.0, **_sentences())


def lstm() -> Member:
    """A recurrent network."""
    return Member(model=Tagger(), make_optimizers=_adam, clip_norm=0.15, **_vectors((7, 6)))


def embedding_bag() -> Member:
    """Bags of embeddings; the target is the first token's class."""
    model = nn.Sequential(nn.EmbeddingBag(VOCABULARY, 16, mode="mean"), nn.Linear(16, CLASSES))
    return Member(
        model=model,
        data=Sentences(is_noisy=True, fixed_length=6),
        valid=Sentences(is_noisy=False, fixed_length=6),
        loss=lambda model, tokens: F.cross_entropy(model(tokens), tokens[:, 0] % CLASSES),
        make_optimizers=_adagrad,
        clip_norm=0.3,
    )


def bf16() -> Member:
    """Autocast to bfloat16."""
    return Member(
        model=_cnn_model(), make_optimizers=_adamw, placement={"precision": "bf16"}, **_vectors((3, 8, 8))
    )


def recompute() -> Member:
    """Activation checkpointing, with dropout inside."""
    placement = {"recompute": ["blocks.*"]}
    return Member(model=Decoder(), make_optimizers=_adamw, clip_norm=9.0, placement=placement, **_sentences())


def frozen() -> Member:
    """A frozen body with BatchNorm in train mode: its statistics move, its weights do not."""
    model = _cnn_model()
    for parameter in model[:3].parameters():
        parameter.requires_grad_(False)
    return Member(model=model, make_optimizers=_adamw, **_vectors((3, 8, 8)))


def stream() -> Member:
    """An iterable dataset with state."""
    return Member(model=_mlp_model(), make_optimizers=_adamw, **{**_vectors((20,)), "data": Stream()})


def gan() -> Member:
    """Two models, two optimizers, two passes over each batch."""
    generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 20))
    critic = nn.Sequential(nn.Linear(20, 32), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(32, 1))
    return Member(
        model=generator,
        others={"critic": critic},
        loss=lambda _model, batch: critic(batch[0]).mean(),
        make_optimizers=_adams,
        clip_norm=0.19,
        step=_gan_step,
        **{key: value for key, value in _vectors((20,)).items() if key != "loss"},
    )


def _gan_step(member: Member, optimizers: dict[str, Optimizer], step: Any) -> None:
    critic = member.others["critic"]
    for x, _ in step:
        fake = member.model(torch.randn(len(x), 8, device=x.device)).detach()
        step.backward(F.softplus(-critic(x)).mean() + F.softplus(critic(fake)).mean())
    step.update(optimizers["for_critic"])
    for x, _ in step:
        step.backward(F.softplus(-critic(member.model(torch.randn(len(x), 8, device=x.device)))).mean())
    step.update(optimizers["optimizer"], clip_norm=member.clip_norm)


ZOO: dict[str, Callable[[], Member]] = {
    member.__name__: member
    for member in (mlp, cnn, transformer, lstm, embedding_bag, bf16, recompute, frozen, gan, stream)
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a member is trained. Nothing but `lanes`, `batch_size` and the length may change the result."""

    workers: int = 0
    num_steps: int = 12
    every_steps: int = 4
    lanes: int | None = 4
    batch_size: int = BATCH
    parallel: str = "ddp"
    threads: int = 1


def train(name: str, folder: Path, *, plan: Plan) -> dict[str, str]:
    """Train one member to its end and return the digests of everything that must not change."""
    run = ts.Run(
        folder,
        seed=7,
        lanes=plan.lanes,
        threads=plan.threads,
        progress=False,
        snapshots=ts.Snapshots(every_steps=plan.every_steps),
    )
    member = ZOO[name]()
    ema = AveragedModel(member.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    model = run.place(member.model, **member.placement, parallel=plan.parallel)
    run.place(ema.module, **member.placement, parallel=plan.parallel)
    for other in member.others.values():
        other.to(run.device)
    optimizers = member.make_optimizers(member)
    scheduler = CosineAnnealingLR(optimizers["optimizer"], T_max=40)
    run.track(model=model, ema=ema, scheduler=scheduler, **member.others, **optimizers)
    loader = ts.Loader(member.data, batch_size=plan.batch_size, workers=plan.workers, collate=member.collate)
    for step in run.steps(loader, steps=plan.num_steps):
        if member.step is not None:
            member.step(member, optimizers, step)
        else:
            for batch in step:
                step.backward(member.loss(model, batch), weight=member.weight(batch))
            step.update(optimizers["optimizer"], clip_norm=member.clip_norm, scheduler=scheduler)
        ema.update_parameters(model)
    valid = ts.Loader(member.valid, batch_size=plan.batch_size, shuffle=False, collate=member.collate)
    value = run.evaluate(
        ema, valid, metric=MeanMetric(), forward=lambda ema, batch: (member.loss(ema.module, batch),)
    )
    parts = {"model": model, "ema": ema, "scheduler": scheduler, **member.others, **optimizers}
    digests = {part: ts.digest_state(item.state_dict()) for part, item in parts.items()}
    run.close()
    return {**digests, "metric": float(value).hex()}
