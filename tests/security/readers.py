"""Every reader of files: a good folder to begin with, how it is spoilt, and the call that reads it.

Owns what counts as fine: an answer, or an error of truestep's own.
"""

import contextlib
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pyarrow
import torch
from pyarrow import ipc, parquet
from rich.console import Console
from torch import nn
from torch.utils.data import TensorDataset

import truestep as ts
from tests.security import mutations
from truestep import record, watch
from truestep.base import plainfile
from truestep.errors import TruestepError
from truestep.run.checkpoint import Snapshot, Store
from truestep.run.checkpoint import snapshot as snapshots
from truestep.run.data.shards import write_index
from truestep.run.data.shards.urls import KINDS
from truestep.verify import against, chains, fingerprint

_MAX_S = 20.0
"""An input that takes longer hangs its reader."""
_PLACE_SHARE = 0.03
"""Of inputs where no file is what it was: a folder, a link, a pipe."""


@dataclass(frozen=True, kw_only=True)
class Reader:
    """One reader. `spoil` says by pattern of names how a file is spoilt; `mend` seals what was spoilt."""

    name: str
    prepare: Callable[[Path], None]
    spoil: Mapping[str, mutations.Spoil]
    read: Callable[[Path], Any]
    mend: Callable[[Random, Path], None] | None = None
    is_apart: bool = False
    """Only the folder of the file that was spoilt is read: the others would take most of the time."""


class Hung(BaseException):
    """Raised in a reader that takes too long; no reader catches it."""


class Bench:
    """A folder with good files that are spoilt, read and put back, input after input."""

    def __init__(self, reader: Reader, folder: Path) -> None:
        self._reader, self._folder = reader, folder
        folder.mkdir(parents=True)
        reader.prepare(folder)
        self._good = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        self._targets = [
            (path, spoil)
            for pattern, spoil in reader.spoil.items()
            for path in sorted(folder.glob(pattern))
            if path.is_file()
        ]
        assert self._targets, f"{reader.name}: nothing to spoil"

    def read_good(self) -> None:
        """Read the files as they are; they must be readable."""
        for folder in sorted({self._place_of(path) for path, _ in self._targets}):
            self._reader.read(folder)
        self._put_back()

    def _place_of(self, path: Path) -> Path:
        return path.parent if self._reader.is_apart else self._folder

    def try_input(self, number: int, *, seed: int = 0) -> str:
        """Return 'read' or 'refused' for one input; any other error is the caller's to count."""
        rng = Random(f"{self._reader.name}-{seed}-{number}")
        path, spoil = rng.choice(self._targets)
        if rng.random() < _PLACE_SHARE:
            mutations.spoil_place(rng, path)
        else:
            path.write_bytes(spoil(rng, self._good[path]))
            if self._reader.mend is not None:
                self._reader.mend(rng, self._folder)
        try:
            with _time_limit():
                self._reader.read(self._place_of(path))
        except TruestepError:
            return "refused"
        finally:
            self._put_back()
        return "read"

    def _put_back(self) -> None:
        for path in sorted(self._folder.rglob("*"), reverse=True):
            if path in self._good and path.is_file() and not path.is_symlink():
                continue
            if path.is_dir() and not path.is_symlink():
                if not any(good.is_relative_to(path) and good != path for good in self._good):
                    shutil.rmtree(path)
            else:
                path.unlink()
        for path, data in self._good.items():
            if not path.exists() or path.read_bytes() != data:
                path.write_bytes(data)


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    def stop(_number: int, _frame: FrameType | None) -> None:
        raise Hung(f"no answer within {_MAX_S:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, _MAX_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _refuse(damages: list[Any]) -> None:
    """A damaged snapshot is passed over and told: that is the answer of its reader."""
    if damages:
        raise ts.errors.DamagedSnapshot(str(damages[0]))


# ---- snapshots


def _states() -> dict[str, Any]:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    odd = {"tuple": (1, 2.5, None), "bytes": b"\x00\x01", "size": torch.Size([2]), "dtype": torch.bfloat16}
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "odd": odd, 3: float("inf")}


