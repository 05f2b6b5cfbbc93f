"""Fixing a script as a transaction: an edit stays only if the script, run again with it, is no worse.

Owns when files are written, checked and restored. Edits themselves are in `edits` and the rules.
"""

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from truestep.cells import is_notebook
from truestep.check.evaluate import RuleFinding, flatten
from truestep.check.examine import Result
from truestep.errors import UsageError
from truestep.rules import Edit, Evidence, Source
from truestep.rules.analysis.edits import apply
from truestep.runfiles import replacing


@dataclass(kw_only=True)
class Fixed:
    """What came of it: the result for the files as they are now, and what was changed in them."""

    result: Result
    changed: dict[str, str] = field(default_factory=dict)
    """New texts of files."""
    withdrawn: list[tuple[RuleFinding, str]] = field(default_factory=list)
    """Findings whose edits were taken back, and why."""


def apply_fixes(
    before: Result,
    examine: Callable[[], Result],
    *,
    on_change: Callable[[dict[str, str]], None] = lambda _changed: None,
) -> Fixed:
    """Edit the user's files, run the script again, and restore what made it fail or brought a new finding.

    All edits are tried together, and one after the other if that fails. `on_change` is called with the new
    texts before each run.
    """
    fixed = Fixed(result=before)
    found = [reported for reported in before.findings if _is_fixable(reported, before.evidence)]
    if not found or before.inconclusive is not None:
        return fixed
    files = _Files(before.evidence)

    def attempt(findings: Sequence[RuleFinding]) -> str | None:
        changed = propose(findings, before.evidence)
        files.write(changed)
        on_change(changed)
        after = examine()
        reason = _worse(before, after)
        if reason is None:
            fixed.result, fixed.changed = after, changed
        return reason

    try:
        reason = attempt(found)
        if reason is not None and len(found) == 1:
            fixed.withdrawn = [(found[0], reason)]
        elif reason is not None:
            _try_each(found, attempt, fixed)
    except BaseException:
        fixed.changed = {}
        raise
    finally:
        files.write(fixed.changed)
    return fixed


def _try_each(
    found: Sequence[RuleFinding], attempt: Callable[[Sequence[RuleFinding]], str | None], fixed: Fixed
) -> None:
    kept: list[RuleFinding] = []
    for reported in found:
        reason = attempt([*kept, reported])
        if reason is None:
            kept.append(reported)
        else:
            fixed.withdrawn.append((reported, reason))


def _is_fixable(reported: RuleFinding, evidence: Evidence) -> bool:
    source = evidence.source(reported.finding.file)
    return source is not None and bool(edits_of(reported, source))


def _worse(before: Result, after: Result) -> str | None:
    """Return in which way the edited script is worse, or None if it is not."""
    if after.inconclusive is not None:
        return after.inconclusive
    known = Counter(reported.rule.meta.code for reported in flatten(before.findings))
    for reported in after.findings:
        code = reported.rule.meta.code
        known[code] -= 1
        if known[code] < 0 and reported.severity != "info":
            return f"a new finding appears: {code} {reported.rule.name}, {reported.finding.message}"
    return None


class _Files:
    """The user's files as they were, and what was last written to each."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._written: dict[str, str] = {}

    def write(self, changed: dict[str, str]) -> None:
        """Give these files their new texts, and all others that were changed their old ones."""
        for file in dict.fromkeys((*self._written, *changed)):
            source = self._evidence.source(file)
            assert source is not None
            text = changed.get(file, source.raw)
            if text != self._written.get(file, source.raw):
                self._replace(file, self._written.get(file, source.raw), text=text)
                self._written[file] = text

    def _replace(self, file: str, expected: str, *, text: str) -> None:
        try:
            if Path(file).read_bytes() != expected.encode():
                raise UsageError(
                    f"{file} changed while the script ran, so --fix did not edit it. Run the command again."
                )
            # The user's own link is followed: what is replaced is the file that it leads to.
            with replacing(Path(file).resolve()) as opened:
                opened.write(text.encode())
        except OSError as error:
            raise UsageError(
                f"{file} cannot be written ({error.strerror}). Make it writable, or remove --fix."
            ) from error


def propose(findings: Iterable[RuleFinding], evidence: Evidence) -> dict[str, str]:
    """Return new texts of the files in which something can be mended."""
    edits: dict[Source, list[Edit]] = {}
    for reported in findings:
        source = evidence.source(reported.finding.file)
        if source is not None:
            edits.setdefault(source, []).extend(edits_of(reported, source))
    changed = {source.path: apply(source, items) for source, items in edits.items() if items}
    return {file: text for file, text in changed.items() if _is_python(text)}


def edits_of(reported: RuleFinding, source: Source) -> list[Edit]:
    """Return what would fix one finding; nothing if its rule does not know, or if it is in a notebook."""
    if is_notebook(source.path):
        return []
    return reported.rule.make_edits(source, reported.finding) if reported.rule.make_edits is not None else []


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True
