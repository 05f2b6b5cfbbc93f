"""One snapshot folder: a sealed manifest and the tensor files it lists.

Owns the format (docs/snapshot-format.md) and what counts as damage. Leaves to `store` how a folder becomes
visible and how many there are.
"""

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from truestep.checkpoint import tensorfile
from truestep.checkpoint.durable import hash_file, sync_folder, write_file
from truestep.checkpoint.state import Json, pack, unpack
from truestep.errors import DamagedSnapshot, StateError

FORMAT = "truestep-snapshot"
VERSION = 1
MANIFEST = "manifest.json"
TENSORS = "tensors.safetensors"


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Everything resume needs: the cursor, the tracked states by name, and facts about the run as JSON."""

    cursor: int
    states: dict[str, Any]
    facts: dict[str, Any]


def write(snapshot: Snapshot, folder: Path, *, run_id: str) -> None:
    """Write a snapshot into an empty folder and flush all of it to the disk."""
    facts = plain_json(snapshot.facts, "facts")
    packed = pack(snapshot.states)
    written = tensorfile.write(folder / TENSORS, packed.tensors)
    manifest: dict[str, Json] = {
        "format": FORMAT,
        "version": VERSION,
        "run": run_id,
        "cursor": snapshot.cursor,
        "facts": facts,
        "structure": packed.structure,
        "files": [{"name": TENSORS, "bytes": written.num_bytes, "sha256": written.sha256}],
        "tensors": {name: _describe(tensor, TENSORS) for name, tensor in packed.tensors.items()},
    }
    write_file(folder / MANIFEST, [seal(manifest)])
    sync_folder(folder)


def check(folder: Path, *, run_id: str, cursor: int) -> dict[str, Any]:
    """Return a snapshot's manifest after checking every byte of the folder; raise DamagedSnapshot if bad."""
    manifest = _read_manifest(folder, run_id=run_id, cursor=cursor)
    expected = {MANIFEST} | {file["name"] for file in manifest["files"]}
    found = set(os.listdir(folder))
    # A listed name that leads out of the folder ("../x") is never among the found ones: it counts as missing.
    if missing := sorted(expected - found):
        raise DamagedSnapshot(f"{', '.join(missing)} is missing")
    if strange := sorted(found - expected):
        raise DamagedSnapshot(f"holds {', '.join(strange)!r}, which is not part of it (it was not opened)")
    for file in manifest["files"]:
        _check_file(folder / file["name"], file)
    return manifest


def read(folder: Path, *, run_id: str, cursor: int) -> Snapshot:
    """Return a snapshot after checking every byte of it; raise DamagedSnapshot if it is bad."""
    manifest = check(folder, run_id=run_id, cursor=cursor)
    tensors: dict[str, torch.Tensor] = {}
    described: dict[str, Json] = {}
    for file in manifest["files"]:
        part = tensorfile.read(folder / file["name"])
        tensors |= part
        described |= {name: _describe(tensor, file["name"]) for name, tensor in part.items()}
    if described != manifest["tensors"]:
        raise DamagedSnapshot(f"its tensor files and {MANIFEST} disagree about names, shapes or dtypes")
    states = unpack(manifest["structure"], tensors)
    return Snapshot(cursor=cursor, states=states, facts=manifest["facts"])


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
    document = json.loads(raw)
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


def _describe(tensor: torch.Tensor, file: str) -> Json:
    return {"file": file, "shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}


def _read_manifest(folder: Path, *, run_id: str, cursor: int) -> dict[str, Any]:
    if not stat.S_ISDIR(os.lstat(folder).st_mode):
        raise DamagedSnapshot("is not a folder")
    path = folder / MANIFEST
    _check_is_plain(path)
    try:
        manifest = unseal(path.read_bytes())
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


def _check_file(path: Path, expected: Mapping[str, Any]) -> None:
    num_bytes = _check_is_plain(path)
    if num_bytes != expected["bytes"]:
        note = " (truncated)" if num_bytes < expected["bytes"] else ""
        raise DamagedSnapshot(f"{path.name} has {num_bytes:,} bytes, {expected['bytes']:,} expected{note}")
    sha256 = hash_file(path)
    if sha256 != expected["sha256"]:
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
