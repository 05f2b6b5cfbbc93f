"""What a checkpoint lacks, found by putting things back: the search, and whole runs."""

import json
import pickle
import subprocess
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from truestep.verify.causes import FoundCause
from truestep.verify.elimination import Elimination
from truestep.verify.lost import Lost
from truestep.watch.digests.values import digest, dump

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "lost_state.py"


class Searched(Elimination):
    """The search alone: a set repairs the run if it has all that is needed and nothing that breaks it."""

    def __init__(self, needed: str, breaking: str = "") -> None:
        self.needed, self.breaking = set(needed), set(breaking)
        self._outcomes: dict[frozenset[str], bool] = {}

    def _experiment(self, names: frozenset[str]) -> bool:
        return self.needed <= names and not self.breaking & names

    def found(self, candidates: Sequence[Lost], likely: Sequence[str] = ()) -> str:
        finding = FoundCause(name="state-not-saved", variables=list(likely))
        return "".join(sorted(item.name for item in self._search(finding, list(candidates))))


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


def test_what_a_line_depends_on_is_put_back_first() -> None:
    case = Searched("g")
    assert case.found(things("abcdefgh"), likely="g") == "g"
    assert len(case._outcomes) == 1


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
