"""Deep: what a copy of the model can learn from the first batches, in a forked copy of the process.

Owns keeping these batches, and the experiments: one batch alone, true labels against permuted ones. Made
only if the plan asks for it: they take seconds to minutes.
"""

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import inf, isfinite
from time import monotonic, perf_counter_ns
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from truestep.watch.evidence.facts.passes import LearningTested
from truestep.watch.inspect.probe.apart import ApartError, run_apart
from truestep.watch.inspect.probe.copies import copy_inputs, is_large, replicate
from truestep.watch.script import parts
from truestep.watch.script.autograd import find_nodes
from truestep.watch.script.leaves import find_tensors
from truestep.watch.script.tape import Tape

_NUM_BATCHES, _NUM_HELD_OUT, _LEAST_BATCHES = 8, 2, 4
_MAX_BYTES = 64 << 20
_NUM_STEPS, _NUM_LABEL_STEPS, _NUM_SHOWN = 120, 60, 5
_RATES = (3e-3, 3e-4)
_MAX_S, _PATIENCE_S = 20.0, 150.0
_SEED = 0
_LOSSES = {
    "NllLossBackward0": "cross entropy",
    "NllLoss2DBackward0": "cross entropy",
    "MseLossBackward0": "squared error",
    "BinaryCrossEntropyWithLogitsBackward0": "binary cross entropy",
}
Batch = tuple[tuple[Any, Any], Tensor]


def watch(tape: Tape) -> None:
    """Keep the first batches and try what can be learned from them."""
    if tape.plan.deep:
        tape.attend(_Deep(tape), "forward_begins", "backward_begins", "counted", "closing")


@dataclass
class _Subject:
    """The model that is tried, and what it is tried on."""

    model: "weakref.ref[nn.Module]"
    number: int
    site: int


class _Deep:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._subject: _Subject | None = None
        self._given: tuple[Any, Any] | None = None
        self._batches: list[Batch] = []
        self._loss = ""
        self._num_bytes = 0
        self._is_over = False

    def forward_begins(self, model: nn.Module, args: Any, kwargs: Any) -> None:
        if self._is_over or not torch.is_grad_enabled():
            return
        if not any(item.requires_grad for item in parts.parameters(model)):
            return
        number = self._tape.number("model", model)
        if self._subject is None:
            self._subject = _Subject(weakref.ref(model), number, self._tape.under_way.forward_site)
        elif self._subject.number != number:
            self._end("the script trains several models")
            return
        if self._given is not None:
            self._end("the model is called several times for one loss")
            return
        tensors = [leaf for _, leaf in find_tensors((args, kwargs))]
        self._num_bytes += sum(leaf.numel() * leaf.element_size() for leaf in tensors)
        if any(not leaf.is_cpu for leaf in (*tensors, *parts.parameters(model))):
            self._end("the model is not on the CPU")
        elif is_large(model):
            self._end("the model is too large to be trained in a copy of the process")
        elif self._num_bytes > _MAX_BYTES:
            self._end("the batches are too large to be kept")
        else:
            try:
                self._given = copy_inputs((args, kwargs))
            except TypeError as error:
                self._end(f"the model is given {error}")

    def backward_begins(self, losses: tuple[Tensor, ...], how: str) -> None:
        given, self._given = self._given, None
        if self._is_over or how != "backward" or given is None:
            return
        found = list(_find_losses(losses))
        if len(found) != 1:
            self._end("the loss is not a single cross entropy, binary cross entropy or squared error")
            return
        self._loss, target = found[0]
        self._batches.append((given, target))

    def counted(self) -> None:
        self._given = None
        if not self._is_over and len(self._batches) >= _NUM_BATCHES:
            self._try()

    def closing(self) -> None:
        if not self._is_over and self._subject is not None:
            if len(self._batches) < _LEAST_BATCHES:
                self._end(f"the script made fewer than {_LEAST_BATCHES} steps with a batch")
            else:
                self._try()

    def _end(self, reason: str) -> None:
        """Keep nothing more, and note why nothing was tried."""
        self._is_over = True
        self._batches, self._given = [], None
        if self._subject is not None:
            facts = LearningTested(self._subject.number, reason, self._loss, 0, [], [], [], 0, 0, 0.0)
            self._tape.mark(facts, self._subject.site, perf_counter_ns())

    def _try(self) -> None:
        subject = self._subject
        model = None if subject is None else subject.model()
        if subject is None or model is None:
            self._end("the model no longer exists")
            return
        begun = monotonic()
        act = partial(_learn, model, self._batches, loss=self._loss)
        try:
            with self._tape.under_way.copying():
                found = run_apart(act, patience_s=_PATIENCE_S, is_small=False)
        except ApartError as error:
            self._end(f"the copy failed: {error}")
            return
        if isinstance(found, str):
            self._end(found)
            return
        self._is_over = True
        took_s = monotonic() - begun
        values = [subject.number, "", self._loss, *found, len(self._batches), took_s]
        facts = LearningTested(*values)
        self._batches = []
        self._tape.mark(facts, subject.site, perf_counter_ns())


