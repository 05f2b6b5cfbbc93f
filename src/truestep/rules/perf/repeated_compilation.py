"""`torch.compile` recompiles repeatedly, or breaks its graph.

## What it finds
A function that was compiled several times in one run, with the compiler's reasons. Also lines at which the
compiler had to stop and return to Python.

## Why it matters
Compiling takes seconds, a step takes milliseconds. A guard that fails on every new shape or number causes
recompilation until a limit is reached, and then the function runs uncompiled. A break splits the graph in
two: nothing is fused across it, and each piece is compiled and called separately.

## How to fix
Pad batches to one shape, pass `dynamic=True`, and keep changing Python numbers out of the module (or make
them tensors). Move `.item()`, `print` and calls into other libraries out of the compiled function.
"""

from collections import Counter
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
        if len(turns) > _MOST_AGAIN:
            reasons = Counter(_short(piece.reason) for piece in turns)
            asked = evidence.of(CompileCalled)
            is_clear = bool(asked) and (len(asked) == 1 or file is None)
            yield Finding(
                message="torch.compile compiles this repeatedly",
                file=asked[0].file if is_clear else file,
                line=asked[0].line if is_clear else line,
                step=0,
                evidence=f"`{name}` was compiled {len(turns) + 1} times; reasons: "
                + "; ".join(f"{reason} ({num})" for reason, num in reasons.most_common(3)),
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


def _short(reason: str) -> str:
    return reason.partition(": ")[2].splitlines()[0][:100] if ": " in reason else reason[:100]
