"""A sharded dataset: an index finds its sample by arithmetic, whatever shard it is in.

Owns what users pass and what the loader asks for. Leaves files to `opened`, the order to `windows`.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from truestep.base import rng
from truestep.errors import UsageError
from truestep.run.data.permutation import Indices
from truestep.run.data.shards.ahead import Ahead
from truestep.run.data.shards.cache import Cache
from truestep.run.data.shards.counting import find_shards
from truestep.run.data.shards.index import describe
from truestep.run.data.shards.opened import OpenShards, Samples
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
    process keeps no more than that open. `index` is the file that `write_index` wrote. `skip` names shards to
    skip; the recipe of a run records them. `cache` sets where fetched shards are kept, `storage` is what
    fsspec needs to get in.
    """

    def __init__(
        self,
        urls: Urls,
        *,
        index: str | Path | None = None,
        window: int = 16,
        decode: Decode | None = None,
        skip: Iterable[str] = (),
        cache: ShardCache | None = None,
        storage: Mapping[str, Any] | None = None,
    ) -> None:
        _check(window, decode, skip, cache)
        kept = Cache(cache or ShardCache(), storage or {})
        with rng.kept_generators():  # bits: as in the cache
            self.shards, self.skipped = find_shards(urls, index, skip=list(skip), cache=kept)
        counts = [shard.num_samples for shard in self.shards]
        self._starts: Indices = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
        self._window = window
        self._decode = decode
        self._open = OpenShards(kept, limit=window + 1)
        self._ahead = Ahead(kept)
        self._order: Windows | None = None
        self.content_id = describe(self.shards, skipped=self.skipped, window=window)

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
                    samples = self._opened(number)
                sample = samples.read(place)
                found.append(sample if decode is None else decode(sample))
        except Exception as error:
            error.add_note(f"while reading sample {place} of {self.shards[number].url}")
            raise
        return found

    def epoch_order(self, *, seed: int, epoch: int) -> Callable[[Indices], Indices]:
        """Return what finds the samples at positions of a shuffled epoch; the loader asks for it."""
        self._order = Windows(self._starts, window=self._window, seed=seed, epoch=epoch)
        return self._order.locate

    def _opened(self, number: int) -> Samples:
        samples = self._open.open(number, self.shards[number])
        if self._order is not None:
            these, following = self._order.around(number)
            self._ahead.begin(
                [self.shards[each] for each in following], during=[self.shards[each] for each in these]
            )
        return samples


def _check(window: object, decode: object, skip: object, cache: object) -> None:
    if not isinstance(window, int) or window < 1:
        raise UsageError(f"window must be a number of shards from 1 on, got {window!r}. Pass for example 16.")
    if decode is not None and not callable(decode):
        raise UsageError(f"decode must be callable, got {decode!r}. Pass a function of one sample.")
    if isinstance(skip, str):
        raise UsageError(f"skip must be a list of names, got the string {skip!r}. Pass [{skip!r}].")
    if cache is not None and not isinstance(cache, ShardCache):
        raise UsageError(f"cache must be a ShardCache, got {cache!r}. Pass ShardCache(folder={cache!r}).")
