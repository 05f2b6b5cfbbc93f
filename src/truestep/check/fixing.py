"""Fixing a script as a transaction: an edit stays only if the script, run again with it, is no worse.

Owns when files are written, checked and restored. Edits themselves are in `edits` and the rules.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from itertools import combinations, product, starmap
from pathlib import Path
from typing import NamedTuple

from truestep.base.cells import is_notebook
from truestep.base.runfiles import replacing
from truestep.check.evaluate import RuleFinding, flatten
from truestep.check.examine import Result
from truestep.errors import UsageError
from truestep.rules import Edit, Evidence, Source
from truestep.rules.kit.edits import apply, is_local, overlap

_LINE = re.compile(r"\bline (\d+)")


class Proposed(NamedTuple):
    """What can be shown of the edits for a result, and what has to be tested before."""

    changed: dict[str, str]
    """New texts of files, with the edits that are provably local."""
    untested: list[RuleFinding]
    """Findings whose edits only a run can judge."""


@dataclass(kw_only=True)
class Fixed:
    """What came of it: the result for the files as they are now, and what was changed in them."""

    result: Result
    changed: dict[str, str] = field(default_factory=dict)
    """New texts of files."""
    kept: list[RuleFinding] = field(default_factory=list)
    """Findings whose edits stay."""
    withdrawn: list[tuple[RuleFinding, str]] = field(default_factory=list)
    """Findings whose edits were taken back, and why."""


def proposed(result: Result) -> Proposed:
    """Return the edits for errors and warnings that may be shown without a run."""
    found = fixable(result)
    local = _local(found, result.evidence)
    untested = [reported for reported in found if reported not in local]
    return Proposed(propose(local, result.evidence), untested)


def _local(findings: Iterable[RuleFinding], evidence: Evidence) -> list[RuleFinding]:
    """Return the findings whose edits are provably local, and exclude none of an earlier one."""
    local: list[RuleFinding] = []
    others: dict[str, list[Edit]] = {}
    for reported in findings:
        source = evidence.source(reported.finding.file)
        assert source is not None
        edits, taken = edits_of(reported, source), others.setdefault(source.path, [])
        is_free = not any(starmap(overlap, product(edits, taken)))
        if is_free and is_local(source, edits, line=reported.finding.line):
            local.append(reported)
            taken += edits
    return local


def fixable(result: Result, *, has_remarks: bool = False) -> list[RuleFinding]:
    """Return the findings for which there are edits, of files under the script's folder."""
    folder = (Path.cwd() if result.script is None else result.script.folder).resolve()
    return [
        reported
        for reported in result.findings
        if (has_remarks or reported.severity != "info")
        and _is_under(folder, reported.finding.file)
        and (source := result.evidence.source(reported.finding.file)) is not None
        and edits_of(reported, source)
    ]


def _is_under(folder: Path, file: str | None) -> bool:
    return file is not None and Path(file).resolve().is_relative_to(folder)


def apply_fixes(
    before: Result,
    examine: Callable[[], Result],
    *,
    has_remarks: bool = False,
    on_attempt: Callable[[Sequence[RuleFinding]], None] = lambda _findings: None,
) -> Fixed:
    """Edit the user's files, run the script again, and restore what fixed nothing or did harm.

    All edits are tried together, and one after the other if that fails. `on_attempt` is called with the
    findings before each run.
    """
    fixed = Fixed(result=before)
    found = fixable(before, has_remarks=has_remarks)
    if not found or before.inconclusive is not None:
        return fixed
    files = _Files(before.evidence)

    def attempt(findings: Sequence[RuleFinding]) -> str | None:
        changed = propose([*fixed.kept, *findings], before.evidence)
        files.write(changed)
        on_attempt(findings)
        trial = _Trial(
            original=before, earlier=(fixed.result, fixed.changed), later=(examine(), changed), tried=findings
        )
        reason = trial.objection()
        if reason is None:
            fixed.result, fixed.changed = trial.later
            fixed.kept += findings
        return reason

    try:
        reason = attempt(found)
        if reason is not None:
            reasons = [(found[0], reason)] if len(found) == 1 else [(item, attempt([item])) for item in found]
            fixed.withdrawn = [(reported, reason) for reported, reason in reasons if reason is not None]
    except BaseException:
        fixed.changed = {}
        raise
    finally:
        files.write(fixed.changed)
    return fixed


