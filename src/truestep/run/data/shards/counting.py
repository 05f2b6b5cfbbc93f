"""Which shards there are, and how many samples each has: from an index, or by looking at all of them.

Owns making an index. Leaves its format to `index`, reading samples to `opened`.
"""

import hashlib
import shutil
import stat
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from truestep.base import arrow
from truestep.run.data.shards import remote
from truestep.run.data.shards.cache import Cache, checksum_of, count_rows, find_samples
from truestep.run.data.shards.index import Shard, from_json, leave_out, look_up, to_json
from truestep.run.data.shards.lock import Lock
from truestep.run.data.shards.patience import Damaged, ShardCache, persist
from truestep.run.data.shards.urls import Urls, fill_in, kind_of, local_path, match_names, write_out

_AT_ONCE = 8

Storage = Mapping[str, Any]


def write_index(
    urls: Urls, path: str | Path, *, storage: Storage | None = None, cache: ShardCache | None = None
) -> list[Shard]:
    """Read every shard once and write an index with counts, sizes and checksums; return what it says.

    The index may lie beside the shards: names in it are relative, so both can move together.
    """
    settings, storage = cache or ShardCache(), storage or {}
    names = _list(write_out(urls), settings, storage)
    with tempfile.TemporaryDirectory() as folder:
        shards = _measure_all(names, Path(folder), settings, storage, is_thorough=True)
    remote.write_text(str(path), to_json(shards), storage=storage, timeout_s=settings.timeout_s)
    return shards


def find_shards(
    urls: Urls, index: str | Path | None, *, skip: Sequence[str], cache: Cache
) -> tuple[list[Shard], list[str]]:
    """Return the shards of a dataset, and the names of those that are skipped."""
    settings, storage = cache.settings, cache.storage
    names = write_out(urls)
    if index is None:
        names, skipped = leave_out(_list(names, settings, storage), skip)
        return _count(names, cache), skipped
    source = str(index)
    text = persist(
        lambda: remote.read_text(source, storage=storage, timeout_s=settings.timeout_s),
        url=source,
        settings=settings,
        advice="Write it with truestep.run.data.shards.write_index(urls, path).",
    )
    entries = from_json(text, source=source)
    # A pattern means what the index has: a shard that has gone missing is noticed, not passed over.
    names, skipped = leave_out(fill_in(names, lambda pattern: match_names(pattern, entries)), skip)
    return look_up(names, entries, source=source), skipped


def _list(names: list[str], settings: ShardCache, storage: Storage) -> list[str]:
    def listing(pattern: str) -> list[str]:
        ask = lambda: remote.match(pattern, storage=storage, timeout_s=settings.timeout_s)  # noqa: E731
        advice = "Check the name, and what is needed to get in; a long list may need a larger timeout_s."
        return persist(ask, url=pattern, settings=settings, advice=advice)

    return fill_in(names, listing)


def _count(names: Sequence[str], cache: Cache) -> list[Shard]:
    """Return the shards of an index that is made at the first use and kept with the shards."""
    settings, storage = cache.settings, cache.storage

    def identify(url: str) -> tuple[int, str]:
        ask = lambda: remote.identify(url, storage=storage, timeout_s=settings.timeout_s)  # noqa: E731
        return persist(ask, url=url, settings=settings)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        facts = list(pool.map(identify, names))
    hashed = hashlib.blake2b(repr([*zip(names, facts, strict=True)]).encode(), digest_size=12).hexdigest()
    kept = cache.folder / f"index-{hashed}.json"
    with Lock(cache.folder / f"index-{hashed}.lock"):
        if not kept.is_file():
            _warn_of_cost(names)
            with _room(cache.folder / f"index-{hashed}.counting") as folder:
                shards = _measure_all(names, folder, settings, storage, is_thorough=False)
                part = folder / "index"
                part.write_text(to_json(shards))
                part.replace(kept)
        return look_up(names, from_json(kept.read_text(), source=str(kept)), source=str(kept))


@contextmanager
def _room(place: Path) -> Iterator[Path]:
    """Give a new folder at a fixed place, so that what a killed process left there is found and removed."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(exist_ok=True)
    try:
        # A name that no count had before: a try that was given up may still write into its folder.
        yield Path(tempfile.mkdtemp(dir=place))
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _warn_of_cost(names: Sequence[str]) -> None:
    whole = [url for url in names if local_path(url) is None and kind_of(url) != "parquet"]
    if whole:
        warnings.warn(
            f"{len(whole)} shards have no index: each is fetched once now to count its samples. Write one"
            " with truestep.run.data.shards.write_index(urls, path) and pass index=path.",
            stacklevel=2,
        )


def _measure_all(
    names: Sequence[str], folder: Path, settings: ShardCache, storage: Storage, *, is_thorough: bool
) -> list[Shard]:
    def measure(numbered: tuple[int, str]) -> Shard:
        number, url = numbered
        tries = count(1)

        def attempt() -> Shard:
            # A name that no try had before: one that was given up may still write into its file.
            part = folder / f"{number}-{next(tries)}"
            try:
                return _measure(url, part, settings, storage, is_thorough=is_thorough)
            finally:
                part.unlink(missing_ok=True)

        return persist(attempt, url=url, settings=settings)

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(measure, enumerate(names)))


def _measure(url: str, part: Path, settings: ShardCache, storage: Storage, *, is_thorough: bool) -> Shard:
    kind, path, timeout_s = kind_of(url), local_path(url), settings.timeout_s
    if path is None and kind == "parquet" and not is_thorough:
        num_bytes, _ = remote.identify(url, storage=storage, timeout_s=timeout_s)
        num_rows = remote.count_parquet(url, storage=storage, timeout_s=timeout_s)
        return Shard(url=url, num_samples=num_rows, num_bytes=num_bytes, checksum=None)
    if path is None:
        remote.fetch(url, part, storage=storage, timeout_s=timeout_s)
    here = path or part
    if not stat.S_ISREG(here.stat().st_mode):  # whoever opens a pipe waits for its other end
        raise Damaged("is not a regular file")
    return Shard(
        url=url,
        num_samples=_count_samples(here, kind),
        num_bytes=here.stat().st_size,
        checksum=checksum_of(here) if is_thorough or path is None else None,
    )


def _count_samples(path: Path, kind: str) -> int:
    """Return the number of samples of a file on this machine; headers and footers are read, no contents."""
    if kind == "parquet":
        return arrow.count_parquet(str(path))
    return count_rows(path) if kind == "arrow" else len(find_samples(path)) - 1
