"""Shards that are made up when they are fetched, and a process that reads some: for shard_stream.py."""

import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import fsspec
from fsspec import AbstractFileSystem

SIZES = ((10, 100), (100, 10_000), (10_000, 10_000), (100_000, 1_000))
"""Numbers of shards, and of samples in each."""
NUM_STEPS = 300


class Virtual(AbstractFileSystem):
    """Tar files of samples of eight bytes, written as they are fetched."""

    protocol = "virtual"
    per_shard = 0

    def get_file(self, path: str, to: str, **_: Any) -> None:
        shard = int(Path(path).stem)
        with Path(to).open("wb") as file:
            for place in range(self.per_shard):
                member = tarfile.TarInfo(f"{shard:06}{place:08}.x")
                member.size = 8
                file.write(member.tobuf(tarfile.USTAR_FORMAT))
                file.write((shard * self.per_shard + place).to_bytes(8, "little").ljust(512, b"\0"))
            file.write(bytes(1024))


def decode(sample: dict[str, Any]) -> int:
    return int.from_bytes(sample["x"], "little")


def read_virtual(num_shards: int, per_shard: int, folder: Path) -> dict[str, float]:
    """Read some steps in the middle of an epoch; return the peak of memory and seconds to the first batch."""
    import time

    import truestep as ts
    from truestep.data import DeliveryPlan
    from truestep.memory import process_peak_bytes

    folder.mkdir(parents=True)
    Virtual.per_shard = per_shard
    fsspec.register_implementation("virtual", Virtual)
    num_bytes = per_shard * 1024 + 1024
    shards = [
        {"name": f"{shard:06}.tar", "samples": per_shard, "bytes": num_bytes, "checksum": None}
        for shard in range(num_shards)
    ]
    index = {"format": "truestep shards", "version": 1, "shards": shards}
    (folder / "index.json").write_text(json.dumps(index))
    before_mib = process_peak_bytes() / 2**20
    begun_s = time.perf_counter()
    dataset = ts.Shards(
        "virtual://*.tar",
        index=folder / "index.json",
        window=8,
        decode=decode,
        cache=ts.ShardCache(folder=folder / "cache"),
    )
    middle = max(0, len(dataset) // 64)
    plan = DeliveryPlan(
        seed=1,
        num_lanes=4,
        lanes=range(4),
        first_step=0,
        first_epoch=0,
        cursor=middle,
        num_epochs=None,
        num_steps=middle + NUM_STEPS,
    )
    feed = ts.Loader(dataset, batch_size=32).feed(plan)
    next(feed)
    first_s = time.perf_counter() - begun_s
    assert sum(1 for _ in feed) == NUM_STEPS - 1
    return {
        "before": before_mib,
        "peak_mib": process_peak_bytes() / 2**20,
        "seconds to the first batch": first_s,
    }


if __name__ == "__main__":
    print(json.dumps(read_virtual(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))))
