"""Sharded datasets: the same samples in every format, an order of their own, and an index."""

import json
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import truestep as ts
from tests.run.data import shard_files
from tests.run.data.datasets import plan_of, seen
from tests.run.data.shard_files import KINDS, NUM_SHARDS, rows_of, shards_of
from truestep.errors import UsageError
from truestep.run.data.shards import Shard, tar, write_index
from truestep.run.data.shards.urls import match_names
from truestep.run.data.shards.windows import Windows

NUM_SAMPLES = sum(17 + shard for shard in range(NUM_SHARDS))
ALL_ROWS = [row for shard in range(NUM_SHARDS) for row in rows_of(shard)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shard_files.write_all(tmp_path_factory.mktemp("shards"))


@pytest.mark.parametrize("kind", KINDS)
def test_samples_come_in_the_order_of_the_names_whatever_the_format(
    folder: Path, tmp_path: Path, kind: str
) -> None:
    dataset = shards_of(f"{folder}/part-*.{kind}", tmp_path, decode=None)
    assert len(dataset) == NUM_SAMPLES
    assert [dataset[index] for index in range(NUM_SAMPLES)] == ALL_ROWS
    with pytest.raises(IndexError, match="there are 117 samples"):
        dataset[NUM_SAMPLES]


def test_names_are_a_list_a_range_or_a_pattern(folder: Path, tmp_path: Path) -> None:
    pattern = f"{folder}/part-*.tar"
    names = [folder / f"part-{shard:02}.tar" for shard in range(NUM_SHARDS)]
    for urls in (names, f"{folder}/part-{{00..05}}.tar", f"file://{pattern}"):
        assert shards_of(urls, tmp_path).content_id == shards_of(pattern, tmp_path).content_id


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_any_form_of_tar_is_read_as_the_standard_library_reads_it(tmp_path: Path, form: int) -> None:
    path = tmp_path / "one.tar"
    long = "folder/" * 20
    rows = [
        {"__key__": "short", "txt": b"", "seg.png": b"1" * 511},
        {"__key__": f"{long}name", "txt": b"2" * 512, "seg.png": b"3" * 513},
        {"__key__": "grün", "txt": b"4" * 2000, "seg.png": b"5"},
    ]
    shard_files.write_tar(path, rows, format=form)
    with tarfile.open(path, "a", format=form) as file:
        folder = tarfile.TarInfo("empty")
        folder.type = tarfile.DIRTYPE
        file.addfile(folder)
        file.addfile(tarfile.TarInfo("no_ending"))
        file.addfile(tarfile.TarInfo("__meta__/info.json"))
        file.addfile(tarfile.TarInfo("last.TXT"))
    dataset = shards_of(str(path), tmp_path / "cache", decode=None)
    assert [dataset[index] for index in range(len(dataset))] == [*rows, {"__key__": "last", "txt": b""}]


def test_numbers_of_a_row_are_arrays_of_their_own(tmp_path: Path) -> None:
    rows = [{"tokens": [1, 2, 3], "name": "a", "boxes": [[1.0]]}, {"tokens": [], "name": None, "boxes": []}]
    types = {"tokens": pa.list_(pa.int32()), "name": pa.string(), "boxes": pa.list_(pa.list_(pa.float32()))}
    table = pa.Table.from_pylist(rows, schema=pa.schema(types))
    pa.parquet.write_table(table, tmp_path / "rows.parquet")
    first, second = shards_of(str(tmp_path / "rows.parquet"), tmp_path / "cache", decode=None)
    assert first["tokens"].dtype == np.int32 and first["tokens"].tolist() == [1, 2, 3]
    assert first["tokens"].flags.writeable
    assert second["tokens"].tolist() == []
    assert (first["name"], first["boxes"], second["name"]) == ("a", [[1.0]], None)


@pytest.mark.parametrize("kind", KINDS)
def test_batches_do_not_depend_on_format_or_workers_or_where_they_begin(
    folder: Path, tmp_path: Path, kind: str
) -> None:
    reference = ts.Loader(shards_of(f"{folder}/part-*.tar", tmp_path), batch_size=16)
    expected = [seen(batch) for batch in reference.feed(plan_of(18))]
    for workers in (0, 2):
        loader = ts.Loader(shards_of(f"{folder}/part-*.{kind}", tmp_path), batch_size=16, workers=workers)
        assert [seen(batch) for batch in loader.feed(plan_of(18))] == expected
        resumed = loader.feed(plan_of(18, cursor=11))
        assert [seen(batch) for batch in resumed] == expected[11:]


def key_of(sample: dict[str, Any]) -> str:
    return str(sample["__key__"])


def test_a_loader_reads_window_after_window_if_it_shuffles(folder: Path, tmp_path: Path) -> None:
    dataset = shards_of(f"{folder}/part-*.tar", tmp_path, decode=key_of)

    def keys(**options: Any) -> list[str]:
        feed = ts.Loader(dataset, batch_size=16, **options).feed(plan_of(num_epochs=2))
        return [key for batch in feed for lane in batch.lanes for key in lane.data]

    expected = []
    for epoch in range(2):
        order = dataset.epoch_order(seed=7, epoch=epoch)(np.arange(NUM_SAMPLES)).tolist()
        expected += [ALL_ROWS[index]["__key__"] for index in order]
    assert keys() == expected
    assert keys(shuffle=False) == 2 * [row["__key__"] for row in ALL_ROWS]


def starts_of(counts: Any) -> Any:
    return np.concatenate(([0], np.cumsum(np.asarray(counts, dtype=np.int64))))


@pytest.mark.parametrize("window", [1, 2, 3, 16])
def test_every_sample_comes_once_an_epoch_and_window_after_window(window: int) -> None:
    counts = [5, 0, 17, 300, 1, 0, 42, 9, 9, 64]
    starts = starts_of(counts)
    shard_of = np.repeat(np.arange(len(counts)), counts)
    for epoch in range(3):
        order = Windows(starts, window=window, seed=7, epoch=epoch)
        indices = order.locate(np.arange(starts[-1]))
        assert sorted(indices.tolist()) == list(range(starts[-1]))
        shards = list(dict.fromkeys(shard_of[indices].tolist()))
        # A shard is done with when the next window begins: at any time no more than a window is needed.
        last_use = {shard: place for place, shard in enumerate(shard_of[indices].tolist())}
        first_use = {shard: place for place, shard in reversed([*enumerate(shard_of[indices].tolist())])}
        for place in range(0, len(indices), 7):
            assert sum(first_use[each] <= place <= last_use[each] for each in shards) <= window


def test_epochs_and_seeds_differ_and_places_do_not_depend_on_each_other() -> None:
    starts = starts_of([50] * 40)
    orders = {
        (seed, epoch): Windows(starts, window=4, seed=seed, epoch=epoch).locate(np.arange(2000))
        for seed in (1, 2)
        for epoch in (0, 1)
    }
    distinct = {tuple(order.tolist()) for order in orders.values()}
    assert len(distinct) == 4
    alone = [Windows(starts, window=4, seed=1, epoch=0).locate(np.array([at]))[0] for at in range(1990, 2000)]
    assert alone == orders[1, 0][1990:].tolist()


def test_the_order_of_a_seed_stays_what_it_is() -> None:
    # A change here is another order for the same seed: raise windows.VERSION.
    order = Windows(starts_of([3, 4, 5, 2]), window=2, seed=7, epoch=1).locate(np.arange(14))
    assert order.tolist() == [9, 0, 8, 11, 2, 7, 10, 1, 4, 5, 13, 3, 6, 12]


def test_the_shuffle_is_as_good_as_its_window_says() -> None:
    num_shards, size, window = 400, 100, 20
    starts = starts_of([size] * num_shards)
    n = num_shards * size
    order = Windows(starts, window=window, seed=3, epoch=0).locate(np.arange(n))
    displacement = np.abs(order - np.arange(n)).mean() / n
    assert abs(displacement - 1 / 3) < 0.05  # as of a full shuffle, since shards go anywhere
    in_window = order.reshape(-1, window * size)
    # Neighbours come from one shard as often as chance has it among those of the window.
    same = (in_window[:, 1:] // size == in_window[:, :-1] // size).mean()
    assert abs(same - 1 / window) < 0.005
    places = np.abs(np.argsort(in_window, axis=1) - np.arange(window * size)).mean() / (window * size)
    assert abs(places - 1 / 3) < 0.01


def test_an_index_moves_with_its_data(folder: Path, tmp_path: Path) -> None:
    made = write_index(f"{folder}/part-*.tar", tmp_path / "index.json")
    text = json.loads((tmp_path / "index.json").read_text())
    assert (text["format"], text["version"]) == ("truestep shards", 1)
    assert text["shards"][0]["name"] == "part-00.tar"
    assert made[0].checksum is not None and made[0].num_samples == 17
    moved = shard_files.write_all(tmp_path / "elsewhere")
    here = shards_of(f"{folder}/part-*.tar", tmp_path / "cache", index=tmp_path / "index.json")
    there = shards_of(f"{moved}/part-*.tar", tmp_path / "cache", index=tmp_path / "index.json")
    assert here.content_id == there.content_id
    assert isinstance(here.shards[0], Shard)


def test_shards_of_one_name_in_two_folders_keep_their_own_entries(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    names = [tmp_path / "0.tar", tmp_path / "sub" / "0.tar"]
    for number, path in enumerate(names):
        shard_files.write_tar(path, rows_of(number))
    write_index(names, tmp_path / "index.json")
    dataset = shards_of(names, tmp_path / "cache", index=tmp_path / "index.json", decode=None)
    assert [shard.num_samples for shard in dataset.shards] == [17, 18]
    assert dataset[17] == rows_of(1)[0]


@pytest.mark.parametrize(
    ("pattern", "names", "found"),
    [
        ("/d/*.tar", ["0.tar", "sub/1.tar"], ["/d/0.tar"]),
        ("/d/sub/*.tar", ["0.tar", "sub/1.tar", "other/2.tar"], ["/d/sub/1.tar"]),
        ("/d/*/*.tar", ["0.tar", "sub/1.tar", "other/2.tar"], ["/d/sub/1.tar", "/d/other/2.tar"]),
        ("/d/*/1.tar", ["0.tar", "1.tar"], []),
        (
            "s3://bucket/a/[01].tar",
            ["0.tar", "1.tar", "2.tar"],
            ["s3://bucket/a/0.tar", "s3://bucket/a/1.tar"],
        ),
        ("/d/*.tar", ["/d/0.tar", "s3://bucket/0.tar"], ["/d/0.tar"]),
    ],
)
def test_a_pattern_means_the_same_in_an_index_as_in_a_folder(
    pattern: str, names: list[str], found: list[str]
) -> None:
    assert match_names(pattern, names) == found


def test_what_changes_the_order_changes_what_the_recipe_says(folder: Path, tmp_path: Path) -> None:
    def recipe(urls: str = f"{folder}/part-*.tar", **options: Any) -> Any:
        dataset = shards_of(urls, tmp_path, **options)
        return ts.Loader(dataset, batch_size=16).recipe()["content"]

    fewer = f"{folder}/part-{{00..04}}.tar"
    assert len({recipe(), recipe(window=3), recipe(fewer)}) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"urls": "/nowhere/*.tar"}, "no shard matches '/nowhere/\\*.tar'"),
        ({"urls": []}, "there are no shards"),
        ({"urls": "/a.tar.gz"}, r"ends in .tar, .parquet, .arrow, got '/a.tar.gz'"),
        ({"urls": "/a-{03..01}.tar"}, r"the range \{03..01\} of '/a-\{03..01\}.tar' is empty"),
        ({"urls": ["/a.tar", "/a.tar"]}, "'/a.tar' is named twice"),
        ({"urls": "nothing://a.tar"}, "nothing://a.tar cannot be opened: Protocol not known: nothing"),
        ({"window": 0}, "window must be a number of shards from 1 on, got 0"),
        ({"decode": 3}, "decode must be callable, got 3"),
    ],
)
def test_what_cannot_be_meant_is_told(
    folder: Path, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        shards_of(**{"urls": f"{folder}/part-*.tar", "cache": tmp_path, **options})


def test_settings_that_cannot_be_meant_are_told(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"Pass ShardCache\(folder='folder'\)"):
        ts.Shards(f"{folder}/part-*.tar", index="i.json", cache="folder")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="num_tries from 1 on"):
        ts.ShardCache(num_tries=0)


