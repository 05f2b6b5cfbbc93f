"""Sums over all lanes across processes: the bits of one process, at any number of processes."""

import itertools
import threading
from collections.abc import Collection, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.processes import run_processes
from truestep.base.bits import digest
from truestep.errors import UsageError
from truestep.run.dist.reduce import TreeReduce, neutral
from truestep.run.dist.tree import LaneSum, lanes_of

NUM_LANES = (1, 2, 3, 4, 5, 6, 8, 12, 16)
LENGTHS = (1, 2, 5, 64, 1001)
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
Case = tuple[int, int, torch.dtype]


def cases(size: int, *, is_short: bool = False) -> Iterator[Case]:
    for num_lanes, length, dtype in itertools.product(NUM_LANES, LENGTHS, DTYPES):
        if num_lanes >= size and not (is_short and (length in (2, 5) or dtype in DTYPES[1:3])):
            yield num_lanes, length, dtype


def values_of(lane: int, length: int, dtype: torch.dtype) -> torch.Tensor:
    """Values of very different magnitude, so that another order of sums gives other bits."""
    generator = torch.Generator().manual_seed(1000 * lane + length)
    exponents = torch.randint(-9, 10, (length,), generator=generator)
    return torch.randn(length, generator=generator, dtype=torch.float64).ldexp(exponents).to(dtype)


def absent_lanes(num_lanes: int) -> set[int]:
    return {lane for lane in range(num_lanes) if lane % 4 in (1, 2)}


def by_definition(case: Case, absent: Collection[int] = ()) -> torch.Tensor:
    """The tree of one process, written as its recursive definition."""
    num_lanes, length, dtype = case

    def total(start: int, size: int) -> torch.Tensor | None:
        if start >= num_lanes or (size == 1 and start in absent):
            return None
        if size == 1:
            return values_of(start, length, dtype)
        left, right = total(start, size // 2), total(start + size // 2, size // 2)
        return left if right is None else right if left is None else left + right

    result = total(0, 16)
    assert result is not None
    return result


def bits(tensor: torch.Tensor) -> str:
    return digest([("sum", tensor)])


def parts_of(tree: TreeReduce, case: Case, *, rank: int, absent: Collection[int] = ()) -> list[torch.Tensor]:
    """What a rank brings: its lanes' values, summed as far as one process can."""
    num_lanes, length, dtype = case
    lanes = LaneSum[torch.Tensor](torch.Tensor.add_)
    for lane in lanes_of(rank, size=tree.size, num_lanes=num_lanes):
        if lane not in absent:
            lanes.push(lane, values_of(lane, length, dtype))
    empty = neutral(torch.empty(length, dtype=dtype))
    return [empty.clone() if part is None else part for part in lanes.take_nodes(tree.nodes)]


def tree_here(num_lanes: int) -> TreeReduce:
    return TreeReduce(rank=dist.get_rank(), size=dist.get_world_size(), num_lanes=num_lanes)


def sum_all(is_short: bool) -> list[tuple[Case, str, str]]:
    sums = []
    trees = {num_lanes: tree_here(num_lanes) for num_lanes in NUM_LANES if num_lanes >= dist.get_world_size()}
    for case in cases(dist.get_world_size(), is_short=is_short):
        tree = trees[case[0]]
        absent = absent_lanes(case[0])
        parts = parts_of(tree, case, rank=tree.rank)
        last = len(parts) - 1
        full = tree.all_reduce(parts, into=last)
        assert full is parts[last]
        sparse = tree.all_reduce(parts_of(tree, case, rank=tree.rank, absent=absent))
        sums.append((case, bits(full), bits(sparse)))
    return sums


def check_sums(sums: list[tuple[Case, str, str]]) -> None:
    for case, full, sparse in sums:
        assert full == bits(by_definition(case)), case
        assert sparse == bits(by_definition(case, absent_lanes(case[0]))), case


def check_processes(size: int, *, is_short: bool) -> None:
    everywhere = run_processes(sum_all, is_short, size=size)
    assert [case for case, *_ in everywhere[0]] == list(cases(size, is_short=is_short))
    check_sums(everywhere[0])
    assert all(sums == everywhere[0] for sums in everywhere)


@pytest.mark.parametrize("size", [3, 4])
def test_processes_give_the_bits_of_one(size: int) -> None:
    check_processes(size, is_short=True)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7, 8])
def test_any_number_of_processes_gives_the_bits_of_one(size: int) -> None:
    check_processes(size, is_short=False)


def test_alone_the_same_tree_is_summed() -> None:
    for case in cases(1):
        tree = TreeReduce(rank=0, size=1, num_lanes=case[0])
        absent = absent_lanes(case[0])
        full = tree.all_reduce(parts_of(tree, case, rank=0))
        sparse = tree.all_reduce(parts_of(tree, case, rank=0, absent=absent))
        check_sums([(case, bits(full), bits(sparse))])