def _save_snapshot(folder: Path) -> None:
    store = Store(folder / "snapshots", run_id="fuzz")
    store.save(Snapshot(cursor=8, states=_states(), facts={"recipe": {"seed": 7}, "lineage": []}))
    store.attach(8, "witness", value="ab12")


def _load_snapshot(folder: Path) -> None:
    store = Store(folder / "snapshots", run_id="fuzz")
    _, damages = store.load_newest()
    store.attached(8, "witness")
    _refuse(damages)


def _seal(rng: Random, folder: Path) -> None:
    """Who can write a manifest can seal it too: three times of four the seal fits what was spoilt."""
    if rng.random() < 0.25:
        return
    for path in [*folder.rglob("manifest.json"), *folder.rglob("*.witness.json")]:
        with contextlib.suppress(ValueError, RecursionError, LookupError, TypeError, OSError, AttributeError):
            body = json.loads(path.read_bytes())
            body.pop("sha256", None)
            for file in body.get("files", ()):
                data = plainfile.read_bytes(path.parent / file["name"])  # it may be /dev/zero by now
                file["bytes"], file["sha256"] = len(data), hashlib.sha256(data).hexdigest()
            path.write_bytes(snapshots.seal(body))


def _train(folder: Path) -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    data = TensorDataset(torch.ones(8, 2), torch.zeros(8, 1))
    with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # No more steps than it has: what is read is asked about, not what training writes.
        with ts.Run(folder / "run", seed=1, lanes=1) as run:
            run.track(model=model, optimizer=optimizer)
            for step in run.steps(ts.Loader(data, batch_size=4), epochs=2):
                for x, y in step:
                    step.backward(((model(x) - y) ** 2).mean())
                step.update(optimizer)


# ---- records


def _write_record(folder: Path) -> None:
    made = record.Record(folder / "record.jsonl")
    recipe = {"seed": 7, "lanes": 4, "optimizers": {"optimizer": ["AdamW", "fused=None"]}}
    facts = {"recipe": recipe, "fingerprint": {"torch": "2.13.0", "threads": 1}}
    start = {
        "version": 1,
        "run": "a1",
        "pid": os.getpid(),
        "pids": [os.getpid()],
        "host": "h",
        "argv": ["t.py"],
    }
    made.write("start", **start, cursor=0, processes=1, note="", settings={}, **facts)
    made.write("phase", first=0, end=8)
    made.write("steps", first=0, loss=[1.0, 0.5, 0.25, "nan"], end_us=[10, 20, 30, 40], wait_us=[1, 1, 1, 1])
    made.write("values", name="learning_rate", steps=[0, 1, 2], values=[0.1, 0.1, 0.2])
    made.write("evaluate", name="accuracy", cursor=4, value={"accuracy": 0.5, "each": [0.1, 0.9]})
    made.write("snapshot", cursor=4, held_s=0.01)
    made.write("damage", path="step-1", reason="torn")
    made.write("start", **start, cursor=3, processes=2, note="", settings={}, **facts)
    made.write("lineage", step=3, field="threads", then=1, now=2)
    made.write("steps", first=3, loss=[0.2], end_us=[15])
    finding = {"code": "LOOP01", "name": "stale-gradients", "severity": "error", "file": "t.py", "line": 3}
    told = {"message": "m", "evidence": "e", "cost": None, "fix": "f", "step": 1, "count": 2}
    made.write("check", script="t.py", findings=[{**finding, **told}], not_observed=["PAR01"], steps=4)
    runs = [
        {"kind": "again", "processes": 1, "digest": "ab", "num_steps": 4, "words": "again", "parted_at": None}
    ]
    made.write("verify", script="t.py", same=True, runs=runs, first_difference=None)
    trial = {"knob": "workers", "value": 2, "words": "2", "status": "pays", "reason": "", "memory": 1.0}
    ratio = {"median": 1.2, "low": 1.1, "high": 1.3}
    made.write("tune", script="t.py", trials=[{**trial, "found": {"ratio": ratio}}], settings={"workers": 2})
    made.write("end")
    made.close()