def test_an_index_that_does_not_fit_is_told(folder: Path, tmp_path: Path) -> None:
    write_index(f"{folder}/part-00.tar", tmp_path / "index.json")
    with pytest.raises(UsageError, match=r"1 of 2 shards are not in .*index.json: .*part-01.tar"):
        shards_of(f"{folder}/part-{{00..01}}.tar", tmp_path / "cache", index=tmp_path / "index.json")
    (tmp_path / "other.json").write_text('{"format": "mine"}')
    with pytest.raises(UsageError, match="is not an index of shards, version 1"):
        shards_of(f"{folder}/part-*.tar", tmp_path / "cache", index=tmp_path / "other.json")


def test_shards_are_split_by_their_names(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="Split the list of urls, and make a dataset of each part"):
        ts.split(shards_of(f"{folder}/part-*.tar", tmp_path), [0.5, 0.5], seed=1)


def broken(sample: dict[str, Any]) -> Any:
    raise KeyError(sample["__key__"])


def test_what_fails_in_decode_names_sample_and_shard(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyError) as caught:
        shards_of(f"{folder}/part-*.tar", tmp_path, decode=broken)[20]
    assert caught.value.__notes__ == [f"while reading sample 3 of {folder}/part-01.tar"]


def test_a_copy_for_a_worker_opens_its_own_files(folder: Path, tmp_path: Path) -> None:
    dataset = shards_of(f"{folder}/part-*.tar", tmp_path, decode=None)
    first = dataset[0]
    assert pickle.loads(pickle.dumps(dataset))[0] == first


