"""Facts are the same after they were written and read, whoever reads them, and none is written for nobody."""

import copy
import json
import pickle
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from truestep.watch import Facts
from truestep.watch.evidence import facts
from truestep.watch.evidence.kinds import NUM_SHARED, NamedTuple, kind, named
from truestep.watch.evidence.moment import unnamed

SOURCES = Path(__file__).parents[2] / "src" / "truestep"
KINDS = [item for item in NUM_SHARED if item.__module__.startswith(facts.__name__)]


@cache
def _words() -> dict[tuple[str, ...], set[str]]:
    files = [path for path in SOURCES.rglob("*.py") if "facts" not in path.parts]
    return {path.relative_to(SOURCES).parts: set(re.findall(r"\w+", path.read_text())) for path in files}


@pytest.mark.parametrize("facts", KINDS, ids=lambda facts: facts.__name__)
def test_a_kind_is_made_in_one_place_and_read_in_another(facts: type[Facts]) -> None:
    users = [parts for parts, words in _words().items() if facts.__name__ in words]
    readers = [parts for parts in users if parts[0] != "watch" or parts[1] == "evidence"]
    assert readers and len(readers) < len(users)


class _Inner(NamedTuple):
    name: str
    shape: tuple[int, ...]


class _Outer(NamedTuple):
    number: int
    rows: list[_Inner]
    by_index: dict[int, _Inner] | None
    pair: tuple[str, float | None]
    ratio: float | None


def test_nested_facts_are_the_same_after_they_were_json() -> None:
    kind()(_Outer)
    row = _Inner("a", (2, 3))
    made = _Outer(1, [row, row], {4: row}, ("b", None), None)
    again = unnamed(*json.loads(json.dumps(named(made))))
    assert again == made and type(again.rows[0]) is _Inner  # type: ignore[attr-defined]


@pytest.mark.cold
def test_a_reader_that_imports_nothing_else_knows_every_kind() -> None:
    text = "from truestep.watch import read; from truestep.watch.evidence.kinds import NUM_SHARED; read\n"
    done = subprocess.run(
        [sys.executable, "-c", text + "print(len(NUM_SHARED))"], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) == len(KINDS)


class _Made(NamedTuple):
    name: str
    size: int | None


def test_a_kind_behaves_like_a_named_tuple() -> None:
    made = _Made("a", size=3)
    assert made == ("a", 3) and (made.name, made.size) == ("a", 3) and made._replace(size=None) == ("a", None)
    assert pickle.loads(pickle.dumps(made)) == made and type(copy.copy(made)) is _Made
    assert not hasattr(made, "__dict__")
    for values, given in ((("a",), {}), (("a", 1, 2), {}), (("a", 1), {"size": 2}), (("a",), {"sizes": 2})):
        with pytest.raises(TypeError, match="_Made has the fields name, size"):
            _Made(*values, **given)
