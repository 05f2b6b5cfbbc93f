"""Small talk between processes."""

import torch

from tests.processes import run_processes
from truestep.dist.world import World, join


def talk() -> tuple[int, list[float], list[str], str]:
    world = join()
    vector = torch.zeros(world.size, dtype=torch.float64)
    vector[world.rank] = 0.1 * (world.rank + 1)
    world.add(vector)
    return (
        world.rank,
        vector.tolist(),
        world.gather(f"from {world.rank}"),
        world.share(f"by {world.rank}"),
    )


def test_all_processes_hear_the_same() -> None:
    heard = run_processes(talk, size=3)
    assert [rank for rank, *_ in heard] == [0, 1, 2]
    for _, vector, gathered, shared in heard:
        assert vector == [0.1, 0.2, 0.1 * 3]
        assert gathered == ["from 0", "from 1", "from 2"]
        assert shared == "by 0"


def test_alone_nothing_is_sent() -> None:
    world = join()
    vector = torch.ones(2)
    world.add(vector)
    assert (world, world.gather(3), world.share(4)) == (World(), [3], 4)
    assert vector.tolist() == [1.0, 1.0]
