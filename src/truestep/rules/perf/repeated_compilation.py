"""`torch.compile` recompiles repeatedly, or breaks its graph.

## What it finds
A function that was compiled several times in one run, and what changed between. Also lines at which the
compiler had to stop and return to Python. A few shapes that come again and again under `dynamic=False` are
not reported.

## Why it matters
Compiling takes seconds, a step takes milliseconds. A guard that fails on every new shape or number causes
recompilation until a limit is reached, and then the function runs uncompiled. A break splits the graph in
two: nothing is fused across it, and each piece is compiled and called separately.

## How to fix
Pad batches to one shape, pass `dynamic=True`, and keep changing Python numbers out of the module (or make
them tensors). Move `.item()`, `print` and calls into other libraries out of the compiled function.
"""

import re
from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.watch.evidence.facts.passes import CompileCalled, CompiledPiece, Recompilations

RULE = Meta(
    code="PERF04",
    severity="warning",
    needs=(Recompilations,),
    fix="Keep shapes and Python values constant or pass dynamic=True; move graph breaks out of the function.",
)
_RESUMED = "torch_dynamo_resume_in_"
_MOST_AGAIN = 2
_LIMIT, _OFTEN = 8, 10
"""After how many times a function runs uncompiled; steps for each shape that make compiling worth it."""
_MOST_SHOWN, _MOST_VALUES, _MOST_CHARACTERS = 3, 5, 100
_TENSOR = re.compile(
    r"tensor '(.+?)' ([\w ]+?) mismatch(?: at index (\d+))?\. expected (.+?)(?:, actual (.+))?"
)
_EQUAL = re.compile(r"([\w.\[\]'\"]+) == ([\w.+-]+)")
_WORDS = {"rank": "number of axes"}
_USUAL = ("grad_mode", "training", "inference")
"""Changes that come once: training, then evaluation."""


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find pieces that were compiled too often, and breaks."""
    pieces = [piece for moment in evidence.of(Recompilations) for piece in moment.facts.pieces]
    yield from _find_breaks(pieces)
    again: dict[tuple[str | None, int, str], list[CompiledPiece]] = {}
    for piece in pieces:
        is_usual = any(word in piece.reason for word in _USUAL)
        if piece.reason and not is_usual and not piece.name.startswith(_RESUMED):
            again.setdefault((piece.file, piece.line, piece.name), []).append(piece)
    for (file, line, name), turns in again.items():
        asked = evidence.of(CompileCalled)
        if len(turns) > _MOST_AGAIN and not _is_wanted(evidence, turns):
            is_clear = bool(asked) and (len(asked) == 1 or file is None)
            yield Finding(
                message="torch.compile compiles this repeatedly",
                file=asked[0].file if is_clear else file,
                line=asked[0].line if is_clear else line,
                step=0,
                evidence=f"`{name}` was compiled {len(turns) + 1} times: {_changes(turns)}",
                cost=f"{sum(piece.took_s for piece in turns):.1f} s of recompiling",
            )


def _find_breaks(pieces: list[CompiledPiece]) -> Iterator[Finding]:
    if any(piece.is_disturbed for piece in pieces):
        return  # the watching itself is in the way
    breaks: dict[tuple[str, int], list[float]] = {}
    for piece in pieces:
        if piece.name.startswith(_RESUMED) and piece.file is not None:
            breaks.setdefault((piece.file, piece.line), []).append(piece.took_s)
    for (file, line), times in breaks.items():
        yield Finding(
            message="this line breaks the compiled graph: execution returns to Python",
            file=file,
            line=line,
            step=0,
            evidence=f"the code after this line was compiled separately, {len(times)} times",
            cost=f"{sum(times):.1f} s of compiling the code after it, and two graphs instead of one",
        )


def _is_wanted(evidence: Evidence, turns: list[CompiledPiece]) -> bool:
    """Whether each shape was to be compiled for itself, and the few that there are come often."""
    asked = evidence.of(CompileCalled)
    is_static = bool(asked) and all(moment.facts.is_static for moment in asked)
    num = len(turns) + 1
    is_rare = num < _LIMIT and num * _OFTEN <= evidence.first.num_steps
    return is_static and is_rare and all(" size mismatch " in piece.reason for piece in turns)


def _changes(turns: list[CompiledPiece]) -> str:
    """Return what changed from one time to the next, with its first values."""
    values: dict[str, list[str]] = {}
    for piece in turns:
        what, before, after = _change(piece.reason)
        known = values.setdefault(what, [])
        known += [value for value in (before, after) if value and value not in known]
    parts = []
    for what, known in [*values.items()][:_MOST_SHOWN]:
        more = ", ..." if len(known) > _MOST_VALUES else ""
        parts.append(what + (f" ({', '.join(known[:_MOST_VALUES])}{more})" if known else ""))
    return "; ".join(parts)


def _change(reason: str) -> tuple[str, str, str]:
    """Return what changed, the value that the compiled code is for, and the new one: empty if unknown."""
    guard = reason.partition(": ")[2] or reason
    text = guard.partition("\n")[0].partition("  #")[0].strip()
    if found := _TENSOR.fullmatch(text):
        what = _WORDS.get(found[2], found[2]) + (f" of axis {found[3]}" if found[3] else "")
        return f"the {what} of `{found[1]}` changes", found[4], found[5] or ""
    if found := _EQUAL.fullmatch(text):
        return f"the value of `{found[1]}` changes", found[2], ""
    return f"`{text[:_MOST_CHARACTERS]}` no longer holds", "", ""