def test_two_members_of_one_ending_are_told() -> None:
    def read(at: int, size: int) -> bytes:
        return content[at : at + size]

    member = tarfile.TarInfo("a.txt")
    content = member.tobuf() + member.tobuf()
    with pytest.raises(ValueError, match=r"the sample 'a' has two members that end in \.txt"):
        tar.find_samples(read, num_bytes=len(content))
    content = member.tobuf() + b"x" * 512
    with pytest.raises(ValueError, match="there is no tar header at byte 512"):
        tar.find_samples(read, num_bytes=len(content))


def pax(records: bytes, *, size: bytes | None = None) -> bytes:
    """A pax header and its records, as one block each; the size may be said otherwise than it is."""
    member = tarfile.TarInfo("pax")
    member.type, member.size = tarfile.XHDTYPE, len(records)
    header = bytearray(member.tobuf())
    if size is not None:
        header[124:136] = size.ljust(12, b"\0")
        header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:]) + 8 * ord(" "))
    return bytes(header) + records.ljust(512, b"\0")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pax(b"0 a=b\n"), "a pax record claims to have 0 of 6 bytes"),
        (pax(b"-7 a=b\n"), "a pax record claims to have -7 of 7 bytes"),
        (pax(b"99 a=b\n"), "a pax record claims to have 99 of 7 bytes"),
        (pax(b"12 size=-99\n") + tarfile.TarInfo("a.txt").tobuf(), "the negative number -99"),
        (pax(b"6 a=b\n", size=b"-1000"), "the negative number -512"),
    ],
)
def test_a_tar_that_leads_in_a_circle_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tar.find_samples(lambda at, size: content[at : at + size], num_bytes=len(content))


@pytest.mark.parametrize("num_bytes", [2048, 2000, 1024])
def test_a_tar_cut_short_while_it_is_open_gives_no_half_of_a_sample(tmp_path: Path, num_bytes: int) -> None:
    path = tmp_path / "0.tar"
    rows = [{"__key__": "a", "x": b"1"}, {"__key__": "b", "x": b"2", "y": b"3"}]
    shard_files.write_tar(path, rows)
    dataset = shards_of(str(path), tmp_path / "cache", decode=None)
    assert dataset[0] == rows[0]
    os.truncate(path, num_bytes)
    with pytest.raises(ValueError, match=f"it ends after {num_bytes:,} bytes, in the middle of a sample"):
        dataset[1]


def test_no_more_than_a_window_and_one_is_open(folder: Path, tmp_path: Path) -> None:
    dataset = shards_of(f"{folder}/part-*.tar", tmp_path, decode=None)
    for index in range(len(dataset)):
        dataset[index]
    assert len(dataset._open.samples()) == 3