@dataclass(frozen=True, kw_only=True)
class _Trial:
    """Two runs, and the edits between them. A result comes with the texts that differ from the original's."""

    original: Result
    earlier: tuple[Result, Mapping[str, str]]
    later: tuple[Result, dict[str, str]]
    tried: Sequence[RuleFinding]

    def objection(self) -> str | None:
        """Return why the edits cannot stay, or None if they can."""
        (before, _), (after, _) = self.earlier, self.later
        if after.inconclusive is not None:
            return after.inconclusive
        for reported in self.tried:
            if self._is_still_there(reported):
                return "it is still reported"
        known = Counter(reported.rule.meta.code for reported in flatten(before.findings))
        for reported in after.findings:
            code = reported.rule.meta.code
            known[code] -= 1
            if known[code] < 0 and reported.severity != "info" and self._is_caused(reported):
                finding = reported.finding
                where = f" at line {finding.line}" if finding.line else ""
                return f"a new finding appears: {code} {reported.rule.name}{where}, {finding.message}"
        return None

    def _is_still_there(self, reported: RuleFinding) -> bool:
        code, finding = reported.rule.meta.code, reported.finding
        lines = _Lines.between(self._text(finding.file, {}), self._text(finding.file, self.later[1]))
        same = lines.new_of(finding.line)
        return any(
            other.rule.meta.code == code and other.finding.file == finding.file and other.finding.line in same
            for other in flatten(self.later[0].findings)
        )

    def _is_caused(self, reported: RuleFinding) -> bool:
        """Whether a new finding may come from the edits: if not, they have made it observable.

        A local edit acts through the lines that it writes, and what it breaks is reported at them, or names
        them. Of other edits that is not known.
        """
        finding = reported.finding
        if finding.line is None or [*self.tried] != _local(self.tried, self.original.evidence):
            return True
        words = f"{finding.message} {finding.evidence}"
        named = {finding.line, *(int(number) for number in _LINE.findall(words))}
        return any(
            named & _Lines.between(self._text(file, self.earlier[1]), text).written
            for file, text in self.later[1].items()
        )

    def _text(self, file: str | None, changed: Mapping[str, str]) -> str:
        source = self.original.evidence.source(file)
        return changed.get(file or "", "" if source is None else source.raw)


@dataclass(frozen=True, kw_only=True)
class _Lines:
    """Where lines of a text are in another."""

    moved: dict[int, list[int]]
    written: set[int]
    """Lines that are new, and those around what is gone."""

    @staticmethod
    def between(before: str, after: str) -> "_Lines":
        old, new = (Source("", text).lines for text in (before, after))
        moved: dict[int, list[int]] = {}
        written: set[int] = set()
        for tag, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
            if tag == "equal":
                moved.update({a + number + 1: [c + number + 1] for number in range(b - a)})
                continue
            moved.update({number + 1: [*range(c + 1, d + 1)] for number in range(a, b)})
            written |= set(range(c + 1, d + 1)) if d > c else {c, c + 1}
        return _Lines(moved=moved, written=written)

    def new_of(self, line: int | None) -> list[int]:
        """Return the lines that stand where one was; none if it is gone."""
        return self.moved.get(line or 0, [])


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
    """Return new texts of the files in which something can be fixed."""
    edits: dict[Source, list[Edit]] = {}
    for reported in findings:
        source = evidence.source(reported.finding.file)
        if source is not None:
            edits.setdefault(source, []).extend(edits_of(reported, source))
    changed = {source.path: apply(source, items) for source, items in edits.items() if items}
    return {file: text for file, text in changed.items() if _is_python(text)}


def edits_of(reported: RuleFinding, source: Source) -> list[Edit]:
    """Return what would fix one finding; nothing if its rule does not know, or if it is in a notebook."""
    if is_notebook(source.path) or reported.rule.make_edits is None:
        return []
    edits = reported.rule.make_edits(source, reported.finding)
    is_whole = not any(starmap(overlap, combinations(edits, 2)))
    return edits if is_whole and _is_python(apply(source, edits)) else []


def _is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True
