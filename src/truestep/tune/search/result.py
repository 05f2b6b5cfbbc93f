"""What tuning found: a row for each trial, the settings that were kept, and the evidence.

Owns the form of the answer and its plain values. Printing is the command's.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any, Literal

from truestep import watch
from truestep.base.redaction import redacted
from truestep.run.train import settings as settings_file
from truestep.tune.knob import ScriptFacts
from truestep.tune.search.compare import Comparison
from truestep.tune.search.learning import Learning

Status = Literal["pays", "no gain", "refused", "failed", "skipped", "untested"]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One position of one knob: what it gave, and what follows."""

    knob: str
    words: str
    """The position, as the table tells it."""
    status: Status
    value: Any = None
    reason: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The value of each knob that it turns: of one, or of several at once."""
    on_top_of: Mapping[str, Any] = field(default_factory=dict)
    """What it was compared with: the script as it stands, if empty."""
    found: Comparison | None = None
    learning: Learning | None = None
    changes_bits: bool = False

    @property
    def gain(self) -> float:
        """The speed ratio; 0 if there is none."""
        return self.found.ratio.median if self.found is not None and self.found.ratio is not None else 0.0

    @property
    def memory(self) -> float | None:
        """Peak memory as a ratio to that of what it was compared with."""
        found = self.found
        if found is None or found.ratio is None or not found.base_peak_bytes:
            return None
        return found.other_peak_bytes / found.base_peak_bytes

    def as_fields(self) -> dict[str, Any]:
        """Return plain values."""
        ratio = self.found.ratio if self.found is not None else None
        return {
            "knob": self.knob,
            "tried": self.words,
            "value": self.value,
            "status": self.status,
            "reason": self.reason,
            "on_top_of": dict(self.on_top_of),
            "ratio": ratio.as_fields() if ratio is not None else None,
            "memory": self.memory,
            "changes_bits": self.changes_bits,
            "learning": self.learning.as_fields() if self.learning is not None else None,
        }


@dataclass(frozen=True, kw_only=True)
class Result:
    """All of it."""

    script: watch.Script
    facts: ScriptFacts
    trials: tuple[Trial, ...]
    settings: Mapping[str, Any]
    """The value of each knob that is kept; empty if nothing paid."""
    lines: Mapping[str, list[str]]
    """How each of them is written by hand."""
    for_run: Mapping[str, tuple[str, Any]]
    """Those that `truestep.Run` takes from `truestep.toml`: name and value there, by knob."""
    final: Comparison | None
    """What was kept, against the start once more."""
    learning: Learning | None
    budget_s: float
    seconds: float = 0.0
    is_interrupted: bool = False
    """Whether Ctrl-C ended the search; what it had found by then is here, and nothing is kept of it."""

    @property
    def inconclusive(self) -> str | None:
        """Why there is no answer; None if at least one setting was measured and the search was not ended."""
        if self.is_interrupted:
            return "Ctrl-C ended the search before the kept settings were measured once more"
        if any(trial.found is not None and trial.found.ratio is not None for trial in self.trials):
            return None
        counts = Counter(trial.status for trial in self.trials)
        outcomes = (
            ", ".join(f"{count} {status}" for status, count in counts.items()) or "there was nothing to try"
        )
        late = " Pass a larger --budget." if counts["untested"] else ""
        return f"no setting was measured ({outcomes}).{late}"

    @property
    def outcomes(self) -> Counter[Status]:
        """How many settings came to what, tried alone; those that do not apply to the script are left out."""
        return Counter(
            trial.status for trial in self.trials if trial.status != "skipped" and not trial.on_top_of
        )

    @property
    def untested(self) -> str:
        """How many settings are untested, and with which budget they would not be; empty if none is."""
        counts = self.outcomes
        num = counts["untested"]
        each_s = self.budget_s / max(1, counts.total() - num)
        budget_s = 60 * ceil(each_s * counts.total() / 60)
        return f"{num} untested: --budget {budget_s}" if num else ""

    def write_settings(self) -> Path | None:
        """Write `truestep.toml` beside a script that reads it; other settings in it stay."""
        if not self.for_run or self.final is None or self.final.ratio is None:
            return None
        path = Path(self.script.path).parent / settings_file.NAME
        before = settings_file.read(path).values if path.is_file() else {}
        ratio = self.final.ratio
        gain = f"{ratio.median:.2f} times as fast ({ratio.low:.2f} to {ratio.high:.2f})"
        comment = f"Written by truestep tune: {gain} on {self.facts.cores} cores."
        settings_file.write({**before, **dict(self.for_run.values())}, path, comment=comment)
        return path

    def as_fields(self) -> dict[str, Any]:
        """Return plain values."""
        final = self.final.ratio if self.final is not None else None
        return {
            "script": self.script.path,
            "arguments": redacted(self.script.arguments),
            "profile": {
                "step_s": self.facts.step_s,
                "device": self.facts.device,
                "shares": {phase: {"share": share} for phase, share in self.facts.shares.items()},
            },
            "trials": [trial.as_fields() for trial in self.trials],
            "settings": dict(self.settings),
            "lines": {name: list(lines) for name, lines in self.lines.items()},
            "ratio": final.as_fields() if final is not None else None,
            "learning": self.learning.as_fields() if self.learning is not None else None,
            "seconds": round(self.seconds, 1),
            "budget_s": self.budget_s,
            "inconclusive": self.inconclusive,
        }
