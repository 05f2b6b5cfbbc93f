"""The cost model of scale_model.py: a few terms, and the formulas that they are put into.

Owns what is predicted from what. Pure arithmetic: measuring and printing are done elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from truestep.data.permutation import _MIN_BITS, Permutation
from truestep.dist.reduce import _can_halve, _nodes_of_all, cost
from truestep.dist.tree import lanes_of

ITEM = 4
"""Bytes of a float32."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What crossing processes costs on a machine, in seconds of one core."""

    cores: int
    message_s: float
    """For each message of the tree, at both of its ends."""
    ring_s: float
    """For each message of the backend's own all-reduce, which has no Python in it."""
    byte_s: float
    """For each byte sent, at both of its ends."""
    add_s: float
    """For each byte of a sum."""
    pack_s: float
    """For each byte of gradients copied into one flat tensor."""
    wait_s: float
    """For each round of messages: until the other end has woken up. No core works meanwhile."""
    message_switch: float
    """How much more a message costs for each further process that shares a core."""
    ring_power: float
    """One of the backend's own costs less on more processes, by a power of their number: its threads find
    more to do whenever they wake up."""
    byte_switch: float
    """How much more a byte costs then: it is no longer in the caches."""

    def crowd(self, size: int) -> float:
        """How many further processes share a core, on average."""
        return max(0.0, size / self.cores - 1.0)

    def message(self, size: int) -> float:
        """Seconds for each message of the tree between so many processes."""
        return self.message_s * (1.0 + self.message_switch * self.crowd(size))

    def ring(self, size: int) -> float:
        """Seconds for each message of the backend's own."""
        return self.ring_s * (size / 2) ** self.ring_power

    def byte(self, size: int) -> float:
        """Seconds for each byte sent."""
        return self.byte_s * (1.0 + self.byte_switch * self.crowd(size))


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds by the clock, and of processor time of all processes."""

    clock_s: float
    processor_s: float


@dataclass(frozen=True, kw_only=True)
class Task:
    """What a step of one model costs on one core, in seconds."""

    num_bytes: int
    """Of its gradients."""
    step_s: float
    """Once per step and process: clipping, the optimizer, the loop."""
    lane_s: float
    """For each lane."""
    sample_s: float
    """For each sample."""
    beside: float = 1.0
    """How many times as much all of it costs while other cores work too: they share caches and memory."""


def in_step(per_process: list[float], machine: Machine, *, num_rounds: float = 0.0) -> Cost:
    """Return how long processes take that have so much to do and wait for each other in each step.

    More of them than cores are done no sooner than when all cores have worked all the time, and no later than
    when the one that has most to do begins last: half way between the two.
    """
    processor_s, most_s = sum(per_process), max(per_process)
    idle = (1.0 - 1.0 / machine.cores) / 2 if len(per_process) > machine.cores else 0.0
    shared_s = processor_s / machine.cores + idle * most_s
    clock_s = max(most_s, shared_s) + num_rounds * machine.wait_s
    return Cost(clock_s=clock_s, processor_s=processor_s)


def side_by_side(work_s: float, size: int, machine: Machine) -> float:
    """Return how long so many processes take that have the same to do, so long that they share evenly."""
    return work_s * max(1.0, size / machine.cores)


def tree_sum(size: int, machine: Machine, *, num_lanes: int, num_bytes: int) -> Cost:
    """Predict the sum of a vector over processes in the tree."""
    works = _sum_work(size, machine, num_lanes=num_lanes, num_bytes=num_bytes)
    return in_step(works, machine, num_rounds=_sum_rounds(size, num_lanes))


def _sum_rounds(size: int, num_lanes: int) -> float:
    """How often a process has to wait for another one's message before it can go on."""
    if size == 1:
        return 0.0
    return 2 * math.log2(size) if _can_halve(_nodes_of_all(size=size, num_lanes=num_lanes)) else 2.0


