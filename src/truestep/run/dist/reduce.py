"""Sums of flat tensors over all lanes, across processes, in the one tree.

Owns who sends what to whom. The order of sums is `tree`'s; what is summed, and when, is the caller's.
"""

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup, Work

from truestep.errors import UsageError
from truestep.run.dist.tree import LaneSum, Node, lanes_of, maximal_subtrees

Message = tuple[int, torch.Tensor]
"""The other process's rank in the group, and what is sent to it or received from it."""


class TreeReduce:
    """Sums flat tensors over lanes in tree order across the processes of a group; every process gets the sum.

    The bits of the sum do not depend on the number of processes. Calls come from one thread at a time, and in
    the same order on all processes; where other collectives run meanwhile, give it a group of its own.

    >>> TreeReduce(rank=1, size=3, num_lanes=8).nodes
    [(2, 2), (4, 1)]
    """

    def __init__(self, *, rank: int, size: int, num_lanes: int, group: ProcessGroup | None = None) -> None:
        if not 0 <= rank < size:
            raise UsageError(f"rank must be from 0 to size - 1, got rank={rank} with size={size}.")
        if size > 1 and dist.is_initialized():
            found = dist.get_rank(group), dist.get_world_size(group)
            if found != (rank, size):
                raise UsageError(
                    f"rank and size must be those in the group, got rank={rank}, size={size} in one where "
                    f"rank={found[0]}, size={found[1]}. Pass the group that the ranks refer to."
                )
        self.rank, self.size = rank, size
        self._group = group
        self._all_nodes = _nodes_of_all(size=size, num_lanes=num_lanes)
        self._others = [(rank + step) % size for step in range(1, size)]  # not everybody to the first at once
        self._can_halve = _can_halve(self._all_nodes)
        self._scratch: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}
        self.nodes = self._all_nodes[rank]
        """This process's lanes, cut into the largest aligned subtrees: `all_reduce` takes their sums."""

    def close(self) -> None:
        """Forget the group: DDP keeps its hook, and so this object, longer than the group may last."""
        self._group = None

    def all_reduce(self, parts: list[torch.Tensor], *, into: int = 0) -> torch.Tensor:
        """Return the sum over all lanes of all processes, in `parts[into]`; the other parts are overwritten.

        `parts[i]` is the sum over the lanes of `nodes[i]`, or `neutral` where none of them has a value: flat,
        contiguous, of one dtype and, on all processes, of one length.
        """
        self._check(parts)
        if self.size == 1:
            total = LaneSum(_add_into(parts[into]))
            for (lane, num_lanes), part in zip(self.nodes, parts, strict=True):
                total.push(lane, part, num_lanes=num_lanes)
            return total.take()
        return self._halve_and_double(parts[0]) if self._can_halve else self._scatter_and_gather(parts, into)

    def _check(self, parts: list[torch.Tensor]) -> None:
        if len(parts) != len(self.nodes):
            raise UsageError(
                f"all_reduce takes one part for each of the {len(self.nodes)} subtrees of this process, "
                f"got {len(parts)}. Pass one for each of `nodes`."
            )
        first = parts[0]
        for part in parts:
            if part.dim() != 1 or not part.is_contiguous() or part.requires_grad:
                raise UsageError(
                    f"parts must be flat, contiguous and without autograd, got shape {tuple(part.shape)}, "
                    f"stride {part.stride()}, requires_grad={part.requires_grad}. Pass flat copies."
                )
            if part.shape != first.shape or part.dtype != first.dtype:
                raise UsageError(
                    f"all parts must have one length and dtype, got {len(part)} x {part.dtype} beside "
                    f"{len(first)} x {first.dtype}."
                )

    def _halve_and_double(self, vector: torch.Tensor) -> torch.Tensor:
        """Sum by recursive halving, nearest partner first, and gather by doubling, the same way back."""
        steps = _halves(self.rank, size=self.size, length=len(vector))
        inbox = self._buffer(vector, (len(vector) + 1) // 2)
        for peer, kept, given in steps:
            ours, theirs = vector[kept], inbox[: kept.stop - kept.start]
            _wait(self._post([(peer, theirs)], [(peer, vector[given])]))
            # bits: the lower rank holds the left subtree, and the left subtree is the left operand.
            left, right = (ours, theirs) if self.rank < peer else (theirs, ours)
            torch.add(left, right, out=ours)
        for peer, kept, given in reversed(steps):
            _wait(self._post([(peer, vector[given])], [(peer, vector[kept])]))
        return vector

    def _scatter_and_gather(self, parts: list[torch.Tensor], into: int) -> torch.Tensor:
        """Let each process sum one slice over all subtrees of all processes, then bring the slices together.

        All messages of a phase are under way at once. On gloo, views sent directly are twice as fast as
        `all_to_all_single` and `all_gather_single`, which want them packed and padded.
        """
        result, me = parts[into], self.rank
        slices = _slices(len(result), self.size)
        own = [part[slices[me]] for part in parts]
        home = own[into]
        terms = self._terms(own)
        works = self._post(
            [(rank, term) for rank, _, term in terms if rank != me],
            [(rank, part[slices[rank]]) for rank in self._others for part in parts],
        )
        arrivals = iter(works)
        if len(home):
            total = LaneSum(_add_into(home))
            for rank, (lane, num_lanes), term in terms:
                if rank != me:
                    next(arrivals).wait()  # later ones keep arriving while this one is added
                total.push(lane, term, num_lanes=num_lanes)
            total.take()
        _wait(arrivals)  # what was sent is received into now
        _wait(
            self._post(
                [(rank, result[slices[rank]]) for rank in self._others],
                [(rank, home) for rank in self._others],
            )
        )
        return result

    def _terms(self, own: list[torch.Tensor]) -> list[tuple[int, Node, torch.Tensor]]:
        """List rank, subtree and tensor of everything that is summed here, by rising lanes."""
        width = len(own[0])
        inbox = self._buffer(own[0], width * (sum(map(len, self._all_nodes)) - len(own)))
        places = iter(inbox.split(width) if width else ())
        return [
            (rank, node, own[index] if rank == self.rank else next(places, own[0]))
            for rank, nodes in enumerate(self._all_nodes)
            for index, node in enumerate(nodes)
        ]

    def _post(self, receives: list[Message], sends: list[Message]) -> list[Work]:
        """Start all messages at once; return what to wait for, receives first. Empty ones are not sent."""
        receives = [message for message in receives if len(message[1])]
        sends = [message for message in sends if len(message[1])]
        # Sends first: on gloo, large messages were faster like this.
        operations = [_operation(dist.isend, message, self._group) for message in sends]
        operations += [_operation(dist.irecv, message, self._group) for message in receives]
        if not operations:
            return []
        works = dist.batch_isend_irecv(operations)
        if len(works) != len(operations):  # NCCL gives one for the whole batch (untested on a GPU)
            works = works[:1] * len(operations)
        return works[len(sends) :] + works[: len(sends)]

    def _buffer(self, like: torch.Tensor, length: int) -> torch.Tensor:
        """Return memory to receive into, the same at every call: fresh pages cost more than the copy."""
        key = like.dtype, like.device
        held = self._scratch.get(key)
        if held is None or len(held) < length:
            held = self._scratch[key] = torch.empty(length, dtype=like.dtype, device=like.device)
        return held[:length]


def neutral(like: torch.Tensor) -> torch.Tensor:
    """Return what a lane without samples, or a parameter without gradient, contributes to a sum: nothing.

    >>> (neutral(torch.tensor([-0.0])) + torch.tensor([-0.0])).tolist()
    [-0.0]
    """
    # bits: x + -0.0 is x for every x; -0.0 + 0.0 would be 0.0.
    return torch.full_like(like, -0.0)


def _nodes_of_all(*, size: int, num_lanes: int) -> list[list[Node]]:
    return [maximal_subtrees(lanes_of(rank, size=size, num_lanes=num_lanes)) for rank in range(size)]


def _can_halve(all_nodes: list[list[Node]]) -> bool:
    """Whether a power of two of processes hold one subtree each, all of one size."""
    size = len(all_nodes)
    num_lanes = all_nodes[0][0][1]
    return size & (size - 1) == 0 and all(
        nodes == [(rank * num_lanes, num_lanes)] for rank, nodes in enumerate(all_nodes)
    )


def _halves(rank: int, *, size: int, length: int) -> list[tuple[int, slice, slice]]:
    """List for each step of halving: the partner, the half to go on with here, the half to give away."""
    steps = []
    low, high, distance = 0, length, 1
    while distance < size:
        middle = (low + high) // 2
        lower, upper = slice(low, middle), slice(middle, high)
        kept, given = (upper, lower) if rank & distance else (lower, upper)
        steps.append((rank ^ distance, kept, given))
        low, high, distance = kept.start, kept.stop, 2 * distance
    return steps


def _slices(length: int, size: int) -> list[slice]:
    """Cut a vector into one slice per process; some are empty if it is short."""
    return [slice(length * rank // size, length * (rank + 1) // size) for rank in range(size)]


def _add_into(home: torch.Tensor) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Make an addition for `LaneSum` in place, such that the whole sum ends in `home`, one of its terms."""

    def add(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        # bits: only where the sum is written depends on `home`; left stays the left operand.
        return torch.add(left, right, out=right if right is home else left)

    return add


def _operation(call: Callable[..., Work | None], message: Message, group: ProcessGroup | None) -> dist.P2POp:
    rank, tensor = message
    return dist.P2POp(call, tensor, group=group, group_peer=rank)


def _wait(works: Iterable[Work]) -> None:
    for work in works:
        work.wait()
