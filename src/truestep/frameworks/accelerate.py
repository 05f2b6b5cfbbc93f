"""A tracker for Accelerate, which is optional. Imported, it makes `log_with="truestep"` known."""

import logging
from collections.abc import Sequence
from typing import Any

from accelerate import tracking

from truestep.frameworks.live import LiveCheck


class TruestepTracker(tracking.GeneralTracker):  # type: ignore[misc,unused-ignore] # of any type where it is missing
    """Checks from `init_trackers` to `end_training` in the first process; `log` logs new findings.

    `select` and `ignore` choose rules as for `truestep.checking`. After `steps` optimizer steps it stops.
    `tracker.check` has the findings.
    """

    name = "truestep"
    requires_logging_directory = False
    main_process_only = True

    def __init__(
        self,
        run_name: str = "",  # Accelerate passes it to every tracker
        *,
        select: Sequence[str] = (),
        ignore: Sequence[str] = (),
        steps: int | None = None,
    ) -> None:
        super().__init__()
        log = logging.getLogger("accelerate.truestep")
        self._live = LiveCheck(log, select=select, ignore=ignore, steps=steps)

    @property
    def check(self) -> Any:
        """The check from `init_trackers` on; None before, and in other processes."""
        return self._live.check

    @property
    def tracker(self) -> Any:
        """What Accelerate hands out for this tracker: the check."""
        return self._live.check

    @tracking.on_main_process  # type: ignore[untyped-decorator,unused-ignore]
    def start(self) -> None:
        """Begin to observe."""
        self._live.begin()

    @tracking.on_main_process  # type: ignore[untyped-decorator,unused-ignore]
    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        """Log new findings. The values go to other trackers."""
        self._live.look()

    @tracking.on_main_process  # type: ignore[untyped-decorator,unused-ignore]
    def finish(self) -> None:
        """Observe no more, and log the rest."""
        self._live.end()


if hasattr(tracking, "register_tracker_class"):  # older versions take log_with=TruestepTracker()
    tracking.register_tracker_class(TruestepTracker)