def _sum_work(size: int, machine: Machine, *, num_lanes: int, num_bytes: int) -> list[float]:
    """What each process has to do for a sum: messages, bytes sent, bytes added."""
    if size == 1:
        return [0.0]
    all_nodes = _nodes_of_all(size=size, num_lanes=num_lanes)
    if _can_halve(all_nodes):
        sent, messages = cost(size=size, num_lanes=num_lanes, num_bytes=num_bytes)
        traffic: list[tuple[float, float]] = [(messages, sent)] * size
        added = num_bytes * (size - 1) / size
    else:
        # Its slice of each subtree goes to each other process, and its slice of the sum comes back.
        others = num_bytes * (size - 1) / size
        traffic = [((len(nodes) + 1) * (size - 1), (len(nodes) + 1) * others) for nodes in all_nodes]
        added = num_bytes / size * (sum(map(len, all_nodes)) - 1)
    return [
        messages * machine.message(size) + sent * machine.byte(size) + added * machine.add_s
        for messages, sent in traffic
    ]


def ring(size: int, machine: Machine) -> Cost:
    """Predict the small vector that all processes add up once per step, by the backend's own ring."""
    num_messages = 2 * (size - 1)
    return in_step([num_messages * machine.ring(size)] * size, machine, num_rounds=num_messages)


def step(size: int, machine: Machine, task: Task, *, num_lanes: int, num_samples: int) -> Cost:
    """Predict a step of `parallel="flat"` with so many samples in each lane."""
    sums = _sum_work(size, machine, num_lanes=num_lanes, num_bytes=task.num_bytes)
    per_process = []
    for rank, nodes in enumerate(_nodes_of_all(size=size, num_lanes=num_lanes)):
        num_own = len(lanes_of(rank, size=size, num_lanes=num_lanes))
        work = task.step_s + num_own * (task.lane_s + num_samples * task.sample_s)
        work += (num_own - len(nodes)) * task.num_bytes * machine.add_s
        if size > 1:
            work = (
                work * task.beside
                + len(nodes) * task.num_bytes * machine.pack_s
                + 2 * (size - 1) * machine.ring(size)
            )
        per_process.append(work + sums[rank])
    num_rounds = _sum_rounds(size, num_lanes) + 2 * (size - 1)
    return in_step(per_process, machine, num_rounds=num_rounds)


def fit_task(found: dict[tuple[int, int], float], *, num_bytes: int, add_s: float) -> Task:
    """Solve for a task's terms from steps on one process, by lanes and samples in each lane.

    Two numbers of lanes of one size give what a lane costs, two sizes what a sample costs; with one size what
    samples cost is part of the lane.
    """
    few, many = sorted({lanes for lanes, _ in found})
    small, *larger = sorted({samples for lanes, samples in found if lanes == many})
    sample_s = sum((found[many, large] - found[many, small]) / (many * (large - small)) for large in larger)
    lane_s = (found[many, small] - found[few, small]) / (many - few) - num_bytes * add_s - small * sample_s
    step = found[few, small] - few * (lane_s + small * sample_s) - (few - 1) * num_bytes * add_s
    return Task(num_bytes=num_bytes, step_s=step, lane_s=lane_s, sample_s=sample_s)


def fit_beside(task: Task, machine: Machine, found_s: float, *, num_lanes: int, num_samples: int) -> Task:
    """Solve for what the work of two processes costs beside each other, from their processor time."""
    shape = {"num_lanes": num_lanes, "num_samples": num_samples}
    once, twice = (step(2, machine, replace(task, beside=factor), **shape).processor_s for factor in (1, 2))
    return replace(task, beside=max(1.0, 1.0 + (found_s - once) / (twice - once)))


@dataclass(frozen=True, kw_only=True)
class Line:
    """A fixed cost and one for each unit."""

    fixed: float
    each: float

    def at(self, amount: float) -> float:
        return self.fixed + amount * self.each


def fit_line(low: tuple[float, float], high: tuple[float, float]) -> Line:
    """Put a line through two points; it does not begin below zero."""
    each = (high[1] - low[1]) / (high[0] - low[0])
    fixed = low[1] - each * low[0]
    return Line(fixed=fixed, each=each) if fixed >= 0 else Line(fixed=0.0, each=high[1] / high[0])


@dataclass(frozen=True, kw_only=True)
class Restart:
    """From the kill of a process to the end of the first step after it, in seconds."""

    peers_s: float
    """Until the peers of the lost process have ended, if it had any."""
    launch_s: float
    """The launcher's own part: noticing, a new agent, a new store."""
    start_s: float
    """Of one core for each process: Python, imports, joining."""
    byte_s: float
    """Of one core for each process and byte of the model: building, reading, the first step."""

    def at(self, size: int, machine: Machine, *, num_bytes: float) -> float:
        peers_s = self.peers_s if size > 1 else 0.0
        work_s = self.start_s + num_bytes * self.byte_s
        return peers_s + self.launch_s + side_by_side(work_s, size, machine)


