"""A rank loads a file while another one may still write it.

## What it finds
A file that one rank saves and another rank loads, without a collective in between that makes the second one
wait. Use `--processes 2`.

## Why it matters
Nothing orders the two. The rank that loads finds the file of the last run, half a file, or none. It works
until a disk is slow.

## How to fix
Put `dist.barrier()` between saving and loading, on every rank: after `if rank == 0: torch.save(...)` and
before `torch.load(...)`.
"""

import re
from collections.abc import Iterator
from typing import Any

from truestep.rules import Evidence, Finding, Meta
from truestep.watch import Moment, Process
from truestep.watch.evidence.facts.structure import FileLoaded, FileSaved
from truestep.watch.evidence.facts.surroundings import RankEnded

RULE = Meta(
    code="DIST18",
    severity="warning",
    is_observed=lambda evidence: any(True for _ in _pairs(evidence)),
    needs=(RankEnded,),
    fix="Call dist.barrier() on every rank between saving and loading.",
)
_ORDERED = re.compile(
    r"[fF]ile_?[lL]ock|monitored_barrier|\bsleep\(|\.wait\(|store\.|fcntl|Store\(|dist\w*\.recv\("
)
"""Other ways to wait for a rank, which are not recorded."""


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find files that are saved and loaded between the same two collectives."""
    if any(_ORDERED.search(source.text) for source in evidence.sources):
        return
    for writer, saved, reader, loaded in _pairs(evidence):
        if any(item.at_s < saved.at_s for item in _loads(writer, saved.facts.path)):
            continue  # all load what the last run has left, and one saves it again
        before, after = _passed(writer, saved), _passed(reader, loaded)
        if before is not None and before == after:
            yield Finding.at(
                loaded,
                f"rank {reader.rank} loads a file while rank {writer.rank} may still write it",
                evidence=f"{saved.facts.path} is saved in line {saved.line} and loaded in line "
                f"{loaded.line}; no collective comes between them",
            )
            return


def _pairs(
    evidence: Evidence,
) -> Iterator[tuple[Process, Moment[FileSaved], Process, Moment[FileLoaded]]]:
    for writer in evidence.processes:
        for reader in evidence.processes:
            if writer is reader or min(writer.size, reader.size) < 2:
                continue
            for saved in writer.of(FileSaved):
                loads = _loads(reader, saved.facts.path)
                if loads and not any(item.facts.path == saved.facts.path for item in reader.of(FileSaved)):
                    yield writer, saved, reader, loads[0]


def _loads(process: Process, path: str | None) -> list[Moment[FileLoaded]]:
    return [item for item in process.of(FileLoaded) if path and item.facts.path == path]


def _passed(process: Process, moment: Moment[Any]) -> dict[str, int] | None:
    """Return the number of the last collective in each group before a moment; None if that is not known."""
    if not process.of(RankEnded):
        return None
    ended = process.of(RankEnded)[-1]
    at_ns = ended.facts.ended_ns - (ended.at_s - moment.at_s) * 1e9
    passed: dict[str, int] = {}
    for group, number, arrived_ns in ended.facts.arrivals:
        if arrived_ns < at_ns:
            passed[group] = max(number, passed.get(group, 0))
    return passed or None