def _find_losses(losses: tuple[Tensor, ...]) -> Iterator[tuple[str, Tensor]]:
    """Yield what losses are, and what they compare with, as their graphs have saved it."""
    for node in find_nodes(losses, _LOSSES):
        yield _LOSSES[type(node).__name__], node._saved_target.detach().clone()


def _learn(model: nn.Module, batches: list[Batch], *, loss: str) -> Any:
    """Return the number of classes, and the losses of three runs; a reason if they cannot be made."""
    first = replicate(model)
    if first is None:
        return "the model cannot be copied safely"
    with torch.no_grad():
        scores = _scores(first, batches[0])
    if scores is None or _score(scores, batches[0][1], loss) is None:
        return "the model's output does not fit the target of the loss"
    num_classes = scores.shape[1] if loss == "cross entropy" and scores.dim() > 1 else 0
    with torch.enable_grad():
        curves = [_train(model, batches[:1], loss=loss, rate=rate, num_steps=_NUM_STEPS) for rate in _RATES]
        single = min(curves, key=lambda curve: curve[-1] if isfinite(curve[-1]) else inf)
        rate = _RATES[curves.index(single)]
        part, rest = batches[:-_NUM_HELD_OUT], batches[-_NUM_HELD_OUT:]
        both = [
            _train(model, used, loss=loss, rate=rate, num_steps=_NUM_LABEL_STEPS, scored=rest)
            for used in (part, _permuted(part))
        ]
    return num_classes, single, *both, _NUM_STEPS


def _train(  # limits: private to this module
    model: nn.Module,
    batches: list[Batch],
    *,
    loss: str,
    rate: float,
    num_steps: int,
    scored: list[Batch] | None = None,
) -> list[float]:
    """Train a copy with Adam and return some of its losses: of the batch, or of others that are scored."""
    torch.manual_seed(_SEED)
    replica = replicate(model)
    assert replica is not None
    pairs = list(zip(replica.parameters(), model.parameters(), strict=True))
    weights = [own.requires_grad_() for own, other in pairs if other.requires_grad]
    for module in replica.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    optimizer = torch.optim.Adam(weights, lr=rate)
    curve: list[float] = []
    until = monotonic() + _MAX_S
    for step in range(num_steps + 1):
        is_shown = step % (num_steps // (_NUM_SHOWN - 1)) == 0 or monotonic() > until
        if is_shown:
            with torch.no_grad():
                losses = [_loss(replica, batch, loss) for batch in scored or batches]
            curve.append(float(sum(losses) / len(losses)))
        if monotonic() > until:
            break
        optimizer.zero_grad()
        _loss(replica, batches[step % len(batches)], loss).backward()
        optimizer.step()
    return curve


def _loss(replica: nn.Module, batch: Batch, loss: str) -> Tensor:
    scores = _scores(replica, batch)
    found = None if scores is None else _score(scores, batch[1], loss)
    assert found is not None, "the model's output does not fit the target"
    return found


def _scores(replica: nn.Module, batch: Batch) -> Tensor | None:
    """Return the first tensor of numbers that the model gives, with classes second."""
    (args, kwargs), target = batch
    output = replica(*copy_inputs(args), **copy_inputs(kwargs))
    scores = next((leaf for _, leaf in find_tensors(output) if leaf.is_floating_point()), None)
    if scores is None or target.is_floating_point():
        return scores
    if scores.dim() > 1 and scores.numel() == target.numel() * scores.shape[-1]:
        return scores.reshape(-1, scores.shape[-1])
    return scores


def _score(scores: Tensor, target: Tensor, loss: str) -> Tensor | None:  # limits: private to this module
    """Return the loss; None if the shapes do not fit."""
    if loss == "cross entropy":
        if scores.dim() == 2 and len(scores) == target.numel():
            return F.cross_entropy(scores, target.reshape(-1))
        is_fit = scores.dim() > 2 and (scores.shape[0], *scores.shape[2:]) == tuple(target.shape)
        return F.cross_entropy(scores, target) if is_fit else None
    if scores.numel() != target.numel():
        return None
    scores = scores.reshape(target.shape)
    if loss == "squared error":
        return F.mse_loss(scores, target)
    return F.binary_cross_entropy_with_logits(scores, target)


def _permuted(batches: list[Batch]) -> list[Batch]:
    """Return the batches with the targets of all samples in another order."""
    pool = torch.cat([target for _, target in batches])
    generator = torch.Generator().manual_seed(_SEED)
    pool = pool[torch.randperm(len(pool), generator=generator)]
    parts_of = pool.split([len(target) for _, target in batches])
    return [(given, target) for (given, _), target in zip(batches, parts_of, strict=True)]