def fit_restart(found: dict[tuple[int, int], float], machine: Machine) -> Restart:
    """Solve for the parts from restarts by processes and bytes.

    Of a small model on one process, on two, on more than there are cores, and of a large model on one.
    """
    (one, small), (_, large), (two, _), (several, _) = sorted(found)
    share = {size: side_by_side(1.0, size, machine) for size, _ in found}
    byte_s = (found[one, large] - found[one, small]) / (share[one] * (large - small))
    work_s = (found[several, small] - found[two, small]) / (share[several] - share[two])
    launch_s = found[one, small] - share[one] * work_s
    return Restart(
        peers_s=found[two, small] - launch_s - share[two] * work_s,
        launch_s=launch_s,
        start_s=work_s - small * byte_s,
        byte_s=byte_s,
    )


def walk_factor(num_samples: int) -> float:
    """How often the order walks for an index: its network is a power of two wide, not `num_samples`."""
    return max(1 << _MIN_BITS, 1 << (num_samples - 1).bit_length()) / num_samples


@dataclass(frozen=True, kw_only=True)
class Order:
    """What the order of samples costs: seconds by how often it walks again, and memory at any length."""

    narrow: Line
    """In words of 32 bits."""
    wide: Line
    num_bytes: float

    def index_s(self, num_samples: int) -> float:
        line = self.wide if is_wide(num_samples) else self.narrow
        return line.at(walk_factor(num_samples) - 1)


def is_wide(num_samples: int) -> bool:
    """Whether the order is computed in words of 64 bits."""
    return bool(Permutation(num_samples, seed=0, epoch=0)._dtype().itemsize > ITEM)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Figures of a cluster as large users have them: inputs, stated, not measured by us."""

    link_bytes_s: float = 50e9
    """Each rank's own link: 400 Gb/s."""
    message_s: float = 5e-6
    """For each message, one after the other."""
    talk_s: float = 20e-6
    """For each message of the small talk between hosts, over TCP."""
    memory_bytes_s: float = 1e12
    """At which gradients are added."""
    flops: float = 400e12
    """That a rank really reaches."""
    ranks_per_node: int = 8
    node_write_bytes_s: float = 2e9
    copy_bytes_s: float = 20e9
    """From the accelerator's memory to the host's."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What is trained: a language model with one lane on each rank."""

    num_params: float = 7e9
    num_blocks: int = 32
    """That a sharded model is gathered and summed in."""
    tokens_per_rank: float = 16_384.0
    gradient_bytes: int = 2
    state_bytes: int = 14
    """For each parameter: bf16 weights, float32 weights and two moments."""


def cluster_step(size: int, cluster: Cluster, job: Job) -> dict[str, float]:
    """Compute a step on a cluster: seconds of each part, without overlap, and what crosses the network."""
    num_bytes = int(job.num_params * job.gradient_bytes)
    sent, messages = cost(size=size, num_lanes=size, num_bytes=num_bytes, itemsize=job.gradient_bytes)
    added = num_bytes * (size - 1) / size
    return {
        "compute_s": 6 * job.num_params * job.tokens_per_rank / cluster.flops,
        "bytes_s": sent / cluster.link_bytes_s + 3 * added / cluster.memory_bytes_s,
        "messages_s": messages * cluster.message_s,
        "shard_messages_s": job.num_blocks * (size - 1) * cluster.message_s,
        "ring_s": 2 * (size - 1) * cluster.talk_s,
        "sent": sent,
        "messages": messages,
    }


def cluster_snapshot(size: int, cluster: Cluster, job: Job) -> dict[str, float]:
    """Compute a sharded snapshot: each rank writes its part, those of a node share the way to the disk."""
    total = job.num_params * job.state_bytes
    of_rank = total / size
    num_nodes = -(-size // cluster.ranks_per_node)
    return {
        "total_bytes": total,
        "rank_bytes": of_rank,
        "held_s": of_rank / cluster.copy_bytes_s,
        "write_s": total / (num_nodes * cluster.node_write_bytes_s),
    }
