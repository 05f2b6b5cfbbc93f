"""The baseline: findings that were known when it was written, so that only new ones are told.

Owns the file. A finding is known again by its rule and by the text of its line, wherever the line has moved.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from truestep.base import plainfile
from truestep.base.runfiles import replacing
from truestep.check.evaluate import RuleFinding, flatten, leave_out
from truestep.errors import UsageError
from truestep.rules.evidence import Evidence

_VERSION = 1


def write_baseline(path: Path, findings: Iterable[RuleFinding], *, evidence: Evidence) -> None:
    """Write what is known from here on."""
    known = [fingerprint(reported, evidence, folder=path.parent) for reported in flatten(findings)]
    rows = [dict(zip(("code", "file", "text"), row, strict=True)) for row in sorted(known)]
    text = json.dumps({"version": _VERSION, "findings": rows}, indent=2) + "\n"
    try:
        with replacing(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}). Name another file.") from error


def leave_out_known(findings: Sequence[RuleFinding], path: Path, *, evidence: Evidence) -> list[RuleFinding]:
    """Return the findings that the baseline does not have."""
    known = read_baseline(path)

    def is_known(reported: RuleFinding) -> bool:
        sign = fingerprint(reported, evidence, folder=path.parent)
        known[sign] -= 1
        return known[sign] >= 0

    return leave_out(findings, where=is_known)


def read_baseline(path: Path) -> Counter[tuple[str, str, str]]:
    """Return how often each finding is known; refuse what is no baseline."""
    try:
        found = plainfile.read_json(path)
        rows = [(str(row["code"]), str(row["file"]), str(row["text"])) for row in found["findings"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{path} is not a baseline ({type(error).__name__}). Write one with --write-baseline {path}."
        ) from error
    if found.get("version") != _VERSION:
        raise UsageError(
            f"{path} has version {found.get('version')}, this truestep reads {_VERSION}. "
            f"Write a new one with --write-baseline {path}."
        )
    return Counter(rows)


def fingerprint(reported: RuleFinding, evidence: Evidence, *, folder: Path) -> tuple[str, str, str]:
    """Return how a finding is known again: its rule, its file as seen from a folder, its line's text."""
    finding = reported.finding
    source = evidence.source(finding.file)
    text = source.line(finding.line).strip() if source else ""
    file = finding.file or ""
    place = Path(file)
    if file and place.is_relative_to(folder.absolute()):
        file = place.relative_to(folder.absolute()).as_posix()
    return reported.rule.meta.code, file, text
