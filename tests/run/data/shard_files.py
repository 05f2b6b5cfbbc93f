"""Shards for tests: the same samples in every format, places that fail, and a run that trains on them."""

import io
import os
import random
import socket
import subprocess
import sys
import tarfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet
import torch
import torch.nn.functional as F
from fsspec.implementations.local import LocalFileSystem
from torch import nn
from torch.optim import AdamW

import truestep as ts
from truestep.run.data.shards import write_index

KINDS = ("tar", "parquet", "arrow")
NUM_SHARDS = 6


def rows_of(shard: int) -> list[dict[str, Any]]:
    """The samples of one shard: 17 in the first, one more in each that follows."""
    made = np.random.default_rng(shard)
    rows = []
    for place in range(17 + shard):
        x = made.standard_normal(6).astype(np.float32).tobytes()
        rows.append({"__key__": f"{shard:02}/{place:04}", "x": x, "y": str(place % 3).encode()})
    return rows


def write_tar(path: Path, rows: list[dict[str, Any]], **options: Any) -> None:
    with tarfile.open(path, "w", **options) as file:
        for row in rows:
            for ending in [name for name in row if name != "__key__"]:
                member = tarfile.TarInfo(f"{row['__key__']}.{ending}")
                member.size = len(row[ending])
                file.addfile(member, io.BytesIO(row[ending]))


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)


def write_arrow(path: Path, rows: list[dict[str, Any]], *, is_stream: bool = False) -> None:
    table = pa.Table.from_pylist(rows)
    make = pyarrow.ipc.new_stream if is_stream else pyarrow.ipc.new_file
    with make(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=6)


def write_all(folder: Path) -> Path:
    """Write all shards in all formats, half of the Arrow ones as streams; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard in range(NUM_SHARDS):
        rows = rows_of(shard)
        write_tar(folder / f"part-{shard:02}.tar", rows)
        write_parquet(folder / f"part-{shard:02}.parquet", rows)
        write_arrow(folder / f"part-{shard:02}.arrow", rows, is_stream=shard % 2 == 0)
    return folder


def decode(sample: dict[str, Any]) -> tuple[torch.Tensor, int]:
    """A sample for training, with noise from the lane's generators."""
    x = torch.frombuffer(bytearray(sample["x"]), dtype=torch.float32)
    return x + 0.1 * torch.rand(6) * random.random() + 0.1 * np.random.rand(), int(sample["y"])


class Flaky(LocalFileSystem):
    """Files of this machine behind requests of which some fail, and some are slow."""

    protocol = "flaky"
    failing = 0.05
    slow = 0.05
    slow_s = 0.3
    num_requests = 0
    chance = random.SystemRandom()

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return LocalFileSystem._strip_protocol(str(path).removeprefix("flaky://"))

    def unstrip_protocol(self, name: str) -> str:
        return f"flaky://{self._strip_protocol(name)}"

    def disturb(self) -> None:
        type(self).num_requests += 1
        torch.rand(1), random.random(), np.random.rand()  # as libraries do between their tries
        if self.chance.random() < self.failing:
            raise OSError("the connection was reset")
        if self.chance.random() < self.slow:
            time.sleep(self.slow_s)

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        self.disturb()
        return super().info(path, **options)

    def get_file(self, path: str, to: str, callback: Any = None, **options: Any) -> None:
        self.disturb()
        super().get_file(path, to, **options)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        self.disturb()
        return super()._open(path, mode, **options)


fsspec.register_implementation("flaky", Flaky, clobber=True)


@contextmanager
def s3_server(log: Path) -> Iterator[str]:
    """Start moto's S3 server on a free port of this machine; give its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"{address}/moto-api/", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None, log.read_text()
                time.sleep(0.1)
        yield address
    finally:
        process.kill()
        process.wait()


def storage_of(address: str) -> dict[str, Any]:
    return {"key": "test", "secret": "test", "endpoint_url": address}


def upload(address: str, files: list[Path], bucket: str = "bucket") -> str:
    """Put files into a bucket of the server; return its name."""
    system = fsspec.filesystem("s3", **storage_of(address))
    system.mkdir(bucket)
    for file in files:
        system.put_file(str(file), f"{bucket}/{file.name}")
    return f"s3://{bucket}"


def shards_of(
    urls: Any, cache: Path, num_tries: int = 8, index: str | Path | None = None, **options: Any
) -> ts.Shards:
    """The dataset of the tests: a window of two shards, little patience, and an index if it has none."""
    settings = ts.ShardCache(folder=cache, num_tries=num_tries, pause_s=0.01)
    if index is None:
        index = Path(f"{cache}.json")
        write_index(urls, index, cache=settings)
    return ts.Shards(urls, **{"index": index, "window": 2, "decode": decode, "cache": settings, **options})


def train(
    folder: str,
    dataset: dict[str, Any],
    *,
    workers: int = 0,
    num_steps: int = 20,
    pause_s: float = 0.0,
    told: str | None = None,
) -> str:
    """Train on shards, through more than two epochs; return the digest of all that was trained."""
    with ts.Run(
        folder,
        seed=1,
        lanes=4,
        threads=1,
        progress=False,
        snapshots=ts.Snapshots(every_steps=4),
    ) as run:
        loader = ts.Loader(shards_of(**dataset), batch_size=16, workers=workers)
        net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3))
        model = run.place(net)
        optimizer = AdamW(model.parameters(), lr=1e-2)
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(loader, steps=num_steps):
            for x, y in step:
                step.backward(F.cross_entropy(model(x), y))
            step.update(optimizer, clip_norm=1.0)
            time.sleep(pause_s)
        digest = ts.digest_state({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    if told is not None and run.is_first:
        Path(told).write_text(digest)
    return digest


if __name__ == "__main__":
    # What `truestep run` starts: the arguments of `train` as Python.
    train(**eval(os.environ["SHARD_TRAINING"]))
