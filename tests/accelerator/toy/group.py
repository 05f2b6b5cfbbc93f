"""Processes that train on the test accelerator: collectives copy to the host and use gloo.

Every copy from the device makes the host wait, and is counted like any other: a real backend would not wait.
"""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future
from torch.futures import Future


class HostGroup(dist.ProcessGroup):
    """A group of processes whose tensors are on the device or on the host."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._gloo = dist.ProcessGroupGloo(store, rank, size, timeout)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "host"

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_name(self) -> str:
        """The name under which torch knows the group."""
        return self._name

    def _through(
        self, act: Callable[..., Any], written: Sequence[torch.Tensor], read: Sequence[torch.Tensor] = ()
    ) -> Any:
        """Call gloo with what is on the host, and bring what it has written back to the device."""
        ins = [tensor.cpu() for tensor in read]
        outs = [tensor.detach().cpu() for tensor in written]
        act(outs, ins).wait()
        with torch.no_grad():
            for tensor, out in zip(written, outs, strict=True):
                tensor.copy_(out)
        done: Future[Any] = Future()
        done.set_result(list(written))
        return _create_work_from_future(done)

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or dist.AllreduceOptions()
        return self._through(lambda outs, _: self._gloo.allreduce(outs, opts), tensors)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        works = [self.allreduce([tensor], opts) for tensor in tensors]
        return works[-1]

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        return self._through(lambda outs, _: self._gloo.broadcast(outs, opts), tensors)

    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        return self._through(lambda outs, _: self._gloo.reduce(outs, opts), tensors)

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        (parts,) = outputs
        return self._through(lambda outs, ins: self._gloo.allgather([outs], ins), parts, inputs)

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Any = None) -> Any:
        return self.allgather([list(output.chunk(self.size()))], [given])

    _allgather_base = all_gather_single

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        if opts.rootRank != self.rank():
            return self._through(lambda _, ins: self._gloo.gather([], ins, opts), [], inputs)
        return self._through(lambda outs, ins: self._gloo.gather([outs], ins, opts), outputs[0], inputs)

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        if opts.rootRank != self.rank():
            return self._through(lambda outs, _: self._gloo.scatter(outs, [], opts), outputs)
        return self._through(lambda outs, ins: self._gloo.scatter(outs, [ins], opts), outputs, inputs[0])

    def send(self, tensors: Any, rank: int, tag: int = 0) -> Any:
        return self._gloo.send([tensor.cpu() for tensor in tensors], rank, tag)

    def recv(self, tensors: Any, rank: int, tag: int = 0) -> Any:
        return self._through(lambda outs, _: self._gloo.recv(outs, rank, tag), tensors)

    def barrier(self, opts: Any = None) -> Any:
        return self._gloo.barrier()


def register(device: str) -> None:
    """Let torch use it for tensors on the device."""
    dist.Backend.register_backend("host", HostGroup, devices=[device])
