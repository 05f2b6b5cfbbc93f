"""Comparing chains: where two runs diverge, and where a resumed one goes on."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from truestep.verify import chains, streams
from truestep.verify.describe import describe, same_text
from truestep.verify.runs import Ran
from truestep.verify.verdict import RunSummary, Verdict
from truestep.verify.ways import OUTCOME, SHARED_OUTCOME, Way
from truestep.watch import Moment, Process, Update
from truestep.watch.evidence.facts.structure import FileSaved


def update(step: int, *, before: str | None = None, **parts: Any) -> Update:
    usual = {"loss": f"l{step}", "gradients": f"g{step}", "weights": f"w{step}", "state": f"s{step}"}
    return Update(
        step=step,
        optimizer=0,
        file="train.py",
        line=9,
        parts={**usual, **parts},
        chain="",
        before=before,
    )


def ran(*updates: Update) -> Ran:
    process = Process(pid=1, argv=[], updates=list(updates))
    return Ran(way=Way(), code=0, processes=[process], before_kill=[], tail="", seconds=0.0)


def keep(run: Ran, moments: list[Moment[Any]]) -> None:
    run.processes[0] = replace(run.processes[0], moments=moments)


def test_equal_chains_do_not_diverge() -> None:
    first = [update(0), update(1)]
    assert chains.diverge(first, [update(0), update(1)], outcome=OUTCOME) is None


def test_the_first_part_that_arises_is_told() -> None:
    second = [update(0), update(1, weights="x", gradients="y", inputs="z")]
    divergence = chains.diverge([update(0), update(1)], second, outcome=OUTCOME)
    assert divergence is not None
    assert (divergence.step, divergence.what, divergence.parts) == (
        1,
        "inputs",
        ("inputs", "gradients", "weights"),
    )


def test_inputs_that_change_nothing_are_no_difference() -> None:
    second = [update(0, inputs="other", generators="other", batch="other")]
    assert chains.diverge([update(0)], second, outcome=OUTCOME) is None


def test_a_shorter_run_differs() -> None:
    divergence = chains.diverge([update(0), update(1)], [update(0)], outcome=OUTCOME)
    assert divergence is not None
    assert (divergence.step, divergence.what) == (1, "number of steps")


def test_processes_have_losses_of_their_own() -> None:
    assert chains.diverge([update(0)], [update(0, loss="other")], outcome=SHARED_OUTCOME) is None
    assert chains.diverge([update(0)], [update(0, loss="other")], outcome=OUTCOME) is not None


def test_a_resumed_run_goes_on_where_the_weights_were() -> None:
    first = ran(update(0, before="w-1"), update(1), update(2), update(3))
    assert chains.resumed_at(first, ran(update(0, before="w1")), kill_at=3).after == 2
    assert chains.resumed_at(first, ran(update(0, before="w-1")), kill_at=3).after == 0
    assert chains.resumed_at(first, ran(update(0, before="never")), kill_at=3).after is None
    assert chains.resumed_at(first, ran(), kill_at=3).after is None


def test_a_resumed_step_may_begin_with_saved_gradients() -> None:
    first = [update(0), update(1, loss=["a", "b", "c"])]
    assert chains.diverge(first, [update(0), update(1, loss=["c"])], outcome=OUTCOME, is_resumed=True) is None
    assert chains.diverge(first, [update(0), update(1, loss=["c"])], outcome=OUTCOME) is not None
    for lost in ({"loss": ["a"]}, {"loss": []}, {"loss": ["c"], "gradients": "y"}):
        second = [update(0), update(1, **lost)]
        assert chains.diverge(first, second, outcome=OUTCOME, is_resumed=True) is not None


def test_digests_cover_what_is_compared_and_nothing_else() -> None:
    whole = chains.digest([update(0), update(1)], OUTCOME)
    assert whole == chains.digest([update(0, inputs="other"), update(1)], OUTCOME)
    assert whole != chains.digest([update(0), update(1, state="other")], OUTCOME)
    assert whole != chains.digest([update(0)], OUTCOME)


def saved(value: str, *, step: int = 2) -> Moment[FileSaved]:
    facts = FileSaved("torch", "ema.pt", {"weight": value})
    return Moment(facts=facts, step=step, at_s=0, took_s=0, file="train.py", line=20, function=None)


def test_what_only_one_run_keeps_is_a_difference_but_not_of_a_resumed_one() -> None:
    first = [update(0, kept={"ema": "a", "queue": "q"})]
    second = [update(0, kept={"ema": "a", "loaded": "c"})]
    assert chains.diverge(first, second, outcome=OUTCOME, is_resumed=True) is None
    divergence = chains.diverge(first, second, outcome=OUTCOME)
    assert divergence is not None and divergence.what == "other state: queue, loaded"
    divergence = chains.diverge(
        first, [update(0, kept={"ema": "b", "queue": "q"})], outcome=OUTCOME, is_resumed=True
    )
    assert divergence is not None and divergence.is_kept and divergence.what == "other state: ema"


def test_a_file_that_only_one_run_saves_is_a_difference() -> None:
    first, second = ran(update(0)), ran(update(0))
    keep(first, [saved("a")])
    keep(second, [saved("a"), saved("a")])
    for runs in ((first, second), (second, first)):
        divergence = chains.compare(*runs, outcome=OUTCOME)
        assert divergence is not None and divergence.what == "saved file ema.pt: in one run only"


def test_a_run_that_would_make_more_steps_differs() -> None:
    first, second = ran(update(0)), ran(update(0))
    first.processes[0].ended, second.processes[0].ended = "finished", "stopped"
    divergence = chains.compare(first, second, outcome=OUTCOME)
    assert divergence is not None and divergence.what == "number of steps"


def test_saved_files_and_the_last_state_are_compared_though_all_steps_are_the_same() -> None:
    first, second = ran(update(0)), ran(update(0))
    assert chains.compare(first, second, outcome=OUTCOME) is None
    first.processes[0].kept, second.processes[0].kept = {"ema": "a"}, {"ema": "b"}
    divergence = chains.compare(first, second, outcome=OUTCOME)
    assert divergence is not None and divergence.what == "other state: ema"
    keep(first, [saved("a")])
    keep(second, [saved("b")])
    divergence = chains.compare(first, second, outcome=OUTCOME)
    assert divergence is not None and (divergence.step, divergence.what) == (2, "saved file ema.pt: weight")
    assert chains.compare(first, second, outcome=SHARED_OUTCOME) is None


def test_of_a_resumed_run_the_last_file_counts_and_only_at_the_end() -> None:
    first, second = ran(update(0)), ran(update(0))
    second.before_kill = [Process(pid=2, argv=[])]
    keep(first, [saved("a", step=1), saved("b")])
    keep(second, [saved("b")])
    for how in ("stopped", "finished"):
        first.processes[0].ended = second.processes[0].ended = how
        assert chains.compare(first, second, outcome=OUTCOME) is None
    keep(second, [saved("c")])
    assert chains.compare(first, second, outcome=OUTCOME) is not None
    first.processes[0].ended = second.processes[0].ended = "stopped"
    assert chains.compare(first, second, outcome=OUTCOME) is None


def test_other_weights_before_the_first_step_are_one_place_wherever_it_is_told() -> None:
    second = [update(0, before="other", weights="x")]
    divergence = chains.diverge([update(0, before="one")], second, outcome=OUTCOME)
    assert divergence is not None
    assert (divergence.shown_step, divergence.what) == (0, "initial weights")
    later = chains.diverge([update(0, before="one")], [update(0, before="one", weights="x")], outcome=OUTCOME)
    assert later is not None
    assert (later.shown_step, later.what) == (1, "weights")
    said = [
        RunSummary(kind="again", words="", processes=1, num_steps=1, digest="", parted_at=step).divergence
        for step in (0, 1, None)
    ]
    assert said == ["diverges before the first step", "diverges at step 1", ""]


def test_a_sample_is_not_called_all_values() -> None:
    one, other = np.zeros(4, np.float32), np.ones(4, np.float32)
    assert streams._words_of(one, other, num_all=4).startswith("4 of 4 values differ, by at most 1")
    assert streams._words_of(one, other, num_all=16).startswith("4 of 4 sampled values differ (16 in all)")


@pytest.mark.parametrize(
    ("expected", "words"),
    [
        (480, "in the first 60 of about 480 steps: "),
        (None, "in the first 60 steps: "),
    ],
)
def test_a_part_of_a_run_is_not_called_the_whole(expected: int | None, words: str) -> None:
    said = same_text(Verdict(same=True, num_steps=60, is_whole=False, expected_steps=expected))
    assert said.startswith(words) and said.endswith("; --steps 0 compares all")
    assert same_text(Verdict(same=True, num_steps=60)).startswith("in all 60 steps: ")


@pytest.mark.verdict("same {}")
@pytest.mark.verdict("in {}: {} are bit-for-bit identical")
def test_runs_that_were_not_compared_are_not_called_the_same() -> None:
    assert describe(Verdict(same=True, num_steps=3)).startswith("same in all 3 steps: ")
    said = describe(Verdict(same=None, num_steps=3, reason="no step"))
    assert said == "inconclusive: no step"