def sum_wrongly() -> dict[str, str]:
    """What must not give the bits of the tree: a ring, and a tree with two subtrees in each other's place."""
    rank, size = dist.get_rank(), dist.get_world_size()
    case = (size, 1001, torch.float32)
    ring = values_of(rank, 1001, torch.float32)
    dist.all_reduce(ring)
    swapped = {0: size - 1, size - 1: 0}.get(rank, rank)
    tree = tree_here(size)
    return {
        "ring": bits(ring),
        "swapped": bits(tree.all_reduce([values_of(swapped, 1001, torch.float32)])),
        "tree": bits(tree.all_reduce(parts_of(tree, case, rank=rank))),
    }


@pytest.mark.parametrize("size", [3, 4, 5])
def test_a_ring_or_swapped_subtrees_give_other_bits(size: int) -> None:
    right = bits(by_definition((size, 1001, torch.float32)))
    for sums in run_processes(sum_wrongly, size=size):
        assert sums["tree"] == right
        assert sums["ring"] != right
        assert sums["swapped"] != right


class Counting(TreeReduce):
    """Counts what it sends."""

    def _post(self, receives: list[Any], sends: list[Any]) -> list[Any]:
        self.sent += [tensor.nbytes for _, tensor in sends if len(tensor)]
        return super()._post(receives, sends)


def count() -> list[tuple[int, int]]:
    counted = []
    for num_lanes in (4, 8, 5):
        tree = Counting(rank=dist.get_rank(), size=dist.get_world_size(), num_lanes=num_lanes)
        tree.sent = []
        tree.all_reduce([torch.ones(1200) for _ in tree.nodes])
        counted.append((sum(tree.sent), len(tree.sent)))
    return counted


def test_halving_moves_the_bytes_of_a_ring_in_few_messages() -> None:
    for counted in run_processes(count, size=4):
        assert counted[:2] == [(2 * 4800 * 3 // 4, 4)] * 2
        # Where halving does not fit, slices go to their owners and back: one message more for each subtree.
        assert counted[2] in [(2 * 4800 * 3 // 4, 6), (3 * 4800 * 3 // 4, 9)]


def sum_in_a_part_of_the_world() -> str | None:
    group = dist.new_group([1, 2, 3])
    if dist.get_rank() == 0:
        return None
    rank = dist.get_rank(group)
    tree = TreeReduce(rank=rank, size=3, num_lanes=8, group=group)
    return bits(tree.all_reduce(parts_of(tree, (8, 64, torch.float32), rank=rank)))


def test_ranks_are_those_in_the_group() -> None:
    right = bits(by_definition((8, 64, torch.float32)))
    assert run_processes(sum_in_a_part_of_the_world, size=4) == [None, right, right, right]


def sum_in_a_thread() -> list[tuple[str, int]]:
    tree = tree_here(8)
    sums: list[tuple[str, int]] = []

    def work() -> None:
        for length in (1001, 64, 1001, 1001):
            total = tree.all_reduce(parts_of(tree, (8, length, torch.float32), rank=tree.rank))
            (buffer,) = tree._scratch.values()
            sums.append((bits(total), buffer.data_ptr()))

    thread = threading.Thread(target=work)
    thread.start()
    matrix = torch.ones(64, 64)
    while thread.is_alive():
        torch.mm(matrix, matrix)
    thread.join()
    return sums


@pytest.mark.parametrize("size", [3, 4])
def test_a_thread_can_sum_while_others_compute_and_memory_is_kept(size: int) -> None:
    long, short = (bits(by_definition((8, length, torch.float32))) for length in (1001, 64))
    for sums in run_processes(sum_in_a_thread, size=size):
        assert [total for total, _ in sums] == [long, short, long, long]
        assert len({address for _, address in sums}) == 1


@pytest.mark.parametrize("dtype", DTYPES)
def test_neutral_changes_no_value(dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).smallest_normal
    values = torch.tensor([0.0, -0.0, 1.5, -tiny, tiny / 2, float("inf"), -float("inf")], dtype=dtype)
    assert bits(values + neutral(values)) == bits(values) == bits(neutral(values) + values)
    assert bits(values + torch.zeros_like(values)) != bits(values), "zeros would change -0.0"


def make_for_another_size() -> None:
    TreeReduce(rank=0, size=3, num_lanes=4)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match="got rank=2 with size=2"):
        TreeReduce(rank=2, size=2, num_lanes=4)
    with pytest.raises(UsageError, match="got lanes=2 on 3 processes"):
        TreeReduce(rank=0, size=3, num_lanes=2)
    with pytest.raises(RuntimeError, match=r"got rank=0, size=3 in one where rank=\d, size=2"):
        run_processes(make_for_another_size, size=2)
    tree = TreeReduce(rank=0, size=1, num_lanes=6)
    with pytest.raises(UsageError, match="for each of the 2 subtrees of this process, got 1"):
        tree.all_reduce([torch.ones(3)])
    with pytest.raises(UsageError, match=r"got shape \(3,\), stride \(2,\)"):
        tree.all_reduce([torch.ones(3), torch.ones(6)[::2]])
    with pytest.raises(UsageError, match=r"got shape \(1, 3\)"):
        tree.all_reduce([torch.ones(1, 3), torch.ones(1, 3)])
    with pytest.raises(UsageError, match=r"got 3 x torch.float64 beside 3 x torch.float32"):
        tree.all_reduce([torch.ones(3), torch.ones(3, dtype=torch.float64)])
