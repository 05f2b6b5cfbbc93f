"""Collectives that this process has entered, from torch's flight recorder and from the stack.

Owns the two private names of torch that this takes. Imports no torch: a script may never do so.
"""

import pickle
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from truestep.base.variables import launched_rank_and_size
from truestep.watch.evidence.stalls import INIT, NEW_GROUP, Collective

_DTYPES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
}
_HOME = "torch.distributed.distributed_c10d"
_PAIRS = {"recv": "src", "irecv": "src", "send": "dst", "isend": "dst"}


@dataclass(kw_only=True)
class Entered:
    """What is known of the collectives of this process."""

    active: Collective | None = None
    """The oldest that has not ended."""
    last: Collective | None = None
    made: dict[str, int] = field(default_factory=dict)
    by_kind: dict[str, int] = field(default_factory=dict)


def active_number() -> int:
    """Return the number of the oldest collective that has not ended; -1 if there is none. Cheap."""
    entries = _dump(includeStackTraces=False, onlyActive=True).get("entries", [])
    return min((entry["record_id"] for entry in entries if not entry["retired"]), default=-1)


def read() -> Entered:
    """Return what torch has recorded. Without lines: for those it would import its compiler."""
    entries = _dump(includeStackTraces=False).get("entries", [])
    members = _members()
    found = Entered()
    counts: Counter[str] = Counter()
    for entry in entries:
        item = _collective(entry, members)
        counts[item.kind] += 1
        if not item.is_pair:
            found.made[item.group] = max(found.made.get(item.group, 0), item.number)
        if not entry["retired"] and found.active is None:
            found.active = item
        found.last = item
    found.by_kind = dict(counts)
    return found


def on_stack(frames: list[FrameType], made: dict[str, int]) -> Collective | None:
    """Return a meeting of ranks that torch does not record, if the frames are in one; innermost first."""
    size = _size()
    everyone = tuple(range(size))
    for frame in frames:
        if frame.f_globals.get("__name__") != _HOME:
            continue
        name = frame.f_code.co_name
        if name in _PAIRS:
            peer = frame.f_locals.get(_PAIRS[name])
            if isinstance(peer, int):
                kind = name.removeprefix("i")
                return Collective(group="pairs", number=0, name=kind, members=(peer,), is_pair=True)
        if name == "monitored_barrier":
            return Collective(group="0", number=made.get("0", 0) + 1, name=name, members=everyone)
        if name in (INIT, NEW_GROUP):
            number = len(_members()) if name == NEW_GROUP else 0
            return Collective(group=name, number=number, name=name, members=everyone)
    return None


def rank_and_size() -> tuple[int, int] | None:
    """Return which rank this process is of how many, if it has joined a group."""
    module: Any = sys.modules.get(_HOME)
    try:
        return (module.get_rank(), module.get_world_size()) if module and module.is_initialized() else None
    except Exception:  # noqa: BLE001 - a group that is being made or taken down
        return None


def _size() -> int:
    known = rank_and_size() or launched_rank_and_size()
    return known[1] if known else 1


def _dump(**what: bool) -> dict[str, Any]:
    home: Any = sys.modules.get("torch._C._distributed_c10d")
    dump = getattr(home, "_dump_fr_trace", None)
    if dump is None:  # another version of torch: stacks alone are known then
        return {}
    try:
        found: dict[str, Any] = pickle.loads(dump(**what))  # from this process itself, a moment ago
    except Exception:  # noqa: BLE001 - torch's own format may change
        return {}
    return found


def _members() -> dict[str, tuple[int, ...]]:
    module: Any = sys.modules.get(_HOME)
    world: Any = getattr(module, "_world", None)
    try:
        return {
            group.group_name: tuple(sorted(ranks))
            for group, ranks in world.pg_group_ranks.items()
            if hasattr(group, "group_name")  # groups of other ranks stand there too, without a name
        }
    except Exception:  # noqa: BLE001 - a group that is being made or taken down
        return {}


def _collective(entry: dict[str, Any], members: dict[str, tuple[int, ...]]) -> Collective:
    group = entry["process_group"][0]
    name = entry["profiling_name"].rpartition(":")[2]
    ranks = members.get(group, ())
    if entry["is_p2p"]:
        name, ranks = _pair(name, ranks)
    return Collective(
        group="pairs" if entry["is_p2p"] else group,
        number=0 if entry["is_p2p"] else entry["collective_seq_id"],
        name=name,
        members=ranks,
        shapes=tuple(tuple(shape) for shape in entry["input_sizes"]),
        dtypes=tuple(_DTYPES.get(name, name) for name in entry["input_dtypes"]),
        is_pair=bool(entry["is_p2p"]),
    )


def _pair(name: str, ranks: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Return `recv` and the other rank, of what NCCL records as `recv 0<-1`."""
    found = re.fullmatch(r"(send|recv) \d+(?:->|<-)(\d+)", name)
    if found is None or int(found[2]) >= len(ranks):
        return name, ()
    return found[1], (ranks[int(found[2])],)
