"""One snapshot folder: a sealed manifest and the tensor files it lists.

Owns the format (docs/snapshot-format.md) and what counts as damage. Leaves to `store` how a folder becomes
visible and how many there are.
"""

import hashlib
import json
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from truestep.base.plainfile import parse_json, read_bytes
from truestep.base.runfiles import sync_folder
from truestep.errors import DamagedSnapshot, StateError
from truestep.run.checkpoint import tensorfile
from truestep.run.checkpoint.chunks import Chunk, Files, Stored
from truestep.run.checkpoint.durable import Written, hash_file, write_file
from truestep.run.checkpoint.parts import Box, Target
from truestep.run.checkpoint.state import Json, Packed, pack, unpack

FORMAT = "truestep-snapshot"
VERSION = 2
"""The highest version that is read. One process's snapshots are written as version 1, which holds them."""
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 1 << 30
"""About 200 bytes are written for each tensor and each of its chunks."""
TENSORS = "tensors.safetensors"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Everything resume needs: the cursor, the tracked states by name, and facts about the run as JSON."""

    cursor: int
    states: dict[str, Any]
    facts: dict[str, Any]


def write(snapshot: Snapshot, folder: Path, *, run_id: str) -> None:
    """Write a snapshot of one process into an empty folder and flush all of it to the disk."""
    facts = plain_json(snapshot.facts, "facts")
    packed = pack(snapshot.states)
    if packed.parts:
        name = next(iter(packed.parts))
        raise StateError(
            f"{name} is spread over several processes, but this one saves alone. Give the store a crew of "
            f"them all, or gather the tensor (full_tensor())."
        )
    written = tensorfile.write(folder / TENSORS, packed.tensors)
    tensors: dict[str, Json] = {
        name: {"file": TENSORS, "shape": list(tensor.shape), "dtype": _dtype_name(tensor.dtype)}
        for name, tensor in packed.tensors.items()
    }
    manifest = _manifest(snapshot.cursor, facts, packed, run_id=run_id)
    files: list[Json] = [_file(TENSORS, written)]
    seal_folder(folder, {**manifest, "version": 1, "files": files, "tensors": tensors})


def manifest_of_parts(
    snapshot: Snapshot, packed: Packed, *, run_id: str, files: Mapping[str, Written], chunks: Sequence[Chunk]
) -> dict[str, Json]:
    """Return the manifest of a snapshot that several processes have written, for `seal_folder`.

    `packed` is the first process's: its structure counts, and its names must be those that were written.
    """
    lists: dict[str, list[Json]] = {name: [] for name in packed.tensors}
    for chunk in chunks:
        if chunk.name not in lists:
            raise StateError(f"{chunk.name} is in the state of another process, but not of the first one.")
        place: dict[str, Json] = {"offsets": list(chunk.box.offsets), "shape": list(chunk.box.sizes)}
        lists[chunk.name].append({"file": chunk.file, "name": chunk.name, **place})
    tensors: dict[str, Json] = {}
    for name, tensor in packed.tensors.items():
        part = packed.parts.get(name)
        shape = whole_shape(tensor, part.shape) if part else tuple(tensor.shape)
        if not lists[name]:
            raise StateError(f"{name} is in the first process's state, but none holds a part of it.")
        dtype = _dtype_name(tensor.dtype)
        tensors[name] = {"shape": list(shape), "dtype": dtype, "chunks": lists[name]}
    manifest = _manifest(snapshot.cursor, plain_json(snapshot.facts, "facts"), packed, run_id=run_id)
    listed: list[Json] = [_file(name, written) for name, written in files.items()]
    return {**manifest, "version": 2, "files": listed, "tensors": tensors}


def whole_shape(stored: torch.Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a whole tensor's shape on disk from a stored part: complex numbers have one dimension more."""
    return shape + tuple(stored.shape[len(shape) :])


def seal_folder(folder: Path, manifest: Mapping[str, Json]) -> None:
    """Write the manifest beside the tensor files that it lists, and flush it and the folder."""
    write_file(folder / MANIFEST, [seal(manifest)])
    sync_folder(folder)


def check(folder: Path, *, run_id: str, cursor: int, rank: int = 0, size: int = 1) -> dict[str, Any]:
    """Return a snapshot's manifest after checking the folder; raise DamagedSnapshot if it is bad.

    Every byte is checked, or with several processes every byte of this one's share of the files.
    """
    manifest = _read_manifest(folder, run_id=run_id, cursor=cursor)
    expected = {MANIFEST} | {file["name"] for file in manifest["files"]}
    found = set(os.listdir(folder))
    # A listed name that leads out of the folder ("../x") is never among the found ones: it counts as missing.
    if missing := sorted(expected - found):
        raise DamagedSnapshot(f"{', '.join(missing)} is missing")
    if strange := sorted(found - expected):
        raise DamagedSnapshot(f"holds {', '.join(strange)!r}, which is not part of it (it was not opened)")
    for number, file in enumerate(manifest["files"]):
        _check_file(folder / file["name"], file, with_hash=number % size == rank)
    return manifest


