"""What is in the corpus: one script per cause of a result that does not repeat, and a clean twin of each.

A script's twin is the script with the patch of its name. Running them is left to prove.py.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.patches import write_repaired

FOLDER = Path(__file__).parent
MARK = "# <- here"
Mode = Literal["twice", "kill", "processes", "workers", "threads", "environment"]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One cause, and the way of running its script again that reveals it.

    `twice`: run again as it is. `kill`: kill it after `kill_after` optimizer steps and start it again in the
    same folder. `processes`, `workers`, `threads`: run it with each of `values`: through torchrun, as its
    `--workers`, as OMP_NUM_THREADS. `environment`: run it with each of `environments`; None takes a variable
    away. A racy one may repeat by chance. `num_processes`: started through torchrun when above one.
    """

    cause: str
    words: str
    mode: Mode = "twice"
    values: tuple[int, ...] = ()
    environments: tuple[Mapping[str, str | None], ...] = ()
    kill_after: int = 7
    num_processes: int = 1
    is_racy: bool = False

    @property
    def script(self) -> Path:
        """The script with the cause."""
        return FOLDER / "causes" / f"{self.cause.replace('-', '_')}.py"

    @property
    def twin(self) -> Path:
        """The same script without it."""
        return write_repaired(self.script)

    @property
    def lines(self) -> tuple[int, ...]:
        """The numbers of the lines, from 1, that may be named as the place of the cause: those marked."""
        lines = self.script.read_text().splitlines()
        return tuple(number for number, line in enumerate(lines, 1) if line.endswith(MARK))


CASES = (
    Case(cause="unseeded-torch", words="torch's global generator is used and never seeded"),
    Case(cause="unseeded-numpy", words="NumPy's global generator is used and never seeded"),
    Case(cause="unseeded-random", words="the generator of `random` is used and never seeded"),
    Case(cause="seeded-from-time", words="a generator is seeded from the clock"),
    Case(
        cause="dataset-generator",
        words="the dataset holds the generator of its augmentation, and each worker gets a copy",
        mode="workers",
        values=(0, 2),
    ),
    Case(
        cause="worker-count",
        words="augmentation draws from the worker's generator, seeded by the worker's number",
        mode="workers",
        values=(0, 2),
    ),
    Case(cause="listing-order", words="files are used in the order in which the folder lists them"),
    Case(cause="set-order", words="a set of strings is iterated, and their hashes are random"),
    Case(
        cause="thread-order",
        words="a dictionary has the order in which threads filled it",
        is_racy=True,
    ),
    Case(cause="uninitialised-memory", words="`torch.empty` is read before it is written", is_racy=True),
    Case(cause="thread-race", words="threads add to one sum in the order in which they finish", is_racy=True),
    Case(
        cause="scatter-order",
        words="`index_put_(accumulate=True)` adds from several threads in any order",
        is_racy=True,
    ),
    Case(
        cause="thread-count",
        words="the number of threads is left to the environment",
        mode="threads",
        values=(1, 2),
    ),
    Case(
        cause="seeded-per-rank",
        words="dropout is seeded by the number of the process",
        mode="processes",
        values=(1, 2, 4),
    ),
    Case(
        cause="bucket-rebuild",
        words="DistributedDataParallel rebuilds its buckets after the first step, and again after a resume",
        mode="kill",
        num_processes=4,
    ),
    Case(cause="optimizer-not-saved", words="the checkpoint has no optimizer state", mode="kill"),
    Case(cause="generator-not-saved", words="the checkpoint has no generator state", mode="kill"),
    Case(cause="scheduler-not-saved", words="the checkpoint has no scheduler state", mode="kill"),
    Case(
        cause="loader-position-not-saved",
        words="a resumed epoch begins at its first batch again",
        mode="kill",
    ),
    Case(
        cause="shuffle-epoch-not-restored",
        words="after a resume the sampler counts epochs from zero again",
        mode="kill",
    ),
    Case(cause="buffers-not-saved", words="the checkpoint has parameters and no buffers", mode="kill"),
    Case(
        cause="environment-branch",
        words="an environment variable decides the batch size",
        mode="environment",
        environments=({"CI": None}, {"CI": "true"}),
    ),
    Case(cause="clock-branch", words="measured time decides the batch size", is_racy=True),
    Case(
        cause="unordered-sum",
        words="floating numbers are summed in the order of a set of objects, that of their addresses",
        is_racy=True,
    ),
    Case(
        cause="compiled-once",
        words="`torch.compile` is on in one run only",
        mode="environment",
        environments=({"COMPILE": None}, {"COMPILE": "1"}),
    ),
    Case(
        cause="custom-function",
        words="a custom autograd function's backward sums in any order",
        is_racy=True,
    ),
)
