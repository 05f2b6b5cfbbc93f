"""A handler for Ignite's engines, which are optional: `TruestepHandler().attach(trainer)`."""

from collections.abc import Sequence
from typing import Any

from ignite import distributed
from ignite.engine import Engine, Events

from truestep.frameworks.live import LiveCheck


class TruestepHandler:
    """Checks `trainer.run` in the first process, and logs each finding as soon as it is certain.

    `select` and `ignore` choose rules as for `truestep.checking`. After `steps` optimizer steps it stops.
    `handler.check` has the findings.
    """

    def __init__(
        self, *, select: Sequence[str] = (), ignore: Sequence[str] = (), steps: int | None = None
    ) -> None:
        self._options: dict[str, Any] = {"select": select, "ignore": ignore, "steps": steps}
        self._live: LiveCheck | None = None

    @property
    def check(self) -> Any:
        """The check of the last run; None before the first, and in other processes."""
        return self._live.check if self._live is not None else None

    def attach(self, engine: Engine) -> None:
        """Check the runs of an engine that trains. Findings go to the engine's log."""
        live = self._live = LiveCheck(engine.logger, **self._options)

        def end(engine: Engine, error: BaseException | None = None) -> None:
            live.end(error)
            # Ignite raises an error only if there is no handler for it: ours alone must not hide it.
            if error is not None and len(engine._event_handlers[Events.EXCEPTION_RAISED]) == 1:
                raise error

        if distributed.get_rank() == 0:
            engine.add_event_handler(Events.STARTED, live.begin)
            engine.add_event_handler(Events.ITERATION_COMPLETED, live.look)
            for event in (Events.COMPLETED, Events.TERMINATE, Events.EXCEPTION_RAISED):
                engine.add_event_handler(event, end)
