"""What is said of a resumed run that differs: each sentence, and the cases in which it would be false."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from truestep.verify import inquiry
from truestep.verify.chains import Divergence, Resumed
from truestep.verify.resume import _Case
from truestep.verify.runs import Ran
from truestep.verify.ways import Way
from truestep.watch import Moment, Process, Update
from truestep.watch.evidence.facts.loading import EpochBegan
from truestep.watch.evidence.facts.passes import ParallelMade
from truestep.watch.evidence.facts.surroundings import GeneratorSeeded

UPDATE = Update(step=0, optimizer=0, file=None, line=None, parts={}, before=None, chain="first")


@pytest.mark.verdict("batch, loss and weights before the step are the same on this process")
@pytest.mark.parametrize(
    ("parts", "wrapper", "name"),
    [
        (("gradients",), "DistributedDataParallel", "bucket-rebuild"),
        (("loss", "gradients"), "DistributedDataParallel", "state-not-saved"),
        (("batch", "loss", "gradients"), "DistributedDataParallel", "data-order-not-restored"),
        (("gradients",), "fully_shard", "state-not-saved"),
    ],
)
def test_buckets_are_the_cause_only_where_gradients_differ_first(
    parts: tuple[str, ...], wrapper: str, name: str
) -> None:
    made = Moment(
        facts=ParallelMade(wrapper, True), step=0, at_s=0, took_s=0, file="a.py", line=3, function=None
    )
    ours = Process(pid=1, argv=[], updates=[UPDATE])
    theirs = Process(pid=1, argv=[], updates=[UPDATE], moments=[made])
    divergence = Divergence(place=1, step=1, parts=parts, first=UPDATE, second=UPDATE)
    found = _Case(ours=ours, theirs=theirs, divergence=divergence, after=1).explain()
    assert found.name == name
    assert any("are the same" in text for text in found.evidence) is (name == "bucket-rebuild")


@pytest.mark.verdict("with 0 workers, the resumed run is the same")
@pytest.mark.parametrize(("after", "differs"), [(1, False), (1, True), (0, False)])
def test_workers_are_the_cause_only_if_the_run_without_them_is_the_same(
    monkeypatch: pytest.MonkeyPatch, after: int, differs: bool
) -> None:
    process = Process(pid=1, argv=[], updates=[UPDATE])
    ran = Ran(way=Way(), code=0, processes=[process], before_kill=[process], tail="", seconds=0)
    divergence = Divergence(place=0, step=0, parts=("loss",), first=UPDATE, second=UPDATE)
    monkeypatch.setattr(inquiry.resume, "has_workers", lambda _process: True)
    monkeypatch.setattr(
        inquiry.chains, "resumed_at", lambda *_, kill_at: Resumed(after=after, kill_at=kill_at)
    )
    monkeypatch.setattr(inquiry.chains, "diverge", lambda *_, **__: divergence if differs else None)
    asked = SimpleNamespace(steps=4, base=Way(), resume_arguments=())
    runner = SimpleNamespace(run=lambda *_, **__: ran)
    self: Any = SimpleNamespace(_first=ran, asked=asked, runner=runner, on_status=lambda _words: None)
    found = inquiry._Inquiry._explain_workers(self, Way(), 2)
    assert (found is not None) is (after > 0 and not differs)


def moment(facts: Any, step: int, at_s: float = 0) -> Moment[Any]:
    return Moment(facts=facts, step=step, at_s=at_s, took_s=0, file="a.py", line=3, function=None)


def updates(*batches: str, state: str = "same") -> list[Update]:
    return [
        replace(UPDATE, step=step, parts={"batch": [batch], "generators": {"torch": f"{step}{state}"}})
        for step, batch in enumerate(batches)
    ]


@pytest.mark.parametrize(
    ("resumed", "name"),
    [("c", "loader-position-not-saved"), ("a", "data-order-not-restored"), ("e", "data-order-not-restored")],
)
def test_an_epoch_starts_over_only_where_the_batch_is_its_own_first(resumed: str, name: str) -> None:
    first = updates("a", "b", "c", "d", "f")
    ours = Process(
        pid=1, argv=[], updates=first, moments=[moment(EpochBegan(0), 0), moment(EpochBegan(0), 2)]
    )
    second = replace(first[4], step=0, parts={**first[4].parts, "batch": [resumed]})
    divergence = Divergence(place=4, step=4, parts=("batch",), first=first[4], second=second)
    found = _Case(ours=ours, theirs=Process(pid=1, argv=[]), divergence=divergence, after=4).explain()
    # The generators are the same after the step, so they did not make the difference, though they moved.
    assert found.name == name


@pytest.mark.parametrize(
    ("state", "begun", "name"),
    [
        ("same", False, "state-not-saved"),
        ("other", False, "generator-moved-after-restore"),
        ("other", True, "generator-not-saved"),
    ],
)
def test_a_loader_moves_the_generator_only_where_it_would_not_have_started(
    state: str, begun: bool, name: str
) -> None:
    first = updates("a", "b")
    second = replace(updates("a", "b", state=state)[1], step=0)
    set_back = GeneratorSeeded(**{**dict.fromkeys(GeneratorSeeded._fields), "digest": "0same"})
    theirs = Process(
        pid=1, argv=[], moments=[moment(set_back, 0), moment(EpochBegan(0), 0, at_s=1)], updates=[second]
    )
    ours = Process(pid=1, argv=[], updates=first, moments=[moment(EpochBegan(0), 1)] if begun else [])
    divergence = Divergence(place=1, step=1, parts=("loss",), first=first[1], second=second)
    assert _Case(ours=ours, theirs=theirs, divergence=divergence, after=1).explain().name == name
