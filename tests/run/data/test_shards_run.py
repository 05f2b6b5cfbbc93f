"""Training on shards: one digest, whatever the format, the place, the processes, workers and faults."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.processes import run_processes
from tests.run.data import shard_files
from truestep.run.data.shards import write_index

ROOT = Path(__file__).parents[3]
TRUESTEP = str(Path(sys.executable).with_name("truestep"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = shard_files.write_all(tmp_path_factory.mktemp("data"))
    for kind in shard_files.KINDS:
        write_index(f"{made}/part-*.{kind}", made / f"{kind}.json")
    return made


@pytest.fixture(scope="module")
def digest(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What one process makes of the tar files on this machine."""
    root = tmp_path_factory.mktemp("alone")
    return shard_files.train(str(root / "run"), dataset(folder, root, "tar"))


@pytest.fixture(scope="module")
def s3(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    with shard_files.s3_server(tmp_path_factory.mktemp("s3") / "log") as address:
        yield address, shard_files.upload(address, sorted(folder.iterdir()))


def dataset(folder: Path, root: Path, kind: str, place: str = "") -> dict[str, Any]:
    return {
        "urls": f"{place}{folder}/part-*.{kind}",
        "cache": str(root / "cache"),
        "index": f"{place}{folder}/{kind}.json",
    }


def bucket(s3: tuple[str, str], root: Path, kind: str) -> dict[str, Any]:
    address, name = s3
    return {
        "urls": f"{name}/part-*.{kind}",
        "cache": str(root / "cache"),
        "index": f"{name}/{kind}.json",
        "storage": shard_files.storage_of(address),
    }


@pytest.mark.practice("P37")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", shard_files.KINDS)
def test_p37_formats_and_workers_give_the_same_bits(
    folder: Path, tmp_path: Path, digest: str, kind: str, workers: int
) -> None:
    """Tar, Parquet or Arrow files, read by any number of workers, give the same weights bit by bit."""
    found = shard_files.train(str(tmp_path / "run"), dataset(folder, tmp_path, kind), workers=workers)
    assert found == digest


@pytest.mark.parametrize(
    ("size", "kind", "place"), [(2, "tar", ""), (3, "parquet", "flaky://"), (4, "arrow", "")]
)
def test_processes_give_the_same_bits(
    folder: Path, tmp_path: Path, digest: str, size: int, kind: str, place: str
) -> None:
    found = run_processes(
        shard_files.train, str(tmp_path / "run"), dataset(folder, tmp_path, kind, place), size=size
    )
    assert found == [digest] * size


@pytest.mark.parametrize("workers", [0, 2])
def test_failing_and_slow_requests_do_not_change_the_bits(
    folder: Path, tmp_path: Path, digest: str, workers: int
) -> None:
    data = dataset(folder, tmp_path, "tar", "flaky://")
    assert shard_files.train(str(tmp_path / "run"), data, workers=workers) == digest


def start(size: int, **arguments: Any) -> "subprocess.Popen[bytes]":
    launch = [TRUESTEP, "run", "-n", str(size)] if size > 1 else [sys.executable]
    return subprocess.Popen(
        [*launch, str(ROOT / "tests" / "run" / "data" / "shard_files.py")],
        env=os.environ | {"SHARD_TRAINING": repr(arguments), "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def test_killed_at_any_moment_and_resumed_elsewhere_it_ends_in_the_same_bits(
    s3: tuple[str, str], folder: Path, tmp_path: Path, digest: str
) -> None:
    run, told = tmp_path / "run", tmp_path / "digest"
    first = {"dataset": bucket(s3, tmp_path, "tar"), "workers": 2, "pause_s": 0.1}
    process = start(1, folder=str(run), **first)
    while not [*run.glob("snapshots/step-*")]:
        assert process.poll() is None, process.communicate()[1].decode()
        time.sleep(0.02)
    time.sleep(random.SystemRandom().uniform(0.0, 1.0))
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not told.exists()
    second = {"dataset": dataset(folder, tmp_path, "tar", "flaky://"), "told": str(told)}
    process = start(2, folder=str(run), **second)
    errors = process.communicate(timeout=120)[1].decode()
    assert process.returncode == 0, errors
    assert told.read_text() == digest
