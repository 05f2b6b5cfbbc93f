"""Memory that has run out: what held it, and how much a sample of the batch needs.

Owns the account. Before that only sizes of batches are read, and in the first steps what the forward pass
left for the backward pass. An error that the script catches is not looked at.
"""

import gc
from collections import defaultdict
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from truestep.base.device import free_bytes, module_in_use
from truestep.base.memory import host_free_bytes, is_out_of_memory, requested_bytes
from truestep.watch.evidence.facts.course import Holder, MemoryExhausted
from truestep.watch.evidence.kinds import Place
from truestep.watch.inspect.training.expected import Expected
from truestep.watch.plan import NUM_FIRST
from truestep.watch.script import parts
from truestep.watch.script.holdings import (
    GRADIENTS,
    PARAMETERS,
    STATE,
    Pieces,
    expected_state_bytes,
    held_by_objects,
    memory_of,
    trainable_bytes,
)
from truestep.watch.script.leaves import find_tensors
from truestep.watch.script.sites import path_of
from truestep.watch.script.tape import Tape

T = TypeVar("T")
_ACTIVATIONS, _BATCHES, _OTHER = "activations", "batches", "other"
_MAX_HOLDERS = 20
_MAX_CAUSES = 8
_PHASES = {  # the end of a file's name and the function's qualified name, from the outermost frame on
    ("torch/utils/data/dataloader.py", "_BaseDataLoaderIter.__next__"): "data",
    ("torch/optim/optimizer.py", "Optimizer.profile_hook_step.<locals>.wrapper"): "optimizer",
    ("torch/autograd/graph.py", "_engine_run_backward"): "backward",
    ("torch/nn/modules/module.py", "Module._call_impl"): "forward",
}


def watch(tape: Tape) -> None:
    """Be there when memory runs out."""
    tape.attend(_Exhausted(tape), "forward_begins", "backward_begins", "step_begins", "epoch", "failed")


class _Forward(NamedTuple):
    """What a complete forward pass of the first steps has left."""

    step: int
    batch_size: int | None
    holders: list[Holder]


