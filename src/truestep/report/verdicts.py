"""What a recorded answer of `check` amounts to, in one line and a tone.

Owns the sentences, for the page, the live view and exports alike. Records may be damaged or untrusted: any
field may be of any kind.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from truestep.report.numerals import count, plain
from truestep.report.readings import storable

Tone = Literal["good", "warn", "bad"]
_NAMES = {"error": ("error", "errors"), "warning": ("warning", "warnings"), "info": ("remark", "remarks")}


def findings_in(answer: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the findings of an answer; what is none of ours is shown as a message."""
    found = answer.get("findings")
    for item in found if isinstance(found, list) else []:
        yield item if isinstance(item, dict) else {"message": item}


def count_findings(answer: Mapping[str, Any]) -> dict[str, int]:
    """How many findings of each severity there are, the worst first."""
    counts = Counter(str(item.get("severity", "info")) for item in findings_in(answer))
    order = [*_NAMES, *sorted(counts.keys() - _NAMES.keys())]
    return {name: counts[name] for name in order if counts[name]}


def unsure(answer: Mapping[str, Any]) -> str:
    """Why finding nothing proves nothing; empty if the script was checked."""
    if answer.get("inconclusive"):
        return _text(answer["inconclusive"])
    faults = [*_listed(answer.get("failed_rules")), *_listed(answer.get("failed_observers"))]
    if faults:
        return f"a part of truestep failed: {_text(faults[0])}"
    return "" if answer.get("steps") or any(findings_in(answer)) else "no optimizer step was recorded"


def missing(answer: Mapping[str, Any]) -> str:
    """Return what to write in place of no findings, where `unsure` has a reason."""
    return "inconclusive" if answer.get("steps") else "not checked"


def check_words(answer: Mapping[str, Any]) -> str:
    """Return what `check` found in how many steps, or why that says nothing."""
    counts = count_findings(answer)
    named = [_counted(num, name) for name, num in counts.items()]
    reason = unsure(answer)
    steps = answer.get("steps")
    during = f" in {count(steps, 'step')}" if isinstance(steps, int) else ""
    if not named:
        return f"{missing(answer)}: {reason}" if reason else f"nothing found{during}"
    return f"{', '.join(named)}{during}" + (f"; inconclusive: {reason}" if reason else "")


def check_tone(answer: Mapping[str, Any]) -> Tone:
    """Return how bad it is: green only if the script was checked and has neither errors nor warnings."""
    counts = count_findings(answer)
    if "error" in counts:
        return "bad"
    return "warn" if "warning" in counts or unsure(answer) else "good"


def sameness(same: object) -> str:
    """Return the answer of verify; an untrusted record may hold anything, which is inconclusive."""
    return "same" if same is True else "different" if same is False else "inconclusive"


def _counted(num: int, severity: str) -> str:
    word, plural = _NAMES.get(severity, (severity, f"{severity}s"))
    return count(num, word, plural=plural)


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    return " ".join(storable(plain(value)).split())
