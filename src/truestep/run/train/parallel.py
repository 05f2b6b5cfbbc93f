"""How the processes of a run share its models: what sums which gradients, and whether all started alike."""

import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from truestep.base.bits import witness
from truestep.errors import TruestepError, UsageError, shared
from truestep.run.dist import World
from truestep.run.dist.overlap import OverlapSum, ReduceThread, wrap
from truestep.run.dist.reduce import TreeReduce
from truestep.run.train.place import Parallel, Precision

T = TypeVar("T")


class Team:
    """The models of a run and the processes that train them together. On one process it does nothing."""

    def __init__(self, world: World, *, num_lanes: int, is_tied: bool) -> None:
        self._world = world
        self.is_tied = is_tied
        self.is_sharded = False
        # Sums use a separate group: their thread runs beside the main thread's small messages.
        self._group = dist.new_group() if world.size > 1 else None  # of the backend that the tensors need
        self.tree = TreeReduce(rank=world.rank, size=world.size, num_lanes=num_lanes, group=self._group)
        self._models: list[tuple[nn.Module, Parallel]] = []
        self._reduce_thread: ReduceThread | None = None
        self._sums: list[Any] | None = None
        if world.size > 1 and not world.is_first:
            _keep_shared_errors_quiet()

    @property
    def note(self) -> str | None:
        """What the record notes about lanes, in words."""
        if not self.is_tied:
            return None
        return (
            f"lanes were left out: the result is tied to {self._world.size} processes. "
            f"Pass lanes= to Run for one that is the same on any number of them."
        )

    def first(self, function: Callable[[], T]) -> T:
        """Return what a function returns on the first process, to all; if it fails there, all fail."""
        outcome: tuple[T | None, TruestepError | None] = (None, None)
        if self._world.is_first:
            try:
                outcome = function(), None
            except TruestepError as error:
                outcome = None, error
        result, failure = self._world.share(outcome)
        if failure is not None:
            raise shared(failure)
        return result  # type: ignore[no-any-return]

    def add(
        self,
        model: nn.Module,
        *,
        parallel: Parallel,
        precision: Precision,
        compiled: bool,
        device: torch.device,
    ) -> None:
        """Add a placed model. A sharded one is split over the processes now."""
        if parallel not in ("ddp", "flat", "fsdp"):
            raise UsageError(f"parallel must be 'ddp', 'flat' or 'fsdp', got {parallel!r}.")
        if parallel == "fsdp":
            if compiled or precision == "fp16":
                raise UsageError(
                    "a sharded model cannot be compiled or run in fp16 yet: that it has the same bits on any "
                    "number of processes is not proven. Use parallel='ddp', or 'bf16' without compile."
                )
            if self.is_tied:
                raise UsageError(
                    "parallel='fsdp' needs lanes=: pass lanes= to Run, the number of processes or more."
                )
            if self._world.size > 1:
                from truestep.run.dist.shard import shard  # noqa: PLC0415  it imports all of FSDP

                self._check_alike({"model": model})
                shard(model, device=device)
                self.is_sharded = True
        self._models.append((model, parallel))

    def require_same(self, facts: Mapping[str, Any]) -> None:
        """Refuse to go on where processes differ in what the bits depend on."""
        if self._world.size == 1:
            return
        first, *others = self._world.gather(dict(facts))
        for rank, other in enumerate(others, start=1):
            if first != other:
                field = next(key for key in sorted({*first, *other}) if first.get(key) != other.get(key))
                raise shared(
                    UsageError(
                        f"{field} is {other.get(field)} on process {rank} and {first.get(field)} on process "
                        f"0: a lane would give other bits on one than on the other. Make them the same."
                    )
                )

    def check(self, tracked: Mapping[str, Any]) -> None:
        """Refuse what cannot give the same bits: models that differ, or optimizers that mix."""
        if self._world.size == 1:
            return
        self._check_alike({name: item for name, item in tracked.items() if isinstance(item, nn.Module)})
        known = {
            id(parameter)
            for item in tracked.values()
            if isinstance(item, nn.Module)
            for parameter in item.parameters()
        }
        for name, item in tracked.items():
            if isinstance(item, Optimizer) and self.is_sharded:
                _check_optimizer(name, item, known)

    def _check_alike(self, modules: Mapping[str, nn.Module]) -> None:
        own = {
            f"{name}.{path}": witness([tensor])
            for name, module in modules.items()
            for path, tensor in module.state_dict().items()
            if hasattr(tensor, "numel") and not hasattr(tensor, "_local_tensor")
        }
        first, *others = self._world.gather(own)
        for rank, other in enumerate(others, start=1):
            differing = sorted(key for key in {*first, *other} if first.get(key) != other.get(key))
            if differing:
                raise shared(
                    UsageError(
                        f"{differing[0]} has other values on process {rank} than on process 0 before the "
                        f"first step. Build the model the same way on every process, after Run(...), which "
                        f"seeds them alike."
                    )
                )

    def is_dealt(self, tracked: Mapping[str, Any]) -> bool:
        """Whether lanes are dealt out in turn: where all gradients are sharded, few sums are open then."""
        optimizers = [item for item in tracked.values() if isinstance(item, Optimizer)]
        return self.is_sharded and all(
            hasattr(parameter, "_local_tensor")
            for optimizer in optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        )

    def sums(self, tracked: Mapping[str, Any]) -> list[Any]:
        """Return what sums the gradients of the placed models; the rest is summed after backward."""
        if self._world.size == 1:
            return []
        if self._sums is None:
            trained = {
                id(parameter)
                for item in tracked.values()
                if isinstance(item, Optimizer)
                for group in item.param_groups
                for parameter in group["params"]
            }
            self._sums = [*self._overlapping(trained), *self._sharded()]
        return self._sums

    def _overlapping(self, trained: set[int]) -> list[OverlapSum]:
        if self.is_sharded:
            return []  # processes must not wait for a bucket in one round and for a shard in another
        sums: list[OverlapSum] = []
        taken: set[int] = set()
        for model, parallel in self._models:
            parameters = {id(item) for item in model.parameters() if item.requires_grad}
            # Each parameter is summed once; one that two models share is left to be summed after backward.
            if parallel != "ddp" or not parameters & trained or parameters & taken:
                continue
            taken |= parameters
            if not self.is_tied and self._reduce_thread is None:
                self._reduce_thread = ReduceThread(self.tree)
            sums.append(OverlapSum(wrap(model), self.tree, reduce_thread=self._reduce_thread))
        return sums

    def _sharded(self) -> list[Any]:
        if not self.is_sharded:
            return []
        from truestep.run.dist.shard import ShardSum  # noqa: PLC0415  as above

        models = [model for model, parallel in self._models if parallel == "fsdp"]
        return [ShardSum(models, rank=self._world.rank)]

    def close(self) -> None:
        """Restore the models' own forward, and end the thread and the group that sum gradients."""
        for item in self._sums or ():
            if isinstance(item, OverlapSum):
                item.close()
        if self._reduce_thread is not None:
            self._reduce_thread.close()
            self._reduce_thread = None
        self.tree.close()
        group, self._group = self._group, None
        self._world.end_group(group)


def _check_optimizer(name: str, optimizer: Optimizer, known: set[int]) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in known:
                raise UsageError(
                    f"{name} holds a parameter that no tracked model has. Sharding a model gives it new "
                    f"parameters: make the optimizer after run.place(model, parallel='fsdp')."
                )
            if group.get("fused") and hasattr(parameter, "_local_tensor"):
                raise UsageError(
                    f"{name} has fused=True, whose kernel gives other bits for other shards of a parameter. "
                    f"Pass foreach=True instead."
                )


def _keep_shared_errors_quiet() -> None:
    """On all other processes, do not print errors that the first one prints."""
    former = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: Any) -> None:
        if not getattr(error, "is_shared", False):
            former(kind, error, trace)

    sys.excepthook = hook