class _Exhausted:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._shape: tuple[int, ...] = ()
        """The shape of the last input."""
        self._loader_size: int | None = None
        self._inputs: Pieces = {}
        self._forward: _Forward | None = None
        self._per_sample: float | None = None
        """By the device's own peak in the first step."""
        self._expected = Expected(tape)
        self._lasting: int | None = None
        """The gradients that are there in a forward pass, since they are zeroed after it."""

    def epoch(self, loader: Any, _number: int) -> None:
        size = getattr(loader, "batch_size", None)
        self._loader_size = size if isinstance(size, int) else None

    def forward_begins(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        for item in (*args, *kwargs.values()):
            if type(item) is Tensor:
                self._shape = item.shape
                break
        if self._tape.num_steps == 1 and self._lasting is None:
            self._lasting = _sum(
                memory_of(item.grad for item in parts.parameters(module) if item.grad is not None)
            )
        if not self._tape.num_steps:
            given = [item for _, item in find_tensors((args, kwargs))]
            self._inputs |= memory_of(given)

    def backward_begins(self, *_: Any) -> None:
        if self._tape.num_steps >= NUM_FIRST:
            self._tape.ignore(self.backward_begins, self.step_begins)
            return
        holders = self._live_holders({})
        if holders:
            self._forward = _Forward(self._tape.num_steps + 1, self._batch_size(), holders)

    def step_begins(self, _optimizer: Any, _number: int) -> None:
        """The first passes are complete: the device knows their peak."""
        size = self._batch_size()
        if self._per_sample is None and self._expected.own_bytes is not None and size:
            self._per_sample = self._expected.own_bytes / size

    def failed(self, error: BaseException) -> None:
        cause = _cause_of(error)
        if cause is not None:
            self._tape.note(self._account(cause))

    def _account(self, error: BaseException) -> MemoryExhausted:
        phase, place = self._place_of(error)
        is_on_device = isinstance(error, torch.OutOfMemoryError) and module_in_use() is not None
        device = str(torch.accelerator.current_accelerator()) if is_on_device else "cpu"
        optimizers = _all_of(Optimizer)
        known = held_by_objects(_all_of(nn.Module), optimizers)
        known = {name: _on(device, pieces) for name, pieces in known.items()}
        holders = self._live_holders({key: "" for pieces in known.values() for key in pieces}, device)
        held = {name: _sum(pieces) for name, pieces in known.items()}
        if not self._tape.num_steps and holders:  # inputs that were there before operations were noted
            held[_BATCHES] = _sum(_on(device, self._inputs)) - sum(
                holder.num_bytes for holder in holders if holder.category == _BATCHES
            )
        for holder in holders:
            held[holder.category] = held.get(holder.category, 0) + holder.num_bytes
        if is_on_device:
            total = torch.accelerator.memory_allocated()
            rest = _OTHER if holders else _ACTIVATIONS
            held[rest] = held.get(rest, 0) + max(0, total - sum(held.values()))
        is_late = not holders and self._forward is not None
        is_in_worker = "in DataLoader worker process" in str(error)
        requested = requested_bytes(str(error))
        fixed, per_sample = self._needs(phase, held, optimizers, requested or 0)
        # Of the host's memory only what operations have just made is known.
        is_known = not is_in_worker and (is_on_device or bool(holders))
        return MemoryExhausted(
            phase="worker" if is_in_worker else phase,
            device=device,
            place=place,
            error=str(error).strip().partition("\n")[0] or type(error).__name__,
            requested_bytes=requested,
            held=held,
            free_bytes=free_bytes() if is_on_device else host_free_bytes(),
            holders=(self._forward.holders if is_late and self._forward else holders)[:_MAX_HOLDERS],
            holders_step=self._forward.step if is_late and self._forward else None,
            batch_size=self._batch_size(),
            fixed_bytes=fixed,
            per_sample_bytes=per_sample if is_known else None,
            gradients_bytes=trainable_bytes(optimizers),
            is_partial=self._per_sample is None,
        )

    def _needs(
        self, phase: str, held: dict[str, int], optimizers: list[Optimizer], requested: int
    ) -> tuple[int, float | None]:
        """Return what training needs without a batch, and what it needs for each sample at least.

        Gradients come while activations go: they count with those in a backward pass, and at its end alone.
        """
        state = sum(expected_state_bytes(item) or 0 for item in optimizers if not item.state)
        fixed = held[PARAMETERS] + held[STATE] + state
        found = held.get(_ACTIVATIONS, 0) + held.get(_BATCHES, 0) + requested
        if phase == "backward":
            fixed += self._lasting or 0
            found += held[GRADIENTS]
        elif phase == "optimizer":
            fixed += max(held[GRADIENTS], trainable_bytes(optimizers))
        else:
            fixed += held[GRADIENTS]
        size = self._batch_size()
        rates = [found / size] if size else []
        if self._forward is not None and self._forward.batch_size:
            before = sum(holder.num_bytes for holder in self._forward.holders)
            rates.append(before / self._forward.batch_size)
        if self._per_sample is not None:
            rates.append(self._per_sample)
        return fixed, max(rates, default=None)

    def _live_holders(self, known: dict[int, str], device: str | None = None) -> list[Holder]:
        """Return what operations have made and is in use, by module and line, without what is known."""
        recorder = self._tape.recorder
        if recorder is None or not recorder.is_light:
            return []
        sums: dict[tuple[str, str, str | None, int | None], list[int]] = defaultdict(lambda: [0, 0])
        device = device or _training_device()
        for entry, module, file, line in recorder.holders():
            if entry.address not in known and entry.device == device:
                category = _BATCHES if entry.address in self._inputs else _ACTIVATIONS
                found = sums[category, module, file, line]
                found[0] += entry.num_bytes
                found[1] += 1
        holders = [Holder(*key, *found) for key, found in sums.items()]
        return sorted(holders, key=lambda holder: -holder.num_bytes)

    def _batch_size(self) -> int | None:
        """Return the loader's if an input has it in its first two sizes; else the first size of the input."""
        if self._loader_size in self._shape[:2]:
            return self._loader_size
        return self._shape[0] if self._shape else None

    def _place_of(self, error: BaseException) -> tuple[str, Place | None]:
        phase, place, trace = "", None, error.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            for (file, name), found in _PHASES.items():
                if not phase and code.co_qualname == name and code.co_filename.endswith(file):
                    phase = found
            if self._tape.sites.is_own(code.co_filename):
                place = Place(path_of(code.co_filename), trace.tb_lineno, code.co_name)
            trace = trace.tb_next
        return phase, place


def _cause_of(error: BaseException) -> BaseException | None:
    """Return the error that says so: this one, what it was raised from, or what the script exits for."""
    found: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if found is None or (isinstance(found, SystemExit) and found.code in (None, 0)):
            return None
        if is_out_of_memory(found):
            return found
        found = found.__cause__ or (found.__context__ if isinstance(found, SystemExit) else None)
    return None


def _training_device() -> str:
    return str(torch.accelerator.current_accelerator()) if module_in_use() is not None else "cpu"


def _all_of(kind: type[T]) -> list[T]:
    """Return all living objects of a kind; asks none of them, since some answer with code of the user's."""
    return [item for item in gc.get_objects() if issubclass(type(item), kind)]


def _sum(pieces: Pieces) -> int:
    return sum(item.num_bytes for item in pieces.values())


def _on(device: str, pieces: Pieces) -> Pieces:
    return {key: item for key, item in pieces.items() if item.device == device}