def _read_record(folder: Path) -> None:
    path = folder / "record.jsonl"
    if path.is_file():  # as every caller asks first
        list(record.read(path))
        record.read_steps(path)


def _write_report(folder: Path) -> None:
    from truestep.report.compose import write_report

    write_report(folder)


def _look_live(folder: Path) -> None:
    from truestep.report.export import export
    from truestep.report.live import Live
    from truestep.report.live.fields import as_fields
    from truestep.report.live.screen import draw

    live = Live(folder)
    live.poll()
    json.dumps(as_fields(live), allow_nan=False)
    Console(file=io.StringIO(), width=40, height=20, force_terminal=True).print(
        draw(live, width=40, height=20)
    )
    export(folder, "csv")


# ---- settings and small JSON files


def _write_settings(folder: Path) -> None:
    lines = ["# Written by truestep tune", "[settings]", "threads = 2", "workers = 1", 'precision = "bf16"']
    (folder / "truestep.toml").write_text("\n".join([*lines, "compile = false", ""]))


def _read_settings(folder: Path) -> None:
    from truestep.run.train import settings

    settings.read(folder / "truestep.toml")


def _write_project(folder: Path) -> None:
    lines = ["[tool.truestep.check]", 'select = ["LOOP"]', 'ignore = ["PAR01"]', 'rules = ["rules"]']
    (folder / "pyproject.toml").write_text("\n".join([*lines, ""]))


def _read_project(folder: Path) -> None:
    from truestep.check import read_settings

    if (folder / "pyproject.toml").is_file():
        read_settings(folder)


def _write_identity(folder: Path) -> None:
    (folder / "run.json").write_text(json.dumps({"format": "truestep-run", "version": 1, "id": "a1b2"}))


def _read_identity(folder: Path) -> None:
    from truestep.run.train.run import _identify

    _identify(folder)


# ---- shards


def _write_shards(folder: Path) -> None:
    for kind in KINDS:
        (folder / kind).mkdir()
    for number in range(2):
        with tarfile.open(folder / "tar" / f"{number}.tar", "w") as file:
            for key in ("0", "1", "é"):  # a name that takes a pax header
                member = tarfile.TarInfo(f"{key}.txt")
                member.size = 5
                file.addfile(member, io.BytesIO(b"words"))
    table = pyarrow.table({"row": list(range(6)), "words": ["words"] * 6})
    parquet.write_table(table, folder / "parquet" / "0.parquet")
    for name, make in (("0", ipc.new_file), ("1", ipc.new_stream)):
        with make(folder / "arrow" / f"{name}.arrow", table.schema) as writer:
            writer.write_table(table, max_chunksize=2)
    for kind in KINDS:
        write_index(str(folder / kind / f"*.{kind}"), folder / kind / "index.json")


@contextlib.contextmanager
def _told(shards: ts.Shards) -> Iterator[None]:
    """Text that is no UTF-8 is Python's own error, and fine where it names the shard."""
    try:
        yield
    except UnicodeDecodeError as error:
        if any(shard.url in note for shard in shards.shards for note in error.__notes__):
            raise TruestepError(str(error)) from error
        raise


def _read_shards(*, with_index: bool) -> Callable[[Path], None]:
    def read(folder: Path) -> None:
        with tempfile.TemporaryDirectory() as kept:
            cache = ts.ShardCache(folder=kept, num_tries=1, pause_s=0.0)
            index = folder / "index.json" if with_index else Path(kept) / "index.json"
            if not with_index:
                write_index(str(folder / f"*.{folder.name}"), index, cache=cache)
            shards = ts.Shards(str(folder / f"*.{folder.name}"), index=index, cache=cache)
            for sample in range(min(6, len(shards))):
                with _told(shards):
                    shards[sample]

    return read


# ---- evidence

_SCRIPT = """
import torch
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
"""


def _write_evidence(folder: Path) -> None:
    script = folder / "script.py"
    script.write_text(_SCRIPT)
    plan = watch.Plan(inspect=True, operations=(0, 1))
    words = watch.command(str(script), (), plan=plan, folder=folder)
    subprocess.run(words, check=True, stdout=sys.stderr)


