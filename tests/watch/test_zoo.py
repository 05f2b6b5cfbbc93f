"""Watching reads and never writes: all digests of the zoo are the same with and without it."""

import json
import sys
from pathlib import Path

import pytest

from tests.accelerator import environment
from tests.watch.watching import SCRIPTS, run_bare, run_watched
from truestep import watch

QUICK = ("mlp", "cnn", "gan")
REST = ("transformer", "lstm", "embedding_bag", "bf16", "recompute", "frozen", "stream")


def check(tmp_path: Path, names: tuple[str, ...], plan: watch.Plan) -> watch.Process:
    script = SCRIPTS / "zoo_members.py"
    bare = run_bare(script, str(tmp_path / "bare"), *names)
    assert bare.code == 0, bare.stderr
    watched = run_watched(script, str(tmp_path / "watched"), *names, folder=tmp_path, plan=plan)
    assert watched.code == 0, watched.stderr
    assert json.loads(watched.stdout) == json.loads(bare.stdout)
    assert set(json.loads(bare.stdout)) == set(names)
    (process,) = watch.read(tmp_path)
    return process


def test_some_of_the_zoo_keep_their_bits_with_every_digest_taken(tmp_path: Path) -> None:
    process = check(tmp_path, QUICK, watch.Plan(digests=watch.DIGESTS))
    assert process.ended == "finished"
    assert len(process.updates) == 6 + 6 + 2 * 6


def test_all_others_of_the_zoo_keep_their_bits(tmp_path: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
    from zoo import ZOO

    assert {*QUICK, *REST} == set(ZOO)
    process = check(tmp_path, REST, watch.Plan(digests=watch.DIGESTS))
    assert len(process.updates) == 6 * len(REST)


@pytest.mark.slow
def test_zoo_keeps_its_bits_with_cheap_moments(tmp_path: Path) -> None:
    check(tmp_path, (*QUICK, *REST), watch.Plan())


@pytest.mark.slow
def test_the_zoo_keeps_its_bits_on_an_accelerator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    check(tmp_path, (*QUICK, *REST), watch.Plan(inspect=True, operations=(0, 3)))
