"""Who waits for whom: a pure function of the facts of all ranks, up to ten thousand of them."""

import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from truestep.hang import Patrol, Verdict, find_cause, find_verdict
from truestep.hang.text import as_text
from truestep.hang.verdict import name_ranks
from truestep.watch.evidence.kinds import Place
from truestep.watch.evidence.stalls import Collective, Standing


def waits(rank: int, name: str = "all_reduce", *, size: int = 4, line: int = 1, **more: Any) -> Standing:
    fields: dict[str, Any] = {"group": "0", "number": 7, "members": tuple(range(size)), **more}
    place = Place("train.py", line, "<module>")
    pending = Collective(name=name, place=place, **fields)
    stack = (place,)
    made = {pending.group: pending.number}
    return Standing(
        rank=rank, size=size, pid=rank, doing="waiting", since_s=4, pending=pending, stack=stack, made=made
    )


def elsewhere(rank: int, doing: Any, how: str = "", *, size: int = 4, made: int = 6) -> Standing:
    stack = (Place("train.py", 2, "<module>"),)
    return Standing(rank=rank, size=size, pid=rank, doing=doing, how=how, stack=stack, made={"0": made})


def ranks(verdict: Verdict | None) -> tuple[list[int], list[int]] | None:
    return verdict and ([item.rank for item in verdict.odd], [item.rank for item in verdict.waiting])


def test_the_rank_in_another_collective_is_the_odd_one() -> None:
    standings = [waits(0), waits(1), waits(2, "barrier"), waits(3)]
    assert ranks(find_verdict(standings)) == ([2], [0, 1, 3])


@pytest.mark.parametrize(
    "other", [{"dtypes": ("float64",), "shapes": ((4,),)}, {"dtypes": ("float32",), "shapes": ((5,),)}]
)
def test_another_dtype_or_size_is_a_mismatch(other: dict[str, Any]) -> None:
    alike = {"dtypes": ("float32",), "shapes": ((2, 2),)}
    assert ranks(find_verdict([waits(0, **alike), waits(1, **alike), waits(2, **other)])) == ([2], [0, 1])
    assert find_verdict([waits(0, **alike), waits(1, dtypes=("float32",), shapes=((4,),))]) is None


@pytest.mark.parametrize("doing", ["living", "raised"])
def test_a_rank_that_may_still_come_or_has_failed_gives_no_verdict(doing: str) -> None:
    assert find_verdict([waits(0), waits(1), waits(2), elsewhere(3, doing)]) is None


def test_a_rank_of_which_nothing_is_known_gives_no_verdict() -> None:
    assert find_verdict([waits(0), waits(1), waits(2)]) is None


def test_all_ranks_in_one_collective_give_no_verdict() -> None:
    assert find_verdict([waits(rank) for rank in range(4)]) is None


def test_a_rank_that_was_elsewhere_when_a_collective_failed_is_the_odd_one() -> None:
    failed = Standing(**{**vars(waits(0, size=2)), "error": "Timed out"})
    assert ranks(find_verdict([failed, elsewhere(1, "living", size=2)])) == ([1], [0])


def test_a_mismatch_is_certain_though_another_rank_lives() -> None:
    standings = [waits(0), waits(1, "broadcast"), waits(2), elsewhere(3, "living")]
    assert ranks(find_verdict(standings)) == ([1], [0, 2])


@pytest.mark.parametrize(("doing", "how"), [("stuck", "lock"), ("stuck", "stopped"), ("ended", "")])
def test_a_rank_that_cannot_come_is_the_odd_one(doing: str, how: str) -> None:
    verdict = find_verdict([waits(0), waits(1), elsewhere(2, doing, how), waits(3)])
    assert ranks(verdict) == ([2], [0, 1, 3])


def test_a_rank_that_entered_the_collective_before_it_ended_is_not_missed() -> None:
    assert find_verdict([waits(0, size=2), elsewhere(1, "ended", size=2, made=7)]) is None


