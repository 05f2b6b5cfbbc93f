"""The scripts' own torch.profiler, for comparing: ranges around the parts of a step, and their totals."""

import json
import sys
from contextlib import nullcontext
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

WARM, STEPS = 4, 40


class Ranges:
    """With `--profiler FILE` the script profiles itself and writes what each range took; else nothing."""

    def __init__(self) -> None:
        self.path = sys.argv[sys.argv.index("--profiler") + 1] if "--profiler" in sys.argv else None
        self._profiler: Any = None
        self._step: Any = None
        self._num = 0

    def __call__(self, name: str) -> Any:
        return record_function(f"part.{name}") if self.path and self._num >= WARM else nullcontext()

    def batches(self, loader: Any) -> Any:
        while True:
            batches = iter(loader)
            while True:
                with self("data"):
                    batch = next(batches, None)
                if batch is None:
                    break
                yield batch

    def end_step(self) -> None:
        """Begin to profile after a few steps, and write the totals after enough of them."""
        self._num += 1
        if self.path is None:
            return
        if self._num == WARM - 1:  # starting it takes long: that is in no step that is counted
            self._profiler = profile(activities=[ProfilerActivity.CPU])
            self._profiler.start()
        if self._step is not None:
            self._step.__exit__(None, None, None)
        if self._num == WARM + STEPS:
            self._profiler.stop()
            rows = self._profiler.key_averages()
            totals = {row.key[5:]: row.cpu_time_total for row in rows if row.key.startswith("part.")}
            with open(self.path, "w") as file:  # noqa: PTH123
                json.dump(totals, file)
            sys.exit()
        if self._num >= WARM:
            self._step = record_function("part.step")
            self._step.__enter__()


torch.manual_seed(0)