def build(folder: Path, manifest: Mapping[str, Any], *, target: Target | None = None) -> Snapshot:
    """Return the snapshot of a checked folder, its tensors whole or, where `target` says so, spread."""
    with Files(folder, [file["name"] for file in manifest["files"]]) as files:
        tensors = {name: _stored(name, entry, files) for name, entry in manifest["tensors"].items()}
        if not files.agree_with(tensors):
            raise DamagedSnapshot(f"its tensor files and {MANIFEST} disagree about names, shapes or dtypes")
        states = unpack(manifest["structure"], tensors, target=target)
    return Snapshot(cursor=manifest["cursor"], states=states, facts=manifest["facts"])


def is_of_run(folder: Path, *, run_id: str, cursor: int) -> bool:
    """Whether a folder's manifest is readable and of this run; the tensor files are not looked at."""
    try:
        _read_manifest(folder, run_id=run_id, cursor=cursor)
    except (DamagedSnapshot, OSError, ValueError, KeyError, TypeError):
        return False
    return True


def seal(body: Mapping[str, Json]) -> bytes:
    """Return a JSON document with its own sha256 in it, in the one form that `unseal` accepts."""
    return _canonical({**body, "sha256": hashlib.sha256(_canonical(body)).hexdigest()})


def unseal(raw: bytes) -> dict[str, Any]:
    """Return a sealed JSON document without its sha256; raise ValueError if a single bit was changed."""
    document = parse_json(raw)
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    body = {key: value for key, value in document.items() if key != "sha256"}
    if seal(body) != raw:
        raise ValueError("its sha256 does not fit")
    return body


def plain_json(value: Any, name: str) -> Any:
    """Return a copy of a value that JSON holds exactly; raise StateError for any other."""
    try:
        copied = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise StateError(f"{name} must be plain JSON: {error}. Put other values into a state.") from error
    if copied != value:
        raise StateError(f"{name} must be plain JSON: dicts with str keys and lists, not tuples or int keys.")
    return copied


def _canonical(value: Mapping[str, Json]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _manifest(cursor: int, facts: Json, packed: Packed, *, run_id: str) -> dict[str, Json]:
    about: dict[str, Json] = {"format": FORMAT, "run": run_id, "cursor": cursor, "facts": facts}
    return {**about, "structure": packed.structure}


def _file(name: str, written: Written) -> Json:
    return {"name": name, "bytes": written.num_bytes, "sha256": written.sha256}


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _stored(name: str, entry: Mapping[str, Any], files: Files) -> Stored:
    """Return a tensor as the manifest describes it; in version 1 each is one chunk under its own name."""
    shape = tuple(entry["shape"])
    if "chunks" not in entry:
        chunks = [Chunk(entry["file"], name, Box((0,) * len(shape), shape))]
    else:
        chunks = [
            Chunk(chunk["file"], chunk["name"], Box(tuple(chunk["offsets"]), tuple(chunk["shape"])))
            for chunk in entry["chunks"]
        ]
    dtype = next((dtype for dtype in tensorfile.CODES if _dtype_name(dtype) == entry["dtype"]), None)
    if dtype is None:
        raise DamagedSnapshot(f"{name} has the dtype {entry['dtype']!r}, which no tensor file holds")
    return Stored(shape=torch.Size(shape), dtype=dtype, chunks=chunks, read=files.read)


def _read_manifest(folder: Path, *, run_id: str, cursor: int) -> dict[str, Any]:
    if not stat.S_ISDIR(os.lstat(folder).st_mode):
        raise DamagedSnapshot("is not a folder")
    path = folder / MANIFEST
    _check_is_plain(path)
    try:
        manifest = unseal(read_bytes(path, max_bytes=MAX_MANIFEST_BYTES))
    except (ValueError, RecursionError) as error:
        raise DamagedSnapshot(f"{MANIFEST} is torn or altered ({error})") from error
    if manifest.get("format") != FORMAT:
        raise DamagedSnapshot(f"{MANIFEST} has the format {manifest.get('format')!r}, {FORMAT!r} expected")
    if manifest["version"] > VERSION:
        found = f"(snapshot version {manifest['version']}, this one reads {VERSION})"
        raise DamagedSnapshot(f"was written by a newer truestep {found}: upgrade truestep to read it")
    if manifest["run"] != run_id:
        raise DamagedSnapshot(f"belongs to run {manifest['run']!r}, this is run {run_id!r}")
    if manifest["cursor"] != cursor:
        raise DamagedSnapshot(f"is the snapshot of cursor {manifest['cursor']} under the name of another")
    return manifest


def _check_file(path: Path, expected: Mapping[str, Any], *, with_hash: bool) -> None:
    num_bytes = _check_is_plain(path)
    if num_bytes != expected["bytes"]:
        note = " (truncated)" if num_bytes < expected["bytes"] else ""
        raise DamagedSnapshot(f"{path.name} has {num_bytes:,} bytes, {expected['bytes']:,} expected{note}")
    if with_hash and (sha256 := hash_file(path)) != expected["sha256"]:
        found = f"its sha256 is {sha256[:12]}..., {expected['sha256'][:12]}... expected"
        raise DamagedSnapshot(f"{path.name} was altered: {found}")


def _check_is_plain(path: Path) -> int:
    """Return the size of a regular file; a link or a pipe is never opened."""
    try:
        status = os.lstat(path)
    except FileNotFoundError as error:
        raise DamagedSnapshot(f"{path.name} is missing") from error
    if not stat.S_ISREG(status.st_mode):
        raise DamagedSnapshot(f"{path.name} is not a regular file (it was not opened)")
    return status.st_size