def test_ranks_that_wait_for_a_stuck_one_through_others_are_held_too() -> None:
    standings = [
        waits(0, group="left", members=(0, 1)),
        waits(1, group="right", members=(1, 2)),
        elsewhere(2, "stuck", "input"),
        elsewhere(3, "living"),
    ]
    assert ranks(find_verdict(standings)) == ([2], [0, 1])
    standings[2] = elsewhere(2, "living")
    assert find_verdict(standings) is None


def test_a_circle_over_groups_is_a_deadlock() -> None:
    standings = [waits(0, group="a", members=(0, 1), size=2), waits(1, group="b", members=(0, 1), size=2)]
    assert ranks(find_verdict(standings)) == ([1], [0])


def test_a_receive_and_its_send_are_no_deadlock() -> None:
    receive = waits(0, "recv", size=2, group="pairs", members=(1,), is_pair=True)
    send = waits(1, "send", size=2, group="pairs", members=(0,), is_pair=True)
    assert find_verdict([receive, send]) is None
    both = [receive, waits(1, "recv", size=2, group="pairs", members=(0,), is_pair=True)]
    assert ranks(find_verdict(both)) == ([1], [0])


@pytest.mark.parametrize("size", [4096, 10_000])
def test_the_odd_one_of_many_ranks_is_found_in_time_proportional_to_their_number(size: int) -> None:
    members = tuple(range(size))
    standings = [waits(rank, size=size, members=members) for rank in range(size)]
    standings[size // 3] = waits(size // 3, "barrier", size=size, members=members)
    begun_s = time.perf_counter()
    verdict = find_verdict(standings)
    assert ranks(verdict) == ([size // 3], [rank for rank in range(size) if rank != size // 3])
    standings[size // 3] = elsewhere(size // 3, "stuck", "loader", size=size)
    verdict = find_verdict(standings)
    assert verdict is not None and [item.rank for item in verdict.odd] == [size // 3]
    assert len(as_text(verdict, None).splitlines()) < 12
    assert time.perf_counter() - begun_s < 20.0  # a tenth of it on an idle core; quadratic would be minutes


def test_facts_survive_being_written() -> None:
    for members in ((), (0, 1), (3, 1, 2), tuple(range(4096)), tuple(range(3, 4096, 8)), (0, 1, 3)):
        item = waits(0, shapes=((2, 3),), dtypes=("float32",), members=members)
        assert Standing.unpack(item.pack()) == item
    assert len(waits(0, members=tuple(range(4096))).pack()) < 1000


def test_ranks_are_named_in_spans() -> None:
    assert name_ranks([waits(3)]) == "rank 3"
    assert name_ranks([waits(0), waits(1)]) == "ranks 0 and 1"
    assert name_ranks([waits(rank) for rank in (0, 1, 2, 5)]) == "ranks 0 to 2 and 5"


SOURCES = {
    "uneven batches": """
for step in range(4):
    all_reduce()  # waits
barrier()  # odd
""",
    "rank branch": """
for step in range(4):
    all_reduce()  # waits
    if rank == 0:
        barrier()  # odd
""",
    "branch": """
for step in range(4):
    all_reduce()  # waits
    if loss < best:
        barrier()  # odd
""",
    "swallowed exception": """
for step in range(4):
    try:
        all_reduce()  # waits
    except ValueError:
        pass
barrier()  # odd
""",
    "order": """
all_reduce()  # waits
barrier()  # odd
""",
}


@pytest.mark.parametrize("name", SOURCES)
def test_the_source_shows_the_cause(name: str) -> None:
    text = SOURCES[name]
    numbered = list(enumerate(text.split("\n"), 1))
    line, odd = (next(n for n, code in numbered if f"# {word}" in code) for word in ("waits", "odd"))
    first = Standing(**{**vars(waits(0, size=2, line=line)), "by_kind": {"all_reduce": 4}})
    second = Standing(**{**vars(waits(1, "barrier", size=2, line=odd)), "by_kind": {"all_reduce": 3}})
    verdict = find_verdict([first, second])
    assert verdict is not None
    verdict, cause = find_cause(verdict, read=lambda _: text)
    assert cause is not None and cause.name == name
    assert [item.rank for item in verdict.odd] == [1]
    assert f"likely cause  {name}: " in as_text(verdict, cause)


def test_an_early_return_for_other_ranks_is_a_rank_branch() -> None:
    text = "def save(rank):\n    if rank != 0:\n        return\n    barrier()\n\nsave(rank)\nall_reduce()\n"
    inner, outer = Place("train.py", 4, "save"), Place("train.py", 6, "<module>")
    odd = Standing(**{**vars(waits(0, "barrier", size=2)), "stack": (inner, outer)})
    verdict = find_verdict([odd, waits(1, size=2, line=7)])
    assert verdict is not None
    verdict, cause = find_cause(verdict, read=lambda _: text)
    assert cause is not None and cause.name == "rank branch"
    assert [item.rank for item in verdict.odd] == [0]


def test_ranks_that_wait_in_a_circle_of_groups_are_named() -> None:
    standings = [
        waits(rank, group=f"{rank}", members=(rank, (rank + 1) % 3), number=1, size=3) for rank in range(3)
    ]
    verdict = find_verdict(standings)
    assert verdict is not None and len(verdict.odd) + len(verdict.waiting) == 3
    _, cause = find_cause(verdict, read=lambda _: "")
    assert cause is not None and "wait in different groups" in cause.sentence


def test_a_receive_under_a_condition_on_the_rank_lacks_its_other_half() -> None:
    source = "if rank == 0:\n    dist.recv(x, src=1)\ndist.barrier()"
    pair = waits(0, "recv", members=(1,), is_pair=True, group="pairs", number=0, line=2, size=2)
    verdict = find_verdict([pair, waits(1, "barrier", line=3, size=2)])
    assert verdict is not None
    _, cause = find_cause(verdict, read=lambda _: source)
    assert cause is not None and cause.name == "pair"


def test_a_rank_that_came_too_early_is_the_odd_one_not_the_one_that_waits_for_it() -> None:
    early, left = waits(3, line=2), waits(2, group="part", members=(2, 3), number=1, line=5)
    assert ranks(find_verdict([waits(0, line=6), waits(1, line=6), left, early])) == ([3], [0, 1, 2])


LOOP = "for batch in loader:\n    loss.backward()\nprint(loss)\n"


@pytest.mark.parametrize(
    ("code", "doing", "is_explained"),
    [
        (-signal.SIGKILL, "living", False),
        (-signal.SIGSEGV, "living", False),
        (7, "ended", False),  # sys.exit(7)
        (7, "living", False),  # os._exit(7)
        (None, "ended", True),  # it had fewer batches, and ended well
    ],
)
def test_a_rank_that_was_killed_or_failed_is_not_said_to_have_fewer_batches(
    tmp_path: Path, code: int | None, doing: Any, *, is_explained: bool
) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOOP)
    place = Place(str(script), 2, "<module>")
    kind = {"by_kind": {"all_reduce": 9}}
    failed = [
        replace(waits(rank, size=3), error="Connection reset", stack=(place,), **kind) for rank in (0, 2)
    ]
    lost = replace(elsewhere(1, doing, size=3), stack=(), by_kind={"all_reduce": 8})
    for item in [*failed, lost]:
        (tmp_path / f"standing-{item.rank}.json").write_text(item.pack())
    codes = {0: 1, 2: 1} | ({} if code is None else {1: code})
    found = Patrol(tmp_path).explain_failure(codes)
    assert (found is not None) is is_explained
    if found is not None:
        assert found[1] is not None and found[1].name == "uneven batches"


def test_a_traceback_is_only_promised_for_a_rank_that_raised(tmp_path: Path) -> None:
    raised = replace(elsewhere(0, "raised", size=2), error="ValueError: no")
    for item in (raised, elsewhere(1, "ended", size=2)):
        (tmp_path / f"standing-{item.rank}.json").write_text(item.pack())
    patrol = Patrol(tmp_path)
    assert patrol.has_raised(0) and not patrol.has_raised(1)
