"""What is said of a resumed run that differs: each sentence, and the cases in which it would be false."""

from types import SimpleNamespace
from typing import Any

import pytest

from truestep.verify import inquiry
from truestep.verify.chains import Parting, Resumed
from truestep.verify.resume import _Case
from truestep.verify.runs import Ran
from truestep.verify.ways import Way
from truestep.watch import Moment, Process, Update
from truestep.watch.evidence.facts.passes import ParallelMade

UPDATE = Update(
    step=0, optimizer=0, file=None, line=None, parts={}, parameters={}, before=None, chain="first"
)


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
    parting = Parting(place=1, step=1, parts=parts, first=UPDATE, second=UPDATE)
    found = _Case(ours=ours, theirs=theirs, parting=parting, after=1).explain()
    assert found.name == name
    assert any("are the same" in text for text in found.evidence) is (name == "bucket-rebuild")


@pytest.mark.verdict("with 0 workers, the resumed run is the same")
@pytest.mark.parametrize(("after", "differs"), [(1, False), (1, True), (0, False)])
def test_workers_are_the_cause_only_if_the_run_without_them_is_the_same(
    monkeypatch: pytest.MonkeyPatch, after: int, differs: bool
) -> None:
    process = Process(pid=1, argv=[], updates=[UPDATE])
    ran = Ran(way=Way(), code=0, processes=[process], before_kill=[process], tail="", seconds=0)
    parting = Parting(place=0, step=0, parts=("loss",), first=UPDATE, second=UPDATE)
    monkeypatch.setattr(inquiry.resume, "has_workers", lambda _process: True)
    monkeypatch.setattr(
        inquiry.chains, "resumed_at", lambda *_, kill_at: Resumed(after=after, kill_at=kill_at)
    )
    monkeypatch.setattr(inquiry.chains, "part", lambda *_, **__: parting if differs else None)
    asked = SimpleNamespace(steps=4, base=Way(), resume_arguments=())
    runner = SimpleNamespace(run=lambda *_, **__: ran)
    self: Any = SimpleNamespace(
        _first=ran, asked=asked, runner=runner, _side=1, on_status=lambda _words: None
    )
    found = inquiry._Inquiry._explain_workers(self, Way(), 2)
    assert (found is not None) is (after > 0 and not differs)
