"""Which shards there are, and how many samples each has.

Owns making an index. Leaves its format to `index`, reading samples to `opened`.
"""

import stat
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from truestep.base import arrow
from truestep.run.data.shards import remote
from truestep.run.data.shards.cache import Cache, checksum_of, count_rows, find_samples
from truestep.run.data.shards.index import Shard, from_json, look_up, to_json
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

    def listing(pattern: str) -> list[str]:
        advice = "Check the name, and what is needed to get in."
        return persist(
            lambda: remote.match(pattern, storage=storage), url=pattern, settings=settings, advice=advice
        )

    names = fill_in(write_out(urls), listing)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(_AT_ONCE) as pool:

        def measure(numbered: tuple[int, str]) -> Shard:
            part = Path(folder) / str(numbered[0])
            return persist(lambda: _measure(numbered[1], part, storage), url=numbered[1], settings=settings)

        shards = list(pool.map(measure, enumerate(names)))
    remote.write_text(str(path), to_json(shards), storage=storage)
    return shards


def find_shards(urls: Urls, index: str | Path, *, cache: Cache) -> list[Shard]:
    """Return the shards of a dataset."""
    source = str(index)
    text = persist(
        lambda: remote.read_text(source, storage=cache.storage),
        url=source,
        settings=cache.settings,
        advice="Write it with truestep.run.data.shards.write_index(urls, path).",
    )
    entries = from_json(text, source=source)
    # A pattern means what the index has: a shard that has gone missing is noticed, not passed over.
    names = fill_in(write_out(urls), lambda pattern: match_names(pattern, entries))
    return look_up(names, entries, source=source)


def _measure(url: str, part: Path, storage: Storage) -> Shard:
    kind, path = kind_of(url), local_path(url)
    if path is None:
        remote.fetch(url, part, storage=storage)
    here = path or part
    if not stat.S_ISREG(here.stat().st_mode):  # whoever opens a pipe waits for its other end
        raise Damaged("is not a regular file")
    shard = Shard(
        url=url,
        num_samples=_count_samples(here, kind),
        num_bytes=here.stat().st_size,
        checksum=checksum_of(here),
    )
    part.unlink(missing_ok=True)
    return shard


def _count_samples(path: Path, kind: str) -> int:
    """Return the number of samples of a file on this machine; headers and footers are read, no contents."""
    if kind == "parquet":
        return arrow.count_parquet(str(path))
    return count_rows(path) if kind == "arrow" else len(find_samples(path)) - 1
