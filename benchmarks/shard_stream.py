"""Claims: shards train to one digest wherever they lie, stream at 0.9 of the bare reader, in flat memory.

Real runs, real SIGKILL, moto's S3 server on 127.0.0.1, files of which 5 % of requests fail and 5 % are slow.
Memory: 10^8 samples take what 10^3 take. About 15 minutes on a busy machine; --parts runs some of it.
"""

import argparse
import io
import json
import os
import random
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from measure import Claim, Sheet, fact, interleave, report, spread
from virtual_shards import NUM_STEPS, SIZES

PARTS = ("digests", "throughput", "memory", "order")
TRUESTEP = str(Path(sysconfig.get_path("scripts")) / "truestep")
MAX_TIME = 1 / 0.9
NUM_SHARDS = 16
BATCH = 256
MAX_MORE_US = 10.0
"""Small rows of bytes: pyarrow turns whole columns into Python in C, a shuffled stream picks row by row.
That costs some microseconds a row, whatever is in it; for rows this small it is more than a tenth."""


class Content(NamedTuple):
    """What the samples of the throughput part hold: bytes or numbers, so many of them, in so many samples."""

    name: str
    kinds: tuple[str, ...]
    length: int
    per_shard: int
    is_tokens: bool = False


CONTENTS = (
    Content("4 KB of bytes", ("tar", "webdataset", "parquet", "arrow"), 4_000, 512),
    Content("100 KB of bytes", ("tar", "webdataset", "parquet", "arrow"), 100_000, 128),
    Content("1,024 tokens", ("parquet", "arrow"), 1_024, 512, True),
)


class Scene(NamedTuple):
    """One way to train on the same samples."""

    place: str
    kind: str
    processes: int = 1
    workers: int = 0
    is_killed: bool = False


SCENES = [
    Scene("local", "tar"),
    Scene("local", "parquet", workers=2),
    Scene("local", "arrow", 2),
    Scene("S3", "tar"),
    Scene("S3", "parquet", 2, 2),
    Scene("S3", "tar", 3),
    Scene("S3", "arrow", 4),
    Scene("local", "tar", 4, 2),
    Scene("5 % failing, 5 % slow", "tar", 1, 2),
    Scene("5 % failing, 5 % slow", "parquet", 3),
    Scene("S3", "tar", 2, 0, True),
    Scene("S3", "parquet", 1, 2, True),
    Scene("5 % failing, 5 % slow", "tar", 2, 2, True),
]


