"""Crew: the processes that share the snapshots of one run, as the checkpoint is told of them.

Owns nothing but small talk about files. Who the processes are, and their group, is the caller's matter.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from truestep.errors import DamagedSnapshot, TruestepError, UsageError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Crew:
    """Which process this is, of how many, and the group over which they talk about snapshots.

    The group must reach all processes, in order of rank, over gloo, and be used by nothing else: saves talk
    over it from a background thread. Its timeout is how long a process waits for one that does not answer,
    so it has to be longer than writing one process's part takes.

    Example: `Crew(rank=dist.get_rank(), size=4, group=dist.new_group(backend="gloo"))`
    """

    rank: int = 0
    size: int = 1
    group: "ProcessGroup | None" = None

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.size:
            raise UsageError(f"rank must be from 0 to {self.size - 1} for size={self.size}, got {self.rank}.")
        if self.size > 1 and self.group is None:
            raise UsageError(f"a crew of {self.size} processes needs a process group: pass group=.")

    @property
    def is_first(self) -> bool:
        """Whether this process owns the folder: its name, the manifest, publishing and deleting."""
        return self.rank == 0

    def gather(self, item: T) -> list[T]:
        """Return every process's item, in order of rank."""
        if self.size == 1:
            return [item]
        from torch.distributed import all_gather_object  # noqa: PLC0415  a single process needs none of it

        items: list[Any] = [None] * self.size
        all_gather_object(items, item, group=self.group)
        return items

    def agree(self, act: Callable[[], T]) -> T:
        """Act on every process; what fails on one fails on all, with the words of the first that failed.

        It is raised as DamagedSnapshot, unless it is out of memory or one of truestep's own errors.
        """
        if self.size == 1:
            return act()
        failure: Exception | None = None
        try:
            done = act()
        except Exception as error:  # noqa: BLE001 - raised again below, here and on all the others
            failure = error
        failures = [found for found in self.gather(None if failure is None else _as_pair(failure)) if found]
        if failures:
            kind, words = failures[0]
            raise kind(words)
        return done


def _as_pair(error: Exception) -> tuple[type[Exception], str]:
    """Return an error as something that can be sent: some carry what cannot be pickled."""
    if isinstance(error, MemoryError):
        return MemoryError, str(error)
    if isinstance(error, TruestepError):
        return type(error), str(error)
    return DamagedSnapshot, f"cannot be read: {type(error).__name__}: {error}"
