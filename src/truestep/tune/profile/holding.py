"""What holds memory when most of it is held: by category, and by the line that asked for it.

Owns the reading of torch's memory profile, which is private, and of live objects where that fails. Runs in
the script's process.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch._C._profiler import _EventType
from torch.optim import Optimizer
from torch.profiler._memory_profiler import Action, Category, TensorKey

from truestep.tune.profile.pieces import OwnFiles
from truestep.watch.script.holdings import held_by_objects

CATEGORIES = ("parameters", "gradients", "optimizer state", "activations", "inputs", "other")
_NAME_OF: dict[Any, str] = {
    Category.PARAMETER: "parameters",
    Category.GRADIENT: "gradients",
    Category.OPTIMIZER_STATE: "optimizer state",
    Category.ACTIVATION: "activations",
    Category.AUTOGRAD_DETAIL: "activations",  # their gradients: as large, and gone with them
    Category.INPUT: "inputs",
}
_CERTAIN = ("parameters", "optimizer state")
"""What live objects tell better."""
TRACED, LIVE = "torch's memory profile", "live objects, and the profiler's events for the rest"
_MAX_HOLDERS = 10
_PYTHON = (_EventType.PyCall, _EventType.PyCCall)


def memory_from_trace(
    profiler: torch.profiler.profile, files: OwnFiles, *, known: Mapping[int, str]
) -> dict[str, Any]:
    """Return what is held at the peak, as torch's memory profile classifies it; `known` goes before."""
    traced = profiler._memory_profile()
    timeline = traced.timeline
    device = _device_in(timeline)
    changes = [item for item in timeline if item[2][0].device.type == device]
    held: dict[TensorKey, tuple[int, int]] = {}
    num_unknown = 0
    for _, action, (key, version), num_bytes in changes[: _peak_of(changes) + 1]:
        if not isinstance(key, TensorKey):
            num_unknown += num_bytes * _SIGNS[action]
        elif action is Action.DESTROY:
            held.pop(key, None)
        else:
            held[key] = (num_bytes, version + (action is Action.INCREMENT_VERSION))
    sizes = dict.fromkeys(CATEGORIES, 0)
    categories = {}
    for key, (num_bytes, version) in held.items():
        guess = _NAME_OF.get(traced._categories.get(key, version), "other")
        # It also takes what an optimizer computes on the way for parameters.
        guess = "other" if guess in _CERTAIN else guess
        categories[key] = known.get(key.storage.ptr, guess)
        sizes[categories[key]] += num_bytes
    sizes["other"] += max(0, num_unknown)
    holders: dict[tuple[str, str, int], list[int]] = defaultdict(lambda: [0, 0])
    for key, (file, line) in _allocations(traced._op_tree.dfs(), files):
        if key in held:
            holder = holders[categories[key], file, line]
            holder[0] += held[key][0]
            holder[1] += 1
    return _answer(sizes, TRACED) | {"holders": _largest(holders)}


_SIGNS = {Action.PREEXISTING: 1, Action.CREATE: 1, Action.INCREMENT_VERSION: 0, Action.DESTROY: -1}


def _device_in(timeline: Iterable[Any]) -> str:
    """Return the device that counts: the accelerator if something is on one."""
    kinds = {key.device.type for _, _, (key, _), _ in timeline}
    return str(next(iter(kinds - {"cpu"}), "cpu"))


def _peak_of(changes: list[Any]) -> int:
    total, most, place = 0, -1, -1
    for index, (_, action, _, num_bytes) in enumerate(changes):
        total += num_bytes * _SIGNS[action]
        if total > most:
            most, place = total, index
    return place


def _allocations(events: Iterable[Any], files: OwnFiles) -> Iterable[tuple[TensorKey, tuple[str, int]]]:
    """Yield what was allocated, with the innermost line of the user's that led to it."""
    for event in events:
        if event.tag == _EventType.Allocation and event.extra_fields.alloc_size > 0:
            key = TensorKey.from_allocation(event.extra_fields)
            site = _site_of(event, files)
            if key is not None and site is not None:
                yield key, site


def _site_of(event: Any, files: OwnFiles) -> tuple[str, int] | None:
    parent = event.parent
    while parent is not None:
        if parent.tag in _PYTHON:
            path = files.find(parent.extra_fields.caller.file_name)
            if path is not None:
                return path, parent.extra_fields.caller.line_number
        parent = parent.parent
    return None


def _largest(holders: dict[tuple[str, str, int], list[int]]) -> list[list[Any]]:
    rows = sorted(holders.items(), key=lambda item: -item[1][0])[:_MAX_HOLDERS]
    return [[*place, *numbers] for place, numbers in rows]


def _answer(sizes: dict[str, int], source: str) -> dict[str, Any]:
    return {"peak_bytes": sum(sizes.values()), "memory": sizes, "source": source, "holders": []}


def known_storages(models: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> dict[int, str]:
    """Return the category of what is certain by the address of its memory: parameters and state."""
    held = held_by_objects(list(models), optimizers)
    return {address: name for name in _CERTAIN for address in held[name]}


def memory_from_objects(
    profiler: torch.profiler.profile, *, models: Iterable[nn.Module], optimizers: Iterable[Optimizer]
) -> dict[str, Any]:
    """Return what is held, from live objects; what the events have in addition is told as activations."""
    sizes = dict.fromkeys(CATEGORIES, 0)
    for name, pieces in held_by_objects(list(models), optimizers).items():
        sizes[name] = sum(piece.num_bytes for piece in pieces.values())
    # At the end of a step gradients are there; in the middle of it what was allocated above the start.
    sizes["activations"] = max(0, _most_allocated(profiler) - sizes["gradients"])
    return _answer(sizes, LIVE)


def _most_allocated(profiler: torch.profiler.profile) -> int:
    """Return by how much more was held at the most than at the begin."""
    results: Any = profiler.profiler
    waiting, found = list(results.kineto_results.experimental_event_tree()), []
    while waiting:
        event = waiting.pop()
        waiting.extend(event.children)
        if event.tag == _EventType.Allocation:
            found.append((event.start_time_ns, event.extra_fields))
    kinds = {fields.device.type for _, fields in found}
    device = next(iter(kinds - {"cpu"}), "cpu")
    total = most = 0
    for _, fields in sorted(found, key=lambda change: change[0]):
        total += fields.alloc_size if fields.device.type == device else 0
        most = max(most, total)
    return most