def start(scene: Scene, arguments: dict[str, Any], log: Path) -> "subprocess.Popen[bytes]":
    script = Path(__file__).parents[1] / "tests" / "data" / "shard_files.py"
    environment = os.environ | {
        "SHARD_TRAINING": repr(arguments),
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    command = [TRUESTEP, "run", "-n", str(scene.processes), str(script)]
    with log.open("ab") as file:
        return subprocess.Popen(command, env=environment, stdout=file, stderr=file, start_new_session=True)


def play(scene: Scene, dataset: dict[str, Any], root: Path) -> tuple[str, int]:
    """Train to the end, through kills at random moments; return the digest and how often it was killed."""
    root.mkdir()
    told, log, num_kills = root / "digest", root / "log", 0
    arguments = {
        "folder": str(root / "run"),
        "dataset": {**dataset, "cache": str(root / "cache")},
        "workers": scene.workers,
        "pause_s": 0.1 if scene.is_killed else 0.0,
        "told": str(told),
    }
    while not told.exists():
        process = start(scene, arguments, log)
        if scene.is_killed and num_kills < 2:
            wanted = num_kills + 1
            while process.poll() is None and len([*(root / "run" / "snapshots").glob("step-*")]) < wanted:
                time.sleep(0.02)
            time.sleep(random.uniform(0.0, 0.7))
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                num_kills += 1
        if process.wait() and not scene.is_killed:
            raise SystemExit(f"{scene} failed:\n{log.read_text()}")
    return told.read_text(), num_kills


def measure_digests(root: Path) -> tuple[list[Sheet], list[Claim]]:
    from tests.data import shard_files
    from truestep.data.shards import write_index

    folder = shard_files.write_all(root / "data")
    for kind in shard_files.KINDS:
        write_index(f"{folder}/part-*.{kind}", folder / f"{kind}.json")
    rows, digests = [], set()
    with shard_files.s3_server(root / "s3.log") as address:
        bucket = shard_files.upload(address, sorted(folder.iterdir()))
        bases: dict[str, tuple[str, dict[str, Any]]] = {
            "local": (str(folder), {}),
            "S3": (bucket, {"storage": shard_files.storage_of(address), "timeout_s": 30.0}),
            "5 % failing, 5 % slow": (f"flaky://{folder}", {}),
        }
        for number, scene in enumerate(SCENES):
            base, options = bases[scene.place]
            dataset = {"urls": f"{base}/part-*.{scene.kind}", "index": f"{base}/{scene.kind}.json", **options}
            begun_s = time.perf_counter()
            digest, num_kills = play(scene, dataset, root / f"scene{number}")
            digests.add(digest)
            names = ("data", "format", "processes", "workers", "kills", "seconds", "digest")
            took_s = time.perf_counter() - begun_s
            values = (
                *scene[:2],
                str(scene.processes),
                str(scene.workers),
                str(num_kills),
                f"{took_s:.0f}",
                digest,
            )
            rows.append(dict(zip(names, values, strict=True)))
    sheet = Sheet(
        title="A training run on the same samples", rows=rows, note="truestep run -n; lanes=4, 20 steps"
    )
    return [sheet], [fact(f"one digest for {len(SCENES)} ways to read the samples", len(digests) == 1)]


def write_shards(folder: Path, content: Content) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    made = np.random.default_rng(0)
    for shard in range(NUM_SHARDS):
        rows = [
            {
                "__key__": f"{shard:03}{place:05}",
                "x": made.integers(0, 50_000, content.length, dtype=np.int32)
                if content.is_tokens
                else made.bytes(content.length),
                "y": str(place).encode(),
            }
            for place in range(content.per_shard)
        ]
        if "tar" in content.kinds:
            with tarfile.open(folder / f"part-{shard:03}.tar", "w") as file:
                for row in rows:
                    for ending in ("x", "y"):
                        member = tarfile.TarInfo(f"{row['__key__']}.{ending}")
                        member.size = len(row[ending])
                        file.addfile(member, io.BytesIO(row[ending]))
        table = pa.Table.from_pylist(rows)
        pa.parquet.write_table(table, folder / f"part-{shard:03}.parquet")
        with pa.ipc.new_stream(str(folder / f"part-{shard:03}.arrow"), table.schema) as writer:
            writer.write_table(table, max_chunksize=1000)


def bare_tar(path: Path) -> Iterator[dict[str, Any]]:
    sample: dict[str, Any] = {}
    with tarfile.open(path, "r|") as file:
        for member in file:
            content = file.extractfile(member)
            key, _, ending = member.name.partition(".")
            if sample and sample["__key__"] != key:
                yield sample
                sample = {}
            assert content is not None
            sample["__key__"], sample[ending] = key, content.read()
    yield sample


def bare_webdataset(path: Path) -> Iterator[dict[str, Any]]:
    import webdataset

    yield from webdataset.WebDataset(str(path), shardshuffle=False, empty_check=False)


def bare_parquet(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet

    for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=256):
        yield from batch.to_pylist()


def bare_arrow(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow as pa

    with pa.memory_map(str(path)) as source:
        for batch in pa.ipc.open_stream(source):
            yield from batch.to_pylist()


KIND_OF = {"webdataset": "tar"}
BARE = {"tar": bare_tar, "webdataset": bare_webdataset, "parquet": bare_parquet, "arrow": bare_arrow}


def time_bare(folder: Path, name: str) -> float:
    """Return microseconds per sample, from shard to shard in their order, gathered into batches."""
    begun_s, count = time.perf_counter(), 0
    batch: list[Any] = []
    held: list[Any] = []  # as in a loop that trains: one batch is used while the next is read
    for path in sorted(folder.glob(f"*.{KIND_OF.get(name, name)}")):
        for sample in BARE[name](path):
            batch.append(sample)
            count += 1
            if len(batch) == BATCH:
                held, batch = batch, []
    assert held
    return (time.perf_counter() - begun_s) / count * 1e6


def as_they_are(samples: list[Any]) -> list[Any]:
    return samples


def time_stream(folder: Path, kind: str, cache: Path) -> float:
    """Return microseconds per sample of a shuffled epoch through the loader."""
    import truestep as ts
    from truestep.data import DeliveryPlan

    begun_s, count = time.perf_counter(), 0
    dataset = ts.Shards(
        f"{folder}/part-*.{kind}", index=folder / f"{kind}.json", cache=ts.ShardCache(folder=cache)
    )
    plan = DeliveryPlan(
        seed=1,
        num_lanes=4,
        lanes=range(4),
        first_step=0,
        first_epoch=0,
        cursor=0,
        num_epochs=1,
        num_steps=None,
    )
    for batch in ts.Loader(dataset, batch_size=BATCH, collate=as_they_are).feed(plan):
        count += sum(lane.num_samples for lane in batch.lanes)
    return (time.perf_counter() - begun_s) / count * 1e6


def compare(folder: Path, content: Content, name: str, seconds: float) -> tuple[dict[str, Any], Claim]:
    """Read the same shards by the bare reader and as a stream, in turns."""
    kind = KIND_OF.get(name, name)
    first_us = min(time_stream(folder, kind, folder / f"first{name}{turn}") for turn in range(3))
    turns: dict[str, Callable[[], float]] = {
        "bare": lambda: time_bare(folder, name),
        "stream": lambda: time_stream(folder, kind, folder / f"first{name}0"),
    }
    taken = interleave(turns, seconds=seconds, min_rounds=7)
    pairs = [*zip(taken["stream"], taken["bare"], strict=True)]
    ratios = spread([stream / bare for stream, bare in pairs])
    more = spread([stream - bare for stream, bare in pairs])
    bare_us = spread(taken["bare"]).median
    row = {
        "sample": content.name,
        "bare reader": name,
        "bare/s": 1e6 / bare_us,
        "stream/s": 1e6 / spread(taken["stream"]).median,
        "speed": 1 / ratios.median,
        "low quartile": 1 / ratios.high,
        "high quartile": 1 / ratios.low,
        "more, us": more.median,
        "first epoch": bare_us / first_us,
    }
    if kind != "tar" and content is CONTENTS[0]:
        text = f"{name}, {content.name}: what a row takes longer than bare (below 0.9: see the table)"
        return row, Claim(text=text, found=more.median, limit=MAX_MORE_US, error=more.error, unit="us")
    text = f"{name}, {content.name}: time of the stream, to the bare reader"
    return row, Claim(text=text, found=ratios.median, limit=MAX_TIME, error=ratios.error)


def measure_throughput(root: Path, seconds: float) -> tuple[list[Sheet], list[Claim]]:
    from truestep.data.shards import write_index

    rows, claims = [], []
    for number, content in enumerate(CONTENTS):
        folder = root / f"content{number}"
        folder.mkdir()
        write_shards(folder, content)
        for name in content.kinds:
            kind = KIND_OF.get(name, name)
            write_index(f"{folder}/part-*.{kind}", folder / f"{kind}.json")
            if _is_there(name):
                row, claim = compare(folder, content, name, seconds)
                rows.append(row)
                claims.append(claim)
    note = "speed: shuffled stream to bare sequential reader. First epoch: shards are checked and prepared"
    return [Sheet(title="Samples per second, one process", rows=rows, note=note, num_digits=2)], claims


def _is_there(name: str) -> bool:
    if name != "webdataset":
        return True
    try:
        import webdataset  # noqa: F401
    except ImportError:
        return False
    return True


def measure_memory(root: Path) -> tuple[list[Sheet], list[Claim]]:
    rows, peaks = [], {}
    script = str(Path(__file__).with_name("virtual_shards.py"))
    for num_shards, per_shard in SIZES:
        command = [sys.executable, script, str(num_shards), str(per_shard), str(root / f"v{num_shards}")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        facts = json.loads(done.stdout)
        peaks[num_shards] = facts["peak_mib"]
        samples = f"{num_shards * per_shard:.0e}"
        rows.append({"": "measured", "samples": samples, "shards": f"{num_shards:,}", **facts})
    (few, _), _, (many, _), (most, _) = SIZES
    per_shard_mib = (peaks[most] - peaks[many]) / (most - many)
    for num_shards in (10**6, 10**7):
        peak_mib = peaks[most] + per_shard_mib * (num_shards - most)
        rows.append({"": "computed", "samples": "1e+12", "shards": f"{num_shards:,}", "peak_mib": peak_mib})
    claim = Claim(
        text="peak memory at 10^8 samples in 10^4 shards, to 10^3 in 10",
        found=peaks[many] / peaks[few],
        limit=1.1,
    )
    note = f"{NUM_STEPS} steps of 32 from the middle of an epoch; shards made up by a file system"
    return [Sheet(title="Memory (MiB)", rows=_even(rows), note=note)], [claim]


def _even(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: row.get(name) for name in rows[0]} for row in rows]


def measure_order() -> tuple[list[Sheet], list[Claim]]:
    from truestep.data.shards.windows import Windows

    num_shards, size = 2_000, 500
    starts = np.arange(num_shards + 1, dtype=np.int64) * size
    n = int(starts[-1])
    rows, is_whole = [], True
    for window in (1, 4, 16, 64, num_shards):
        first, second = (
            Windows(starts, window=window, seed=7, epoch=epoch).locate(np.arange(n)) for epoch in (0, 1)
        )
        is_whole &= all(np.bincount(order, minlength=n).max() == 1 for order in (first, second))
        shards = first // size
        batches = shards[: n // 256 * 256].reshape(-1, 256)
        rows.append(
            {
                "window": str(window),
                "mean displacement / n": float(np.abs(first - np.arange(n)).mean() / n),
                "neighbours of one shard": float((shards[1:] == shards[:-1]).mean()),
                "shards in a batch of 256": float(
                    np.mean([len(set(batch)) for batch in batches[:500].tolist()])
                ),
                "places unchanged in the next epoch": float((first == second).mean()),
            }
        )
    note = f"{num_shards:,} shards of {size} samples; the last row is a full shuffle"
    sheet = Sheet(title="Order", rows=rows, note=note, num_digits=4)
    return [sheet], [fact("every sample comes once in every epoch", is_whole)]


def main() -> int:
    """Measure, print, and tell whether the claims hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--seconds", type=float, default=15.0, help="for each reader and size")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    sheets: list[Sheet] = []
    claims: list[Claim] = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        measures: dict[str, Callable[[], tuple[list[Sheet], list[Claim]]]] = {
            "digests": lambda: measure_digests(root),
            "throughput": lambda: measure_throughput(root, arguments.seconds),
            "memory": lambda: measure_memory(root),
            "order": measure_order,
        }
        for part in arguments.parts.split(","):
            more, also = measures[part]()
            sheets += more
            claims += also
    return report("shard_stream", sheets=sheets, claims=claims, as_json=arguments.json)


if __name__ == "__main__":
    sys.exit(main())
