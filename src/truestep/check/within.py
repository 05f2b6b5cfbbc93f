"""Checking a part of this process: `with truestep.checking() as check:` around code that trains.

Owns the block and what is known after it. Which torch functions are observed is in `watch`, what is a mistake
in `rules`.
"""

import linecache
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from truestep.check.describe import count_text, describe, rules_text, steps_text
from truestep.check.early import Key, Pace, cut_whole, find_lasting, key_of
from truestep.check.evaluate import RuleFinding, evaluate_rules
from truestep.check.examine import Result, is_of_doctor, shown_of, suppress
from truestep.check.gather import check_plan
from truestep.check.settings import read_settings
from truestep.check.suppress import hide
from truestep.errors import CheckFailed, UsageError
from truestep.rules.evidence import Evidence
from truestep.rules.rule import find_rules
from truestep.watch.evidence.facts.passes import BackwardPass
from truestep.watch.script.within import Part


class Check:
    """What is known of a block of code: filled when the block ends.

    Example: `with truestep.checking() as check: train(model)`, then `check.raise_for_findings()`.
    """

    def __init__(self, *, select: Sequence[str] = (), ignore: Sequence[str] = ()) -> None:
        settings = read_settings(Path.cwd())
        self._settings = settings.updated(select=_names("select", select), ignore=_names("ignore", ignore))
        self._every_rule = find_rules(self._settings.rules)
        chosen = self._settings.choose(self._every_rule)
        self._rules = [rule for rule in chosen if not is_of_doctor(rule)]
        self._part: Part | None = None
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._pace = Pace()
        self._reported: set[Key] = set()

    def __enter__(self) -> "Check":
        if self._part is not None or self._result is not None:
            raise UsageError("this check was used before. Call truestep.checking() for each block.")
        self._folder = tempfile.TemporaryDirectory(prefix="truestep-check-")
        try:
            self._part = Part(Path(self._folder.name), check_plan())
        except BaseException:
            self._folder.cleanup()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:  # limits: Python calls it like this
        assert self._part is not None
        self._error = error or self._error
        part, self._part = self._part, None
        try:
            part.end(self._error)
            self._result = self._evaluate()
        finally:
            self._folder.cleanup()

    def note_error(self, error: BaseException | None) -> None:
        """Note an error that does not leave the block: a notebook prints it and continues."""
        self._error = error

    @property
    def findings(self) -> list[RuleFinding]:
        """What was found, the worst first. Inside of the block: what is found in the steps so far."""
        return self.result.findings

    @property
    def num_steps(self) -> int:
        """How many steps optimizers have made."""
        return self._part.num_steps if self._part is not None else self.result.num_steps

    @property
    def has_mistakes(self) -> bool:
        """Whether there are errors or warnings, not only remarks."""
        return self.result.has_mistakes

    @property
    def inconclusive(self) -> str | None:
        """Why nothing can be concluded from finding nothing; None if something can."""
        result = self.result
        if self._error is not None:
            return f"the block ended with {type(self._error).__name__}: {self._error}"
        if result.withdrawn is not None:
            return result.withdrawn
        if result.num_steps:
            off = [*result.evaluation.failed, *result.switched_off]
            return f"truestep failed to observe a part of it: {'; '.join(off)}" if off else None
        more = " There were backward passes." if result.evidence.has(BackwardPass) else ""
        return (
            "No optimizer step ran in the block, so nothing was checked." + more + " Put the loop that "
            "trains into the block. Processes that it starts are not observed."
        )

    @property
    def result(self) -> Result:
        """All that is known, as the command has it."""
        if self._result is not None:
            return self._result
        if self._part is None:
            raise UsageError(
                "nothing was checked yet. Use the check as `with truestep.checking() as check:`."
            )
        self._part.write()
        return self._evaluate()

    def new_findings(self) -> list[RuleFinding]:
        """Return findings that were not returned before. Inside the block: what later steps cannot take back.

        Call it after each step: it evaluates the rules now and then, for at most a twentieth of the time.
        After the block it returns all findings that are left.
        """
        found = self.findings if self._part is None else self._find_early(self._part)
        new = [reported for reported in found if key_of(reported) not in self._reported]
        self._reported |= {key_of(reported) for reported in new}
        return new

    def describe(self, reported: RuleFinding) -> str:
        """Return one of the findings in a few lines: rule, line, message, evidence and fix."""
        return describe(reported, self._evidence)

    def raise_for_findings(self) -> None:
        """Raise an error that shows all findings, if there are errors or warnings, or if it is inconclusive.

        A remark raises nothing.
        """
        if self.has_mistakes or self.inconclusive is not None:
            raise CheckFailed(str(self))

    @property
    def summary(self) -> str:
        """One line: how many findings there are in how many steps, or why the check is inconclusive."""
        reason = "" if self.inconclusive is None else f"; inconclusive: {self.inconclusive}"
        return self._count_text + reason

    def __str__(self) -> str:
        parts = [describe(reported, self.result.evidence) for reported in self.findings]
        if self.inconclusive is not None:
            parts.append(f"inconclusive: {self.inconclusive}")
        parts.append(f"{self._count_text}\n{rules_text(self.result)}")
        return "\n\n".join(parts)

    @property
    def _count_text(self) -> str:
        return f"{count_text(self.result)} in {steps_text(self.num_steps)}"

    def _read(self) -> Evidence:
        evidence = Evidence.read(Path(self._folder.name))
        evidence.is_part = True
        evidence.texts = {file: _text_of(file) for file in evidence.files if not Path(file).is_file()}
        self._evidence = evidence
        return evidence

    def _find_early(self, part: Part) -> list[RuleFinding]:
        """Return what is certain by now, if it is time to look."""
        if not self._pace.is_due(part.num_steps):
            return []
        begun_s = time.monotonic()
        part.write()
        evidence = cut_whole(self._read())
        found = [] if evidence is None else find_lasting(self._rules, evidence)
        self._pace.note(part.num_steps, since_s=begun_s)
        if evidence is None:
            return []
        return shown_of(hide(found, evidence.sources)[0], self._settings)

    def _evaluate(self) -> Result:
        evidence = self._read()
        evaluation = evaluate_rules(self._rules, evidence)
        result = Result(
            code=int(self._error is not None), evidence=evidence, rules=self._rules, evaluation=evaluation
        )
        suppress(result, self._settings, everything=self._every_rule)
        return result


def checking(*, select: Sequence[str] = (), ignore: Sequence[str] = ()) -> Check:
    """Return a block in which training is checked, in this process: `with truestep.checking() as check:`.

    `select` and `ignore` name rules as for the command, and pyproject.toml is read as by the command. What
    torch is asked to do in the block is observed; after it, torch is as it was. What was seeded, made or
    loaded before the block is not known, so rules that need it do not apply.
    """
    return Check(select=select, ignore=ignore)


def _names(option: str, given: Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        raise UsageError(f'{option} must be a list of rules, got {given!r}. Pass {option}=["{given}"].')
    return tuple(given)


def _text_of(file: str) -> str:
    """Return the source of a notebook's cell, which is in no file."""
    return "".join(linecache.getlines(file))
