"""Shards that are missing, cut short, altered, slow or far away: tried again, named, skipped only by name."""

import errno
import json
import multiprocessing
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import truestep as ts
from tests.run.data import shard_files
from tests.run.data.shard_files import KINDS, NUM_SHARDS, Flaky, rows_of, shards_of
from truestep.errors import DifferentRun, ShardUnreadable, UsageError
from truestep.run.data.shards import write_index
from truestep.run.data.shards.cache import Cache


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return shard_files.write_all(tmp_path / "shards")


@pytest.fixture
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Flaky, "failing", 0.0)
    monkeypatch.setattr(Flaky, "slow", 0.0)


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 600)


DAMAGES = {
    "missing": (Path.unlink, "is missing"),
    "cut": (cut, r"has [\d,]+ bytes where the index lists [\d,]+"),
    "flipped": (flip, "has other bytes than the index lists"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("place", ["", "flaky://"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("calm")
def test_a_damaged_shard_is_named_with_what_is_wrong_and_what_to_do(
    folder: Path, tmp_path: Path, kind: str, place: str, damage: str
) -> None:
    index = tmp_path / "index.json"
    write_index(f"{folder}/part-*.{kind}", index)
    spoil, message = DAMAGES[damage]
    spoil(folder / f"part-01.{kind}")
    urls, cache = f"{place}{folder}/part-*.{kind}", tmp_path / "cache"
    dataset = shards_of(urls, cache, index=index, decode=None, num_tries=3)
    assert dataset[0] == rows_of(0)[0]
    advice = rf"Repair it, or leave 'part-01.{kind}' out of the names"
    with pytest.raises(
        ShardUnreadable, match=rf"part-01.{kind} {message}.* tried 3 times in .* s\. {advice}"
    ):
        dataset[17]
    rest = f"{place}{folder}/part-{{02..05}}.{kind}"
    assert shards_of(rest, cache, index=index, decode=None)[0] == rows_of(2)[0]


def test_a_shard_that_comes_back_in_time_is_not_noticed(folder: Path, tmp_path: Path) -> None:
    index = tmp_path / "index.json"
    write_index(f"{folder}/part-*.tar", index)
    settings = ts.ShardCache(folder=tmp_path / "cache", num_tries=20, pause_s=0.01)
    dataset = ts.Shards(f"{folder}/part-*.tar", index=index, cache=settings)
    (folder / "part-00.tar").rename(folder / "away")
    back = f"sleep 0.3; mv {folder / 'away'} {folder / 'part-00.tar'}"
    process = subprocess.Popen(["/bin/sh", "-c", back])
    assert dataset[0] == rows_of(0)[0]
    assert process.wait() == 0


def test_fetching_leaves_the_generators_alone(folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    expected = torch.rand(1).item(), random.random(), np.random.rand()
    torch.manual_seed(0), random.seed(0), np.random.seed(0)
    index = tmp_path / "index.json"
    write_index(f"{folder}/part-*.tar", index)
    dataset = shards_of(f"flaky://{folder}/part-*.tar", tmp_path / "cache", index=index, decode=None)
    assert dataset[0] == rows_of(0)[0]
    assert (torch.rand(1).item(), random.random(), np.random.rand()) == expected


def read_all(urls: str, index: Path, cache: Path, answers: Any) -> None:
    dataset = shards_of(urls, cache, index=index, decode=None)
    rows = [dataset[number] for number in range(len(dataset))]
    answers.put((Flaky.num_requests, rows == [row for shard in range(NUM_SHARDS) for row in rows_of(shard)]))


@pytest.mark.usefixtures("calm")
def test_processes_of_a_machine_fetch_a_shard_once(folder: Path, tmp_path: Path) -> None:
    index = tmp_path / "index.json"
    write_index(f"{folder}/part-*.parquet", index)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    before = Flaky.num_requests
    arguments = (f"flaky://{folder}/part-*.parquet", index, tmp_path / "cache", answers)
    processes = [context.Process(target=read_all, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert all(is_right for _, is_right in found)
    assert sum(num_requests - before for num_requests, _ in found) == NUM_SHARDS


@pytest.mark.usefixtures("calm")
def test_who_waited_for_a_shard_gets_it_though_another_keeps_it_open(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "index.json"
    write_index(f"{folder}/part-*.parquet", index)
    datasets = [
        shards_of(f"flaky://{folder}/part-*.parquet", tmp_path / "cache", index=index, decode=None)
        for _ in range(3)
    ]
    monkeypatch.setattr(Flaky, "slow", 1.0)
    monkeypatch.setattr(Flaky, "slow_s", 0.3)
    before = Flaky.num_requests
    found: list[Any] = []
    together, looked = threading.Barrier(3), threading.local()
    is_ready = Cache._is_ready

    def look(self: Cache, *arguments: Any) -> bool:
        answer = is_ready(self, *arguments)
        if not vars(looked):  # all three find that it is not here, and only then go on
            looked.once = True
            together.wait(timeout=20)
        return answer

    monkeypatch.setattr(Cache, "_is_ready", look)
    threads = [
        threading.Thread(target=lambda each=each: found.append(each[0]), daemon=True) for each in datasets
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    assert found == [rows_of(0)[0]] * 3
    assert Flaky.num_requests == before + 1


def hold_lock_until_killed(urls: str, index: Path, cache: Path, answers: Any) -> None:
    Flaky.slow, Flaky.slow_s = 1.0, 60.0
    answers.put(None)
    read_all(urls, index, cache, answers)


@pytest.mark.usefixtures("calm")
def test_a_process_killed_while_it_fetches_leaves_nothing_that_blocks(folder: Path, tmp_path: Path) -> None:
    index = tmp_path / "index.json"
    write_index(f"{folder}/part-*.tar", index)
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    arguments = (f"flaky://{folder}/part-*.tar", index, tmp_path / "cache", answers)
    process = context.Process(target=hold_lock_until_killed, args=arguments)
    process.start()
    answers.get(timeout=60)
    time.sleep(0.2)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert shards_of(arguments[0], tmp_path / "cache", index=index, decode=None)[0] == rows_of(0)[0]


@pytest.mark.usefixtures("calm")
def test_the_cache_stays_within_its_bytes_and_keeps_what_is_open(folder: Path, tmp_path: Path) -> None:
    index = tmp_path / "index.json"
    shards = write_index(f"{folder}/part-*.tar", index)
    max_bytes = sum(shard.num_bytes for shard in shards[3:]) + 3000
    settings = ts.ShardCache(folder=tmp_path / "cache", max_bytes=max_bytes)
    dataset = ts.Shards(f"flaky://{folder}/part-*.tar", index=index, cache=settings, window=1)
    for number in range(len(dataset)):
        dataset[number]

    def kept() -> set[str]:
        return {path.name.split("-", 1)[1] for path in (tmp_path / "cache").glob("*.raw")}

    assert kept() == {"part-03.tar.raw", "part-04.tar.raw", "part-05.tar.raw"}
    assert {path.suffix for path in (tmp_path / "cache").iterdir()} == {".raw", ".offsets", ".lock"}
    assert len([*(tmp_path / "cache").glob("*.lock")]) == 3 + 1
    narrow = ts.ShardCache(folder=tmp_path / "cache", max_bytes=0)
    others = ts.Shards(f"flaky://{folder}/part-*.tar", index=index, cache=narrow, window=1)
    before = Flaky.num_requests
    others[0], others[17], others[0], others[17], dataset[-1 + len(dataset)]
    assert Flaky.num_requests == before + 2
    assert kept() == {f"part-0{shard}.tar.raw" for shard in (0, 1, 4, 5)}


def test_a_changed_file_is_looked_at_again(folder: Path, tmp_path: Path) -> None:
    index = tmp_path / "index.json"
    write_index(f"{folder}/part-*.arrow", index)
    assert shards_of(f"{folder}/part-*.arrow", tmp_path / "cache", index=index)[0]
    flip(folder / "part-00.arrow")
    with pytest.raises(ShardUnreadable, match="has other bytes"):
        shards_of(f"{folder}/part-*.arrow", tmp_path / "cache", index=index, num_tries=2)[0]


def test_a_cached_shard_that_was_cut_short_is_fetched_again(folder: Path, tmp_path: Path, calm: None) -> None:
    index = tmp_path / "index.json"
    write_index(f"{folder}/part-*.tar", index)
    urls = f"flaky://{folder}/part-*.tar"
    shards_of(urls, tmp_path / "cache", index=index)[0]
    (kept,) = (tmp_path / "cache").glob("*.raw")
    os.truncate(kept, 1000)
    assert shards_of(urls, tmp_path / "cache", index=index, decode=None)[0] == rows_of(0)[0]


def test_a_resumed_run_has_to_have_the_same_shards(folder: Path, tmp_path: Path) -> None:
    index = tmp_path / "index.json"
    write_index(f"{folder}/part-*.tar", index)
    dataset = {"urls": f"{folder}/part-*.tar", "cache": tmp_path / "cache", "index": index}
    shard_files.train(str(tmp_path / "run"), dataset, num_steps=4)
    (folder / "part-02.tar").unlink()
    with pytest.raises(ShardUnreadable, match=r"part-02.tar is missing"):
        shard_files.train(str(tmp_path / "run"), {**dataset, "num_tries": 2})
    with pytest.raises(DifferentRun, match=r"content: 6 tar shards .* when saved, 4 tar shards"):
        shard_files.train(str(tmp_path / "run"), {**dataset, "urls": f"{folder}/part-{{00..03}}.tar"})


def test_a_pipe_in_the_place_of_a_shard_holds_nobody(tmp_path: Path) -> None:
    for kind in KINDS:
        os.mkfifo(tmp_path / f"0.{kind}")
        with pytest.raises(ShardUnreadable, match=rf"0.{kind} is not a regular file"):
            shards_of(str(tmp_path / f"0.{kind}"), tmp_path / "cache", num_tries=1)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
@pytest.mark.usefixtures("calm")
def test_a_disk_without_room_is_no_reason_to_leave_a_shard_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    index = tmp_path / "index.json"
    write_index(f"{folder}/part-*.tar", index)
    dataset = shards_of(f"flaky://{folder}/part-*.tar", tmp_path / "cache", index=index, num_tries=2)
    monkeypatch.setattr(Flaky, "get_file", fail)
    with pytest.raises(ShardUnreadable, match=r"could not be kept on this machine .*Make room") as caught:
        dataset[0]
    assert "leave" not in str(caught.value)


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Path]]:
    folder = tmp_path_factory.mktemp("s3")
    files = shard_files.write_all(folder / "shards")
    with shard_files.s3_server(folder / "log") as address:
        yield address, shard_files.upload(address, sorted(files.iterdir())), files


def test_a_bucket_is_read_like_a_folder(s3: tuple[str, str, Path], tmp_path: Path) -> None:
    address, bucket, _ = s3
    storage = shard_files.storage_of(address)
    write_index(f"{bucket}/part-*.tar", f"{bucket}/index.json", storage=storage)
    options = {"decode": None, "storage": storage, "cache": ts.ShardCache(folder=tmp_path)}
    everything = [row for shard in range(NUM_SHARDS) for row in rows_of(shard)]
    indexed = ts.Shards(f"{bucket}/part-*.tar", index=f"{bucket}/index.json", **options)
    assert [indexed[number] for number in range(len(indexed))] == everything
    quick = ts.ShardCache(folder=tmp_path, num_tries=2, pause_s=0.01)
    with pytest.raises(ShardUnreadable, match=rf"{bucket}/none.tar is missing.*leave 'none.tar' out"):
        write_index([f"{bucket}/none.tar"], tmp_path / "index.json", storage=storage, cache=quick)


@pytest.mark.parametrize("made", ["pipe", "device"])
def test_an_index_that_never_ends_is_refused_at_once(folder: Path, tmp_path: Path, made: str) -> None:
    index = tmp_path / "index.json"
    if made == "pipe":
        os.mkfifo(index)
    else:
        index.symlink_to("/dev/zero")
    with pytest.raises(ShardUnreadable, match="not a regular file"):
        shards_of(f"{folder}/part-*.tar", tmp_path / "cache", index=index)


@pytest.mark.parametrize("checksum", ["\ud800", "ab", "A" * 32, 7])
def test_a_checksum_that_is_none_is_told(folder: Path, tmp_path: Path, checksum: object) -> None:
    index = tmp_path / "index.json"
    write_index(f"{folder}/part-*.tar", index)
    content = json.loads(index.read_text())
    content["shards"][0]["checksum"] = checksum
    index.write_text(json.dumps(content))
    with pytest.raises(UsageError, match="is not an index of shards"):
        shards_of(f"{folder}/part-*.tar", tmp_path / "cache", index=index)
