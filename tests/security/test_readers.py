"""Every reader of files answers, or raises an error of truestep's own, whatever a stranger has put there.

The same inputs on every run.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.security.readers import READERS, Bench, Reader

SLOW = {"report", "resume", "watch and export", "evidence"}
"""Some milliseconds for each input."""


@pytest.fixture(scope="module")
def benches(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Reader], Bench]:
    made: dict[str, Bench] = {}

    def bench(reader: Reader) -> Bench:
        if reader.name not in made:
            made[reader.name] = Bench(reader, tmp_path_factory.mktemp("fuzz") / "good")
        return made[reader.name]

    return bench


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name.replace(" ", "-"))
def test_good_files_are_read(benches: Callable[[Reader], Bench], reader: Reader) -> None:
    benches(reader).read_good()


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name.replace(" ", "-"))
def test_spoilt_files_are_read_or_refused(benches: Callable[[Reader], Bench], reader: Reader) -> None:
    bench = benches(reader)
    outcomes = set()

    @settings(max_examples=40 if reader.name in SLOW else 150)
    @given(st.integers(min_value=0, max_value=10**6))
    def check(number: int) -> None:
        outcomes.add(bench.try_input(number))

    check()
    assert outcomes <= {"read", "refused"}


CRASHED = {
    "report": [27846, 46113, 61910],
    "resume": [14839, 35927, 8254],
    "shards": [14980, 30672, 97304, 68052],
    "watch and export": [11349, 38947, 97770],
}
"""Inputs that a run of 100,000 for each reader found."""


@pytest.mark.parametrize("name", CRASHED)
def test_what_once_crashed_a_reader_no_longer_does(benches: Callable[[Reader], Bench], name: str) -> None:
    (reader,) = (each for each in READERS if each.name == name)
    outcomes = {number: benches(reader).try_input(number) for number in CRASHED[name]}
    assert set(outcomes.values()) <= {"read", "refused"}


def test_what_is_not_an_error_of_ours_is_seen(tmp_path: Path) -> None:
    def crash(folder: Path) -> None:
        (folder / "a.json").read_bytes().decode("ascii").index('"a"')

    reader = Reader(
        name="crashing",
        prepare=lambda folder: (folder / "a.json").write_text('{"a": 1}') and None,
        spoil={"a.json": lambda _rng, _data: b"\xff"},
        read=crash,
    )
    bench = Bench(reader, tmp_path / "good")
    bench.read_good()
    with pytest.raises(UnicodeDecodeError):
        bench.try_input(0)
