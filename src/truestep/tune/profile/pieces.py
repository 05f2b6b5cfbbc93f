"""The tree of events that torch.profiler keeps, cut into pieces of time: at which line, in which module.

Owns the reading of that tree. What the pieces add up to is in `details`. Runs in the script's process.
"""

import os
import sys
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import nn
from torch._C._profiler import _EventType

_ENGINE = "autograd::engine::evaluate_function: "
_NONE = -1


class _Place(NamedTuple):
    """What is known of a piece of time; numbers of the tables' rows."""

    line: int = _NONE
    module: int = _NONE
    node: int = _NONE
    """The sequence number of the node of autograd whose gradient is computed."""


class Pieces:
    """Pieces of the main thread's time. Each belongs to the innermost line of the user's that led to it."""

    def __init__(
        self,
        *,
        models: Iterable[nn.Module],
        files: "OwnFiles",
        active: dict[tuple[str, int, str], int],
    ) -> None:
        self._files, self._active = files, active
        self._modules = _Table()
        self._names: dict[str, int] = {}
        self._lines = _Table()
        self._module_of = {id(part): row for model in models for part, row in self._rows_of(model)}
        self._origins: dict[int, tuple[int, int]] = {}
        """By the number of a node: line and module of the operation in the forward pass that made it."""
        self._rows = array("q")

    def _rows_of(self, model: nn.Module) -> Iterable[tuple[nn.Module, int]]:
        kind = type(model).__qualname__
        num = self._names[kind] = self._names.get(kind, 0) + 1
        name = kind if num == 1 else f"{kind}#{num}"
        for path, part in model.named_modules():
            full = f"{name}.{path}" if path else name
            yield part, self._modules.number((full, type(part).__qualname__))

    def read(self, roots: list[Any], *, begun_ns: int, thread: int) -> None:
        """Cut what one thread did; times count from when the details began."""
        waiting = [
            (event, _Place(), event.end_time_ns) for event in reversed(roots) if event.start_tid == thread
        ]
        while waiting:
            event, outer, limit = waiting.pop()
            place = self._enter(event, outer)
            children = sorted(event.children, key=lambda child: child.start_time_ns)
            # A range begins inside of the call that opens it, and lasts longer: what follows is not in it.
            now, end = event.start_time_ns, min(event.end_time_ns, limit)
            for child in children:
                self._add(place, now - begun_ns, child.start_time_ns - begun_ns)
                now = max(now, min(child.end_time_ns, end))
            self._add(place, now - begun_ns, end - begun_ns)
            waiting.extend((child, place, end) for child in reversed(children))

    def _add(self, place: _Place, begin_ns: int, end_ns: int) -> None:
        if end_ns > max(0, begin_ns):
            line, module = self._origins.get(place.node, (_NONE, _NONE))
            self._rows.extend(
                (begin_ns, end_ns, *place[:2], line, module if place.module == _NONE else _NONE)
            )

    def _enter(self, event: Any, outer: _Place) -> _Place:
        tag, fields = event.tag, event.extra_fields
        if tag == _EventType.TorchOp:
            return self._enter_operation(event.name, fields.sequence_number, outer)
        if tag == _EventType.PyCCall:
            return outer._replace(line=self._line_of(fields.caller, outer.line))
        if tag == _EventType.PyCall:
            module = outer.module
            if fields.module is not None:
                module = self._module_of.get(int(fields.module.self_ptr), module)
            line = self._function_of(fields.callsite)
            if line is None:
                line = self._line_of(fields.caller, outer.line)
            return outer._replace(line=line, module=module)
        return outer

    def _enter_operation(self, name: str, number: int, outer: _Place) -> _Place:
        if name.startswith(_ENGINE):
            return outer._replace(node=number)
        if outer.node == _NONE and number >= 0:
            self._origins[number] = outer.line, outer.module  # the last to begin with it made the node
        return outer

    def _line_of(self, frame: Any, otherwise: int) -> int:
        """Return the row of the line that a frame of the user's stands at; for others', the one before."""
        path = self._files.find(frame.file_name)
        return otherwise if path is None else self._lines.number((path, frame.line_number, ""))

    def _function_of(self, frame: Any) -> int | None:
        """Return the row of a function of the user's: what it does between calls has no line of its own."""
        path = self._files.find(frame.file_name)
        if path is None:
            return None
        name = frame.function_name
        first = self._active.get((path, frame.line_number, name), frame.line_number)
        return self._lines.number((path, first, name))

    def tables(self) -> dict[str, Any]:
        """Return what the numbers in the pieces stand for."""
        return {
            "lines": self._lines.rows(),
            "modules": self._modules.rows(),
        }

    def save(self, path: Path) -> None:
        """Write the pieces: begin, end, line, module, line and module whose gradient it is."""
        np.savez(path, pieces=np.frombuffer(self._rows, dtype=np.int64).reshape(-1, 6))


class _Table:
    """Numbers for things that come again."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def number(self, row: Any) -> int:
        return self._numbers.setdefault(row, len(self._numbers))

    def rows(self) -> list[Any]:
        return list(self._numbers)


class OwnFiles:
    """Files of the user's by the names that the profiler gives them: it cuts off folders of `sys.path`."""

    def __init__(self, is_own: Callable[[str], bool]) -> None:
        self._is_own = is_own
        self._paths: dict[str, str | None] = {}

    def find(self, name: str) -> str | None:
        """Return a file's path, or None if it is not the user's own."""
        if name not in self._paths:
            found = next((full for full in _candidates(name) if os.path.isfile(full)), None)  # noqa: PTH113
            self._paths[name] = found if found is not None and self._is_own(found) else None
        return self._paths[name]


def _candidates(name: str) -> Iterable[str]:
    if name.startswith("<"):
        return
    if os.path.isabs(name):  # noqa: PTH117
        yield name
    for folder in sys.path:
        yield os.path.join(os.path.abspath(folder), name)  # noqa: PTH100, PTH118
