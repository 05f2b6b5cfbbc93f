"""The job hangs: ranks wait for each other in different collectives, or for one that cannot come.

## What it finds
A job in which some ranks wait in a collective that another rank never enters. The other rank waits in a
different collective, has left the loop or the script, waits for a lock or for input, or is stopped. A rank
that is only slow is not reported. Use `--processes N`.

## Why it matters
The job makes no progress until a timeout, often after 30 minutes, and the timeout names no line.

## How to fix
Call the same collectives in the same order on every rank, and give every rank the same number of steps.
The finding names the rank, its line and the likely cause.
"""

from collections.abc import Iterator

from truestep.hang import find_cause, find_verdict
from truestep.hang.text import difference_of, side_lines
from truestep.hang.verdict import name_ranks
from truestep.rules import Evidence, Finding, Meta

RULE = Meta(
    code="DIST03",
    severity="error",
    is_observed=lambda evidence: bool(evidence.standings) or evidence.has_ranks,
    fix="Call the same collectives in the same order on every rank.",
    caused_by=("DIST05",),
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find the rank that the others wait for."""
    verdict = find_verdict(evidence.standings)
    if verdict is None:
        return
    verdict, cause = find_cause(verdict, read=lambda path: _text(evidence, path))
    place = verdict.odd[0].place or verdict.waiting[0].place
    sides = [line.strip() for line in (*side_lines(verdict.waiting), *side_lines(verdict.odd))]
    steps = verdict.odd[0].steps
    verb = "waits" if len(verdict.waiting) == 1 else "wait"
    yield Finding(
        message=f"the job hangs: {name_ranks(verdict.waiting)} {verb} for {name_ranks(verdict.odd)} in vain"
        + (f". {cause.name}: {cause.sentence}" if cause else ""),
        file=place.file if place else None,
        line=place.line if place else None,
        evidence="; ".join([*sides, difference_of(verdict)]).removesuffix("; "),
        fix=cause.fix if cause else None,
        step=steps + 1 if steps is not None else None,
    )


def _text(evidence: Evidence, path: str) -> str:
    source = evidence.source(path)
    return source.text if source is not None else ""
