"""A verdict for a reader: one line for each side, the difference, the likely cause and the fix."""

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from truestep.hang.causes import Cause, read_source
from truestep.hang.verdict import Verdict, differs, name_ranks
from truestep.watch.evidence.kinds import Place
from truestep.watch.evidence.stalls import Collective, Standing

_MAX_SIDES = 6
_MAX_CODE = 70


def as_text(verdict: Verdict, cause: Cause | None) -> str:
    """Return all lines: which ranks wait where, which are elsewhere, the difference, cause and fix."""
    since_s = max(item.since_s for item in verdict.waiting)
    failed = next((item.error for item in verdict.waiting if item.error), "")
    if failed:
        head = f"a collective failed: {failed}"
    else:
        head = f"the job hangs: no progress for {since_s:.0f} s, and none is possible"
    lines = [head, *side_lines(verdict.waiting), *side_lines(verdict.odd)]
    rows = {"elsewhere": name_ranks(verdict.odd), "difference": difference_of(verdict)}
    if cause is not None:
        rows |= {"likely cause": f"{cause.name}: {cause.sentence}", "fix": cause.fix}
    lines += [f"  {name:<13} {text}" for name, text in rows.items() if text]
    return "\n".join(lines)


def side_lines(standings: Sequence[Standing]) -> list[str]:
    """Return what each rank does, ranks that do the same in one line."""
    alike: dict[tuple[str, Place | None], list[Standing]] = defaultdict(list)
    for item in standings:
        alike[_doing(item, several=False), item.place].append(item)
    lines = []
    for (_, place), items in list(alike.items())[:_MAX_SIDES]:
        what = f"{name_ranks(items)} {_doing(items[0], several=len(items) > 1)}"
        lines.append(f"  {what}{where(place)}")
    if len(alike) > _MAX_SIDES:
        lines.append(f"  and {len(alike) - _MAX_SIDES} more places")
    return lines


def _doing(item: Standing, *, several: bool) -> str:
    verb = "" if several else "s"
    pending = item.pending
    if item.doing == "waiting" and pending is not None:
        if pending.is_pair:
            word = "from" if pending.name == "recv" else "to"
            return f"wait{verb} in {pending.name} {word} rank {', '.join(map(str, pending.members))}"
        inside = f" ({pending.caller})" if pending.caller and pending.caller != pending.name else ""
        tensors = f" of {pending.tensors}" if pending.tensors else ""
        return f"wait{verb} in {pending.name}{tensors}{inside}"
    if item.doing == "ended":
        return "have ended" if several else "has ended"
    is_ = "are" if several else "is"
    if item.doing == "stuck" and item.how == "stopped":
        return f"{is_} stopped"
    words = {
        "lock": "for a lock",
        "input": "for input",
        "queue": "for a queue",
        "loader": "for a DataLoader worker",
    }
    if item.doing == "stuck":
        return f"wait{verb} {words.get(item.how, '')}".rstrip()
    return f"{is_} in {item.call}" if item.call else f"{is_} elsewhere"


def where(place: Place | None) -> str:
    """Return a line of the user's with its code, to be put after what happens there."""
    if place is None:
        return ""
    lines = read_source(place.file).split("\n")
    code = lines[place.line - 1].strip() if 0 < place.line <= len(lines) else ""
    code = code if len(code) <= _MAX_CODE else code[: _MAX_CODE - 3] + "..."
    inside = f" in {place.function}" if place.function != "<module>" else ""
    return f" at {_short(place.file)}:{place.line}{inside}" + (f": {code}" if code else "")


def _short(path: str) -> str:
    try:
        relative = os.path.relpath(path)
    except (OSError, ValueError):
        return path
    return path if relative.startswith("..") else str(Path(relative))


def difference_of(verdict: Verdict) -> str:
    """Return in what the collectives of both sides differ: number, operation, shape or dtype."""
    odd, other = verdict.odd[0], verdict.waiting[0]
    mine, theirs = odd.pending if odd.doing == "waiting" else None, other.pending
    if theirs is None:
        return ""
    if theirs.is_pair:
        return ""
    if mine is not None and not mine.is_pair and mine.group == theirs.group:
        kind = {"operation": "other operation", "dtype": "other dtype", "shape": "other shape"}
        what = kind.get(differs(mine, theirs), "")
        number = f"collective {theirs.number:,} of the group: " if theirs.number else ""
        return f"{number}{_named(theirs)} on rank {other.rank}, {_named(mine)} on rank {odd.rank}" + (
            f" ({what})" if what else ""
        )
    made = (odd.made or {}).get(theirs.group)
    if made is None:
        return ""
    return f"rank {other.rank} is in collective {theirs.number:,}, rank {odd.rank} has made {made:,}"


def _named(pending: Collective) -> str:
    return f"{pending.name} of {pending.tensors}" if pending.tensors else pending.name
