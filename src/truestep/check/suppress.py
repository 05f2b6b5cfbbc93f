"""Findings that are hidden on purpose: by a comment on the line, or by one for the whole file.

Owns the form of those comments: `# truestep: ignore[stale-gradients] reason` on the line or on one of its own
above it, `# truestep: ignore-file[LOOP01] reason` anywhere in a file. One that hides nothing is told.
"""

import io
import re
import tokenize
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from truestep.check.evaluate import RuleFinding, flatten, leave_out
from truestep.check.settings import is_named
from truestep.rules.evidence import Source
from truestep.rules.rule import Rule

_COMMENT = re.compile(r"#\s*truestep:\s*(ignore|ignore-file)\[([\w\-, ]+)\]\s*(.*)")


@dataclass(frozen=True, kw_only=True)
class Comment:
    """What the author of a script does not want to hear, and why."""

    file: str
    line: int
    covers: int | None
    """The line that is meant; None for the whole file."""
    names: tuple[str, ...]
    reason: str

    def hides(self, reported: RuleFinding) -> bool:
        """Whether it is meant for this finding."""
        finding = reported.finding
        is_here = finding.file == self.file and self.covers in (None, finding.line)
        return is_here and is_named(reported.rule, self.names)


def hide(
    findings: Sequence[RuleFinding], sources: Iterable[Source]
) -> tuple[list[RuleFinding], list[Comment]]:
    """Return what is not hidden, and the comments that hide nothing."""
    comments = [comment for source in sources for comment in read_comments(source)]
    used = [comment for comment in comments if any(comment.hides(reported) for reported in flatten(findings))]
    kept = leave_out(findings, where=lambda reported: any(comment.hides(reported) for comment in used))
    return kept, [comment for comment in comments if comment not in used]


def unknown_names(comments: Iterable[Comment], rules: Sequence[Rule]) -> list[tuple[Comment, str]]:
    """Return the names in comments that mean no rule."""
    return [
        (comment, name)
        for comment in comments
        for name in comment.names
        if not any(is_named(rule, (name,)) for rule in rules)
    ]


def read_comments(source: Source) -> list[Comment]:
    """Return the comments of a file that are meant for us."""
    if "truestep:" not in source.text:
        return []
    found = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
            match = _COMMENT.match(token.string) if token.type == tokenize.COMMENT else None
            if match:
                found.append(_read(source, token, match))
    except (tokenize.TokenError, IndentationError):
        return found
    return found


def _read(source: Source, token: tokenize.TokenInfo, match: re.Match[str]) -> Comment:
    line = token.start[0]
    is_alone = not source.line(line)[: token.start[1]].strip()
    covers = None if match[1] == "ignore-file" else line + is_alone
    names = tuple(name.strip() for name in match[2].split(",") if name.strip())
    return Comment(file=source.path, line=line, covers=covers, names=names, reason=match[3].strip())
