"""Callers: from which line, in which phase and in which module one of torch's operations is called.

Owns what is read from Python's frames, from the innermost to the outermost. Patches nothing: frames know
what is under way in their thread, also in hooks and where a checkpointed part is computed again.
"""

import os
import sys
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer

from truestep.watch.evidence.operation import IN_EVALUATION, IS_FOREIGN, PHASES
from truestep.watch.operations.traces import TableWriter
from truestep.watch.script import module_tree
from truestep.watch.script.refs import ByIdentity
from truestep.watch.script.sites import function_of, path_of

_SKIP, _OWN, _OURS, _MODULE, _AGAIN, _DATA, _OPTIMIZER, _BACKWARD, _CLOSURE = range(1, 10)
_OTHER, _SETUP, *_ = range(len(PHASES))
_PHASES = {
    _DATA: PHASES.index("data"),
    _MODULE: PHASES.index("forward"),
    _AGAIN: PHASES.index("forward"),
    _BACKWARD: PHASES.index("backward"),
    _OPTIMIZER: PHASES.index("optimizer"),
    _CLOSURE: PHASES.index("other"),
}
_HERE = os.path.dirname(os.path.dirname(__file__)) + os.sep  # noqa: PTH120 - compared with what frames give, by text
_RECOMPUTE = "_checkpoint_without_reentrant_generator.<locals>.recompute_fn"
_MARKS = {  # end of the file's name, then the function's qualified name
    ("torch/nn/modules/module.py", "Module._call_impl"): _MODULE,
    ("torch/utils/checkpoint.py", "CheckpointFunction.backward"): _AGAIN,
    ("torch/utils/checkpoint.py", _RECOMPUTE): _AGAIN,
    ("torch/utils/data/dataloader.py", "DataLoader.__iter__"): _DATA,
    ("torch/utils/data/dataloader.py", "_BaseDataLoaderIter.__next__"): _DATA,
    ("stateful_dataloader/stateful_dataloader.py", "StatefulDataLoader.__iter__"): _DATA,
    ("stateful_dataloader/stateful_dataloader.py", "_BaseDataLoaderIter.__next__"): _DATA,
    ("torch/optim/optimizer.py", "Optimizer.profile_hook_step.<locals>.wrapper"): _OPTIMIZER,
    ("torch/autograd/graph.py", "_engine_run_backward"): _BACKWARD,
}


def frame_above(depth: int, thread: int) -> FrameType | None:
    """Return the frame `depth` calls above the caller's; if there is none, the innermost one of this thread.

    Autograd's own threads, which work for every device but the CPU, have no frames: a thread waits for them.
    """
    try:
        return sys._getframe(depth + 1)
    except ValueError:
        return sys._current_frames().get(thread)


class Caller(NamedTuple):
    """Where an operation was called, as numbers of the tables."""

    site: int
    outer: int
    phase: int
    module: int
    is_ours: bool
    """Whether the operation is one of truestep's own."""
    state: int = 0
    """Flags of the innermost module, if they are asked for."""


class Callers:
    """Looks up callers. One lock is enough, because it calls nothing of the user's."""

    def __init__(self, tables: TableWriter, is_own: Callable[[str], bool], *, is_light: bool = False) -> None:
        self._tables = tables
        self._is_light = is_light
        """Whether the flags of modules are recorded."""
        self._is_own = is_own
        self._roles: dict[int, int] = {}
        self._codes: list[CodeType] = []  # kept, so that no other code gets the id of one
        self._sites: dict[tuple[int, int], int] = {}
        self._paths = ByIdentity[nn.Module, dict[int, str]]()
        self._optimizers: dict[int, bool] = {}
        """By the id of a code: whether it is a method of an optimizer."""
        self.is_setup = True
        """Whether no module was called yet, no backward pass run and no step made."""

    def look_up(self, frame: FrameType | None, *, is_main: bool) -> Caller:
        """Return the caller, searched from this frame outwards."""
        roles, role = self._roles, 0
        is_ours = frame is not None and (roles.get(id(frame.f_code)) or self._classify(frame)) == _OURS
        inner: FrameType | None = None
        outer: FrameType | None = None
        modules: list[FrameType] = []
        while frame is not None:
            kind = roles.get(id(frame.f_code)) or self._classify(frame)
            if kind > _OURS:
                role = role or self._role(kind, inner)
                if kind == _MODULE:
                    modules.append(frame)
            elif kind == _OWN:
                inner, outer = inner or frame, frame
            frame = frame.f_back
        module, state = self._place(modules) if modules else (0, 0)
        outer_site = 0 if is_main else self._site(outer)
        return Caller(self._site(inner), outer_site, self._phase(role), module, is_ours, state)

    def _role(self, kind: int, inner: FrameType | None) -> int:
        """Return what a frame means to what it calls: a closure that a step calls is no part of the step."""
        if kind != _OPTIMIZER or inner is None or not self._is_light or not torch.is_grad_enabled():
            return kind
        is_method = self._optimizers.get(id(inner.f_code))
        if is_method is None:
            is_method = isinstance(inner.f_locals.get("self"), Optimizer)
            self._optimizers[id(inner.f_code)] = is_method
        return kind if is_method else _CLOSURE

    def _place(self, frames: list[FrameType]) -> tuple[int, int]:
        """Return the number of the innermost module's path, and its state."""
        inner, outer = (frame.f_locals.get("self") for frame in (frames[0], frames[-1]))
        if inner is outer or not isinstance(outer, nn.Module):
            paths, path = None, 0
        else:
            paths = self._paths_under(outer, inner)
            path = self._tables.text(paths.get(id(inner)) or type(inner).__name__)
        return path, self._state(inner, outer, paths) if self._is_light else 0

    def _phase(self, role: int) -> int:
        if role not in (0, _DATA):
            self.is_setup = False
        return _PHASES.get(role, _SETUP if self.is_setup else _OTHER)

    def _site(self, frame: FrameType | None) -> int:
        if frame is None:
            return 0
        key = (id(frame.f_code), frame.f_lasti)
        number = self._sites.get(key)
        if number is None:
            file, function = path_of(frame.f_code.co_filename), function_of(frame.f_code)
            number = self._sites[key] = self._tables.site(file, frame.f_lineno, function=function)
        return number

    def _paths_under(self, outer: nn.Module, inner: Any) -> dict[int, str]:
        """Return the names of modules under the outermost one by their ids."""
        paths = self._paths.get(outer)
        if paths is None or id(inner) not in paths:
            paths = self._paths[outer] = {
                id(module): name for name, module in module_tree.named_modules(outer)
            }
        return paths

    def _state(self, inner: Any, outer: Any, paths: dict[int, str] | None) -> int:
        if not isinstance(inner, nn.Module) or not isinstance(outer, nn.Module):
            return 0
        is_foreign = (
            paths is not None
            and id(inner) not in paths
            and module_tree.is_training(inner)
            and not module_tree.is_training(outer)
        )
        return IN_EVALUATION * (not module_tree.is_training(inner)) + IS_FOREIGN * is_foreign

    def _classify(self, frame: FrameType) -> int:
        code, file = frame.f_code, frame.f_code.co_filename
        self._codes.append(code)
        is_torchs = str(frame.f_globals.get("__name__")).startswith("torch.")  # also what its compiler wrote
        role = _SKIP
        if file.startswith(_HERE):
            role = _OURS
        elif not is_torchs and self._is_own(file):
            role = _OWN
        else:
            for (end, name), mark in _MARKS.items():
                if code.co_qualname == name and file.replace(os.sep, "/").endswith(end):
                    role = mark
        self._roles[id(code)] = role
        return role
