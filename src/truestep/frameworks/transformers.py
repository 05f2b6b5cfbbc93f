"""A callback for Hugging Face's Trainer, which is optional; its import makes `report_to="truestep"` known."""

import logging
from collections.abc import Sequence
from typing import Any

from transformers import TrainerCallback
from transformers.integrations import integration_utils

from truestep.frameworks.live import LiveCheck
from truestep.report.answers import CURVE


class TruestepCallback(TrainerCallback):  # type: ignore[misc,unused-ignore] # of any type where it is missing
    """Checks `train` in the first process, and logs each finding as soon as it is certain.

    `select` and `ignore` choose rules as for `truestep.checking`. After `steps` optimizer steps it stops.
    `callback.check` has the findings. Callbacks after this one get their number with each log.
    """

    def __init__(
        self, *, select: Sequence[str] = (), ignore: Sequence[str] = (), steps: int | None = None
    ) -> None:
        log = logging.getLogger("transformers.truestep")
        self._live = LiveCheck(log, select=select, ignore=ignore, steps=steps)

    @property
    def check(self) -> Any:
        """The check of the last `train`; None before the first, and in other processes."""
        return self._live.check

    def on_train_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        if state.is_world_process_zero:
            self._live.begin()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self._live.look()

    def on_log(self, *_: Any, logs: Any = None, **__: Any) -> None:
        if logs is not None and self.check is not None:
            logs[CURVE] = float(self._live.num_mistakes)

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self._live.end()


integration_utils.INTEGRATION_TO_CALLBACK.setdefault("truestep", TruestepCallback)