def _read_evidence(folder: Path) -> None:
    for process in watch.read(folder):
        for operation in process.operations[:40]:
            if operation.outs:
                watch.values_of(process, operation)


_JSON, _LINES, _BYTES = mutations.spoil_json, mutations.spoil_lines, mutations.spoil_bytes
_TENSORS, _TOML = mutations.spoil_safetensors, mutations.spoil_toml
_SEALED = {"snapshots/*/manifest.json": _JSON, "snapshots/*.witness.json": _JSON}
_RUN = {"run/snapshots/*/manifest.json": _JSON, "run/snapshots/*.json": _JSON, "run/run.json": _JSON}


def _write_fingerprint(folder: Path) -> None:
    head = {"kind": "truestep-fingerprint", "version": 1, "script": "a.py", "arguments": [], "torch": "2"}
    sums = [1.0] * 9
    parts = {"loss": [["0x1.8p+0", "ab"]], "gradients": "cd", "weights": "ef", "sketch": {"gradients": sums}}
    row = ["aten.mm.default", "", "a.py", 3, "T, T", ["ab"], ["cd"], 1.0, 0.5, "float32"]
    lines = [
        {**head, "threads": 1, "machine": "x", "whole": True},
        *({"kind": "update", "step": step, "optimizer": 0, **parts} for step in range(3)),
        {"kind": "operation", "row": row},
    ]
    text = "\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
    (folder / "run.fingerprint").write_text(text)


def _judge_fingerprint(folder: Path) -> Any:
    saved = fingerprint.read(folder / "run.fingerprint")
    ours = [replace(update, parts={**update.parts, "weights": "x"}) for update in saved.updates]
    divergence = chains.diverge(ours, saved.updates, outcome=against.OUTCOME)
    found = against.split(saved.operations, saved.operations[1:])
    if divergence is None:
        return None
    return against.judge(ours, saved.updates, divergence=divergence, found=found, is_same_torch=True)


READERS = (
    Reader(name="manifest", prepare=_save_snapshot, spoil=_SEALED, read=_load_snapshot, mend=_seal),
    Reader(
        name="snapshot tensors",
        prepare=_save_snapshot,
        spoil={"snapshots/*/*.safetensors": _TENSORS},
        read=_load_snapshot,
        mend=_seal,
    ),
    Reader(name="resume", prepare=_train, spoil=_RUN, read=_train, mend=_seal),
    Reader(name="run.json", prepare=_write_identity, spoil={"run.json": _JSON}, read=_read_identity),
    Reader(name="record", prepare=_write_record, spoil={"record.jsonl": _LINES}, read=_read_record),
    Reader(name="report", prepare=_write_record, spoil={"record.jsonl": _LINES}, read=_write_report),
    Reader(name="watch and export", prepare=_write_record, spoil={"record.jsonl": _LINES}, read=_look_live),
    Reader(name="truestep.toml", prepare=_write_settings, spoil={"*.toml": _TOML}, read=_read_settings),
    Reader(name="pyproject.toml", prepare=_write_project, spoil={"*.toml": _TOML}, read=_read_project),
    Reader(
        name="fingerprint",
        prepare=_write_fingerprint,
        spoil={"*.fingerprint": _LINES},
        read=_judge_fingerprint,
    ),
    Reader(
        name="index of shards",
        prepare=_write_shards,
        spoil={"*/index.json": _JSON},
        read=_read_shards(with_index=True),
        is_apart=True,
    ),
    Reader(
        name="shards",
        prepare=_write_shards,
        spoil={"*/*.tar": _BYTES, "*/*.parquet": _BYTES, "*/*.arrow": _BYTES},
        read=_read_shards(with_index=False),
        is_apart=True,
    ),
    Reader(
        name="evidence",
        prepare=_write_evidence,
        spoil={"process-*.jsonl": _LINES, "process-*.values": _BYTES},
        read=_read_evidence,
    ),
)
