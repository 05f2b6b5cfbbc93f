"""A callback for Lightning's Trainer, which is optional: `Trainer(callbacks=[TruestepCallback()])`."""

import logging
from collections.abc import Sequence
from typing import Any

from truestep.check.evaluate import RuleFinding
from truestep.frameworks.live import LiveCheck
from truestep.report.answers import CURVE

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    from pytorch_lightning.callbacks import Callback  # type: ignore[assignment,unused-ignore]


class TruestepCallback(Callback):  # type: ignore[misc,unused-ignore] # of any type where it is missing
    """Checks `fit` in the first process, and logs each finding as soon as it is certain.

    `select` and `ignore` choose rules as for `truestep.checking`. After `steps` optimizer steps it stops.
    `callback.check` has the findings. The trainer's loggers get their number as a curve.
    """

    def __init__(
        self, *, select: Sequence[str] = (), ignore: Sequence[str] = (), steps: int | None = None
    ) -> None:
        log = logging.getLogger(f"{Callback.__module__.rpartition('.callbacks')[0]}.truestep")
        self._live = LiveCheck(log, select=select, ignore=ignore, steps=steps)

    @property
    def check(self) -> Any:
        """The check of the last `fit`; None before the first, and in other processes."""
        return self._live.check

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # limits: Lightning calls it like this
        if stage == "fit" and trainer.is_global_zero:
            self._live.begin()

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        self._log_to(trainer, self._live.look())

    def on_train_end(self, trainer: Any, *_: Any) -> None:
        self._log_to(trainer, self._live.end())

    def on_exception(  # limits: Lightning calls it like this
        self,
        trainer: Any,
        pl_module: Any,
        exception: BaseException,
    ) -> None:
        self._live.end(exception)

    def teardown(self, *_: Any, **__: Any) -> None:
        self._live.end()

    def _log_to(self, trainer: Any, found: Sequence[RuleFinding]) -> None:
        """Put the number of findings among the curves of the trainer's loggers."""
        for logger in trainer.loggers if found else ():
            logger.log_metrics({CURVE: float(self._live.num_mistakes)}, step=trainer.global_step)
