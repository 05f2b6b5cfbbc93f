"""Saving together: every process writes its parts, through torch's distributed checkpoint (DCP).

DCP plans who writes what, checks that the parts make up the whole tensors, and carries a failure on one
process to all. Owns what DCP is given to write with. Leaves the folder's name and publishing to `store`.
"""

# Why not DCP's own safetensors writer (HuggingFaceStorageWriter): it puts a process's whole file together in
# memory before writing it (a second copy of the state), hashes nothing, does not flush the folder, and what
# it writes is found again by opening every file there is. Why not its default writer: that one pickles.

import dataclasses
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from truestep.base.runfiles import sync_folder
from truestep.errors import SaveFailed, TruestepError
from truestep.run.checkpoint import tensorfile
from truestep.run.checkpoint.chunks import Chunk
from truestep.run.checkpoint.durable import Written
from truestep.run.checkpoint.parts import Box
from truestep.run.checkpoint.saving_group import Crew
from truestep.run.checkpoint.snapshot import whole_shape
from truestep.run.checkpoint.state import Packed

Begin: TypeAlias = Callable[[], str | None]
Finish: TypeAlias = Callable[[dict[str, Written], list[Chunk]], None]


class _Order(NamedTuple):
    """What the first process tells another to write to."""

    folder: str
    file: str


class _Report(NamedTuple):
    """What a process tells the first one of a chunk that it wrote; the file's hash comes with each."""

    chunk: Chunk
    written: Written


def save_parts(packed: Packed, parent: Path, *, crew: Crew, begin: Begin, finish: Finish) -> None:
    """Write the parts of all processes into one folder under `parent`; every process calls this.

    The first process calls `begin` for the folder's name before anything is written (None: nothing is to be
    written), and `finish` with what was written after all have flushed their files.
    Raises on all processes what went wrong on one: an OSError with the words of the process that met it,
    truestep's own errors as they are, SaveFailed for everything else.
    """
    try:
        save(
            dict(packed.tensors),
            storage_writer=_PartWriter(parent, begin, finish),
            planner=_PartPlanner(packed, crew),
            process_group=crew.group,
        )
    except CheckpointException as error:
        raise _first_cause(error) from error
    except RuntimeError as error:  # of the group itself: failures of our own work come as the above
        reason = " ".join(str(error).split())
        raise SaveFailed(
            f"process {crew.rank} of {crew.size} lost the others while they saved ({reason}). Earlier "
            f"snapshots are intact: start the run again."
        ) from error


def _first_cause(error: CheckpointException) -> Exception:
    rank, (cause, _) = min(error.failures.items())
    if isinstance(cause, TruestepError):
        return cause
    if isinstance(cause, OSError):
        return OSError(cause.errno, f"{cause.strerror or cause} on process {rank}")
    reason = " ".join(f"{type(cause).__name__}: {cause}".split())
    return SaveFailed(f"process {rank} could not save its part: {reason}. Earlier snapshots are intact.")


class _PartPlanner(DefaultSavePlanner):
    """DCP's planner for parts that are in plain CPU memory already, whatever device they came from."""

    def __init__(self, packed: Packed, crew: Crew) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self._packed = packed
        self._crew = crew

    def create_local_plan(self) -> SavePlan:
        """Plan to write each part that is not empty, and on the first process all that is not spread."""
        items = [self._item(name) for name in self._packed.tensors if self._is_ours(name)]
        self.plan = SavePlan(items)
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        return self._packed.tensors[index.fqn]

    def _is_ours(self, name: str) -> bool:
        part = self._packed.parts.get(name)
        if part is None or math.prod(part.shape) == 0:
            return self._crew.is_first
        # An empty part adds nothing, and two processes can have one at the same place. The first process, by
        # whose state names are given, never has one unless all are empty.
        return part.local.numel() > 0

    def _item(self, name: str) -> WriteItem:
        stored, part = self._packed.tensors[name], self._packed.parts.get(name)
        shape = whole_shape(stored, part.shape) if part else tuple(stored.shape)
        offsets = part.offsets if part else ()
        place = torch.Size(offsets + (0,) * (stored.dim() - len(offsets)))
        data = TensorWriteData(
            chunk=ChunkStorageMetadata(offsets=place, sizes=stored.shape),
            properties=TensorProperties.create_from_tensor(stored),
            size=torch.Size(shape),
        )
        kind = WriteItemType.SHARD if part else WriteItemType.TENSOR
        return WriteItem(index=MetadataIndex(name, place), type=kind, tensor_data=data)


class _PartWriter(StorageWriter):
    """Writes a process's share of the plan as one safetensors file; the first process owns the folder."""

    def __init__(self, parent: Path, begin: Begin, finish: Finish) -> None:
        self._parent = parent
        self._begin = begin
        self._finish = finish
        self._is_begun = False

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None: ...

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None: ...

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Make the folder, and tell every process its name with the process's own file."""
        folder = self._begin()
        self._is_begun = folder is not None
        files = [f"part-{rank:05d}-of-{len(plans):05d}.safetensors" for rank in range(len(plans))]
        orders = [_Order(folder, file) if folder is not None else None for file in files]
        return [
            dataclasses.replace(plan, storage_data=order) for plan, order in zip(plans, orders, strict=True)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write the file and flush it, with the folder: on a shared disk each process flushes its own."""
        done: Future[list[WriteResult]] = Future()
        order = plan.storage_data
        if order is None or not plan.items:
            done.set_result([])
            return done
        tensors = {item.index.fqn: cast(torch.Tensor, planner.resolve_data(item)) for item in plan.items}
        folder = self._parent / order.folder
        written = tensorfile.write(folder / order.file, tensors)
        sync_folder(folder)
        done.set_result([_result(item, order.file, written) for item in plan.items])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:  # noqa: ARG002 - DCP's
        """Hand over what all processes wrote."""
        if not self._is_begun:
            return
        reports: list[_Report] = [result.storage_data for share in results for result in share]
        files = {report.chunk.file: report.written for report in reports}
        self._finish(files, [report.chunk for report in reports])

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003 - DCP's
        """Never choose this writer by the name of a folder."""
        return False


def _result(item: WriteItem, file: str, written: Written) -> WriteResult:
    assert item.tensor_data is not None
    chunk = item.tensor_data.chunk
    box = Box(tuple(chunk.offsets), tuple(chunk.sizes))
    report = _Report(Chunk(file, item.index.fqn, box), written)
    return WriteResult(index=item.index, size_in_bytes=math.prod(chunk.sizes), storage_data=report)
