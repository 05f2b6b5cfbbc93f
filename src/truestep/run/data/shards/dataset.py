"""A sharded dataset: an index finds its sample by arithmetic, whatever shard it is in.

Owns what users pass and what the loader asks for. Leaves files to `opened`, the order to `windows`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from truestep.base import rng
from truestep.errors import UsageError
from truestep.run.data.permutation import Indices
from truestep.run.data.shards.cache import Cache
from truestep.run.data.shards.counting import find_shards
from truestep.run.data.shards.index import describe
from truestep.run.data.shards.opened import OpenShards
from truestep.run.data.shards.patience import ShardCache
from truestep.run.data.shards.urls import Urls
from truestep.run.data.shards.windows import Windows

Decode = Callable[[dict[str, Any]], Any]


class Shards:
    """A dataset in many files, on this machine or wherever fsspec reaches.

    `urls` are names or a pattern: `data/train-*.tar`, `s3://bucket/train-{0000..0099}.parquet`. A sample is a
    dictionary: of a tar file (WebDataset) the bytes of each member by its ending, and `__key__`; of a
    Parquet or Arrow file a row. `decode` makes of it what training needs, with the seed of its lane.

    Shuffled, shards come in random order, and samples in random order inside a window of `window` shards; a
    process keeps no more than that open. `index` is the file that `write_index` wrote. `cache` sets where
    fetched shards are kept, `storage` is what fsspec needs to get in.
    """

    def __init__(
        self,
        urls: Urls,
        *,
        index: str | Path,
        window: int = 16,
        decode: Decode | None = None,
        cache: ShardCache | None = None,
        storage: Mapping[str, Any] | None = None,
    ) -> None:
        _check(window, decode, cache)
        kept = Cache(cache or ShardCache(), storage or {})
        with rng.kept_generators():  # bits: as in the cache
            self.shards = find_shards(urls, index, cache=kept)
        counts = [shard.num_samples for shard in self.shards]
        self._starts: Indices = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        self._window = window
        self._decode = decode
        self._open = OpenShards(kept, limit=window + 1)
        self.content_id = describe(self.shards, window=window)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        places = np.asarray(indices, dtype=np.int64)
        if len(places) and not 0 <= int(places.min()) <= int(places.max()) < len(self):
            raise IndexError(
                f"there are {len(self)} samples, got the indices {places.min()} to {places.max()}"
            )
        numbers = np.searchsorted(self._starts, places, side="right") - 1
        within = (places - self._starts[numbers]).tolist()
        decode, opened = self._decode, self._open.samples()
        found = []
        try:
            for number, place in zip(numbers.tolist(), within, strict=True):
                samples = opened.get(number)
                if samples is None:
                    samples = self._open.open(number, self.shards[number])
                sample = samples.read(place)
                found.append(sample if decode is None else decode(sample))
        except Exception as error:
            error.add_note(f"while reading sample {place} of {self.shards[number].url}")
            raise
        return found

    def epoch_order(self, *, seed: int, epoch: int) -> Callable[[Indices], Indices]:
        """Return what finds the samples at positions of a shuffled epoch; the loader asks for it."""
        return Windows(self._starts, window=self._window, seed=seed, epoch=epoch).locate


def _check(window: object, decode: object, cache: object) -> None:
    if not isinstance(window, int) or window < 1:
        raise UsageError(f"window must be a number of shards from 1 on, got {window!r}. Pass for example 16.")
    if decode is not None and not callable(decode):
        raise UsageError(f"decode must be callable, got {decode!r}. Pass a function of one sample.")
    if cache is not None and not isinstance(cache, ShardCache):
        raise UsageError(f"cache must be a ShardCache, got {cache!r}. Pass ShardCache(folder={cache!r}).")
