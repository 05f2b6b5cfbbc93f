"""What a checkpoint lacks, found by putting things back: the search, and whole runs."""

import json
import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.verify.test_chains import ran, update
from truestep.verify.causes import FoundCause
from truestep.verify.chains import Resumed
from truestep.verify.elimination import Elimination
from truestep.verify.lost import Lost
from truestep.watch import Moment, Process
from truestep.watch.digests.values import digest, dump
from truestep.watch.evidence.facts.surroundings import GeneratorSeeded

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "lost_state.py"


class Searched(Elimination):
    """The search alone: a set repairs the run if it has all that is needed and nothing that breaks it."""

    def __init__(self, needed: str, breaking: str = "") -> None:
        self.needed, self.breaking = set(needed), set(breaking)
        self._outcomes: dict[frozenset[str], bool] = {}

    def _experiment(self, names: frozenset[str]) -> bool:
        return self.needed <= names and not self.breaking & names

    def found(self, candidates: Sequence[Lost]) -> str:
        return "".join(sorted(item.name for item in self._search(list(candidates))))


def things(changed: str, others: str = "") -> list[Lost]:
    made = [Lost(name=name, ours="1", theirs="0") for name in changed]
    return made + [Lost(name=name, ours="1", theirs="0", has_changed=False) for name in others]


def test_the_smallest_set_that_repairs_the_run_is_found() -> None:
    assert Searched("c").found(things("abcdefgh")) == "c"
    assert Searched("bg").found(things("abcdefgh")) == "bg"
    assert Searched("x").found(things("ab", "xy")) == "x"
    assert Searched("ax").found(things("ab", "xy")) == "ax"
    assert Searched("z").found(things("ab", "xy")) == ""
    assert Searched("b", breaking="a").found(things("ab")) == "b"
    assert Searched("a").found([]) == ""


def test_values_come_back_as_they_were() -> None:
    kept: dict[str, Any] = {
        "tensor": torch.tensor([1.5, float("nan")], dtype=torch.bfloat16),
        "number": torch.tensor(3),
        "empty": torch.zeros(0, 4),
        "array": np.arange(6).reshape(2, 3),
        "rounds": iter([1, 2, 3]),
        "count": count(7),
        "nest": [({"a": torch.ones(2, dtype=torch.bool)}, None)],
    }
    next(kept["rounds"])
    again = pickle.loads(dump(kept))
    assert digest(again) == digest(kept)
    assert next(again["rounds"]) == 2 and next(kept["rounds"]) == 2
    next(again["count"])
    assert digest(again) != digest(kept)


@pytest.mark.slow
@pytest.mark.parametrize("script", ["closure_counter", "class_mean", "index_list", "own_generator"])
def test_what_the_checkpoint_lacks_is_proved_and_a_complete_one_is_the_same(script: str) -> None:
    words = [sys.executable, str(BENCHMARK), "--json", "--only", script]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert row["right"] and row["proved"] and row["complete"] == "same", row


def told(*smallest: Lost, began: str, restored: str | None = "stood") -> FoundCause:
    """Return the cause that is named when these are put back; `began`: torch's state after the resume."""
    facts = GeneratorSeeded("torch", "state", None, restored)
    seeded = [Moment(facts=facts, step=0, at_s=0, took_s=0, file="a.py", line=7, function=None)]
    begun = {0: {"at": None, "generators": {"torch": began}}}
    again = Process(pid=1, argv=[], moments=list(seeded) if restored else [], begun=begun)
    case = Searched("")
    case.first = ran(update(0, generators={"torch": "stood"}))
    case._again = replace(case.first, processes=[again])
    case.resumed = Resumed(after=1, kill_at=2)
    finding = FoundCause(name="generator-moved-after-restore")
    case._tell(finding, list(smallest))
    return finding


def test_only_what_was_put_back_is_called_proved() -> None:
    torchs, randoms = (Lost(name=f"generator {name}", ours="1", theirs="0") for name in ("torch", "random"))
    moved = told(torchs, began="elsewhere")
    assert (moved.name, moved.line) == ("generator-moved-after-restore", 7)
    for other in (
        told(torchs, began="stood"),  # saved before the script drew once more
        told(torchs, began="elsewhere", restored=None),
        told(torchs, began="elsewhere", restored="another"),
        told(randoms, began="elsewhere"),
        told(torchs, randoms, began="elsewhere"),
    ):
        assert other.name == "generator-not-saved" and other.is_proved
    assert "the generator of `random` put back" in told(randoms, began="stood").evidence[0]
    own = Lost(name="rng", ours="1", theirs="0", kind="numpy Generator")
    assert told(own, began="elsewhere").name == "variable-not-saved"


@pytest.mark.verdict(
    "with {} put back as without the kill, the resumed run is the same; without it, it differs"
)
def test_a_run_that_is_the_same_with_nothing_put_back_proves_nothing() -> None:
    class Racing(Searched):
        def _experiment(self, names: frozenset[str]) -> bool:
            return True  # also with nothing put back

    assert Racing("a")._proved_with(things("a")) == []
    assert [item.name for item in Searched("a")._proved_with(things("ab"))] == ["a"]
