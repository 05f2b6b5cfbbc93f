"""Ranks that train one model: what each of them is given, clips, and leaves out.

Owns what is noted of a model in DDP or FSDP2 on all ranks. Other processes are asked nothing: rules compare.
"""

import re
import sys
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from truestep.watch.digests.fold import fold
from truestep.watch.evidence.facts.surroundings import GradientsMissed, InputsDigested, NormClipped
from truestep.watch.evidence.kinds import Place
from truestep.watch.script import parts
from truestep.watch.script.leaves import find_tensors
from truestep.watch.script.refs import ByIdentity
from truestep.watch.script.sites import path_of
from truestep.watch.script.tape import Tape

_MISSED = re.compile(r"did not receive grad for rank \d+: ([\d ]+)")
_MAX_NAMES = 64


def watch(tape: Tape) -> None:
    """Observe calls of a wrapped or sharded model, clipping, and the error of DDP that names no parameter."""
    if torch.distributed.is_available():
        ranks = _Ranks(tape)
        tape.attend(ranks, "forward_begins", "clip_ends", near=True)
        tape.attend(ranks, "closing")


class _Ranks:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._is_shared = ByIdentity[nn.Module, bool]()

    def forward_begins(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not (parts.is_training(module) and torch.is_grad_enabled() and _size() > 1):
            return
        if module not in self._is_shared:
            self._is_shared[module] = any(map(_spans_all, parts.modules(module)))
        if self._is_shared[module]:
            given = [(name, item) for name, item in find_tensors((args, kwargs)) if item.numel()]
            if given and all(parts.is_plain(item) and item.is_cpu for _, item in given):
                self._tape.note(InputsDigested(self._tape.number("model", module), fold(given)))

    def clip_ends(self, _parameters: Any, _limit: float | None, norm: Any) -> None:
        if type(norm) is Tensor and norm.is_cpu and norm.numel() == 1 and _size() > 1:
            value = float(norm)
            if isfinite(value):
                self._tape.note(NormClipped(value))

    def closing(self) -> None:
        """Name the parameters that DDP knows by their numbers."""
        error = self._tape.failed_with
        found = _MISSED.search(str(error)) if isinstance(error, RuntimeError) else None
        frames = _frames(error) if found is not None else []
        wrapper = next((item for item in map(_wrapper_of, reversed(frames)) if item is not None), None)
        if found is None or wrapper is None:
            return
        model: Any = wrapper.module
        ignored = getattr(wrapper, "parameters_to_ignore", ())
        every = [
            name for name, item in parts.named_parameters(model) if item.requires_grad and name not in ignored
        ]
        missed = [every[place] for place in map(int, found[1].split()) if place < len(every)]
        place = next((item for item in map(self._place_of, reversed(frames)) if item is not None), None)
        facts = GradientsMissed(type(model).__qualname__, missed[:_MAX_NAMES], len(every), place)
        self._tape.note(facts)

    def _place_of(self, trace: Any) -> Place | None:
        code = trace.tb_frame.f_code
        is_own = self._tape.sites.is_own(code.co_filename)
        return Place(path_of(code.co_filename), trace.tb_lineno, code.co_name) if is_own else None


def _frames(error: BaseException | None) -> list[Any]:
    found, trace = [], None if error is None else error.__traceback__
    while trace is not None:
        found.append(trace)
        trace = trace.tb_next
    return found


def _wrapper_of(trace: Any) -> Any:
    owner = trace.tb_frame.f_locals.get("self")
    return owner if isinstance(owner, nn.parallel.DistributedDataParallel) else None


def _spans_all(module: nn.Module) -> bool:
    """Whether all ranks have this module, each for other data: DDP, or FSDP2 in one dimension."""
    if isinstance(module, nn.parallel.DistributedDataParallel):
        return bool(module.process_group.size() == _size())
    home: Any = sys.modules.get("torch.distributed.fsdp")
    if home is None or not isinstance(module, getattr(home, "FSDPModule", ())):
        return False
    meshes = [getattr(item, "device_mesh", None) for item in parts.parameters(module)]
    return bool(meshes) and all(mesh and mesh.ndim == 1 and mesh.size() == _size() for mesh in meshes)


def _size() -> int:
    dist = torch.distributed
    return dist.get_world_size() if dist.is_initialized() else 1
