"""A check that lasts from one call of a framework to another one, and whose findings go to a log.

Owns when a check begins and ends there, and what is logged. Imports no framework.
"""

import atexit
import logging
from collections.abc import Sequence

from truestep.check.evaluate import RuleFinding
from truestep.check.within import Check, checking
from truestep.watch.hooks import table

_LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO}


class LiveCheck:
    """A check of one training after another, each from `begin` to `end`; `look` logs what is new."""

    def __init__(
        self, log: logging.Logger, *, select: Sequence[str], ignore: Sequence[str], steps: int | None
    ) -> None:
        checking(select=select, ignore=ignore)  # a name that is no rule is refused at once
        self.log, self._select, self._ignore, self._steps = log, select, ignore, steps
        self.check: Check | None = None
        """The check of this training, or of the last one; None before the first."""
        self.num_mistakes = 0
        """Errors and warnings of this training that were logged."""
        self._is_open = False

    def begin(self) -> None:
        """Begin to observe, unless this process is observed already: then findings are reported there."""
        self.end()  # a training that failed does not tell every framework's callbacks
        if table.is_hooked():
            self.log.info("truestep: this process is already observed, so the callback checks nothing")
            return
        self.num_mistakes = 0
        self.check = checking(select=self._select, ignore=self._ignore)
        self.check.__enter__()
        self._is_open = True
        atexit.register(self.end)

    def look(self) -> list[RuleFinding]:
        """Log what is certain by now, and return it. Call it after each step."""
        if self.check is None or not self._is_open:
            return []
        found = self._log_new(self.check)
        if self._steps is not None and self.check.num_steps >= self._steps:
            found += self.end()
        return found

    def end(self, error: BaseException | None = None) -> list[RuleFinding]:
        """Observe no more, log the rest and how many findings there are, and return the rest."""
        if self.check is None or not self._is_open:
            return []
        self._is_open = False
        atexit.unregister(self.end)
        self.check.__exit__(type(error) if error else None, error, None)
        found = self._log_new(self.check)
        is_clean = not self.check.has_mistakes and self.check.inconclusive is None
        self.log.log(logging.INFO if is_clean else logging.WARNING, "truestep: %s", self.check.summary)
        return found

    def _log_new(self, check: Check) -> list[RuleFinding]:
        found = check.new_findings()
        for reported in found:
            self.log.log(_LEVELS[reported.severity], "truestep: %s", check.describe(reported))
        self.num_mistakes += sum(reported.severity != "info" for reported in found)
        return found
