"""Inside the script's process: which samples one step has, and the loss of each.

Owns what `show` does not record. Nothing here may draw.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from truestep.errors import UsageError
from truestep.run.data.fetch import Orders
from truestep.run.data.plan import steps_of
from truestep.watch.hooks.table import Function, Hook, put
from truestep.watch.script.tape import Tape

_LOSSES = {
    name: getattr(functional, name)
    for name in (
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "cross_entropy",
        "huber_loss",
        "l1_loss",
        "mse_loss",
        "nll_loss",
        "smooth_l1_loss",
    )
}
"""The functions themselves, as they were before anything is put around them."""
_MAX_CALLS, _MAX_ROWS = 4096, 65_536


def look(value: dict[str, Any], tape: Tape) -> None:
    """Note what happens in the step `step` of this process; `index` is its number in a `truestep.Run`."""
    _Look(tape, step=value["step"], index=value.get("index"), work=Path(value["work"]))


class _Look:
    def __init__(self, tape: Tape, *, step: int, index: int | None, work: Path) -> None:
        self._tape, self._step, self._index, self._work = tape, step, index, work
        self._rows: list[list[float]] = []
        """For each call of a loss function, the loss of each row that it got."""
        self._feeds: list[tuple[Any, Any]] = []
        tape.listen(run_arrives=self._hook_run, closing=self._close)
        for name in _LOSSES:
            put(tape, [Hook(f"torch.nn.functional.{name}", self._observe_loss, given=(name,))])

    @property
    def _is_now(self) -> bool:
        return self._tape.num_steps == self._step

    def _hook_run(self, _kind: Any) -> None:
        put(
            self._tape,
            [
                Hook("truestep.run.train.run.Run._claim", self._claim, changes=True),
                Hook("truestep.run.data.loader.Loader.feed", self._take_feed),
            ],
        )

    def _claim(self, claim: Function, run: Any) -> Any:
        if not run.folder.absolute().resolve().is_relative_to(self._work):
            raise UsageError(
                f"the script gives truestep.Run the folder {run.folder}, outside of the working folder, so a "
                f"replay would write to it. Let it use a path inside the folder in which you start it."
            )
        return claim(run)

    def _take_feed(self, loader: Any, plan: Any, **_more: Any) -> None:
        self._feeds.append((loader, plan))

    def _observe_loss(self, name: str, *args: Any, **kwargs: Any) -> None:
        if self._is_now and torch.is_grad_enabled() and len(self._rows) < _MAX_CALLS:
            self._tape.call_listener(self._take_rows, name, args, kwargs)

    def _take_rows(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compute the loss of each row beside the script's own; what cannot be is left out."""
        plain = [item.detach() if isinstance(item, Tensor) else item for item in args]
        with torch.no_grad():
            try:
                rows = _LOSSES[name](*plain, **{**kwargs, "reduction": "none"})
            except (TypeError, ValueError, RuntimeError):
                return
        if rows.ndim and len(rows) <= _MAX_ROWS:
            self._rows.append(rows.reshape(rows.shape[0], -1).mean(1).tolist())

    def _samples(self) -> dict[str, Any]:
        """Return which samples the step has, by their index in the dataset, and their losses, if known."""
        if self._index is None or not self._feeds or self._feeds[-1][0].is_stream:
            return {"losses": self._rows[0] if len(self._rows) == 1 else []}
        loader, plan = self._feeds[-1]
        size = loader._global_batch_size(plan.num_lanes)
        planned = steps_of(
            replace(plan, cursor=self._index),
            num_samples=len(loader.dataset),
            batch_size=size,
            drop_last=loader.drop_last,
        )
        step = next(planned)
        order = Orders(loader.dataset, seed=plan.seed, shuffle=loader.shuffle).of(step.epoch)
        indices = order.indices(step.start, step.start + step.num_samples)
        losses = _by_sample(self._rows, [stop - start for _, start, stop in step.cuts])
        return {"epoch": step.epoch, "samples": [int(index) for index in indices], "losses": losses}

    def _close(self) -> None:
        self._tape.write("replay", **self._samples())


def _by_sample(calls: list[list[float]], sizes: list[int]) -> list[float]:
    """Return the loss of each sample, if each lane had one loss; a text has a row for each token."""
    if len(calls) != len(sizes) or any(len(rows) % size for rows, size in zip(calls, sizes, strict=True)):
        return []
    found = []
    for rows, size in zip(calls, sizes, strict=True):
        each = len(rows) // size
        found += [sum(rows[at : at + each]) / each for at in range(0, len(rows), each)] if each else []
    return found
