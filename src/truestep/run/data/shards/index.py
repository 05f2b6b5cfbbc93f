"""The index of a sharded dataset: how many samples and bytes each shard has, and the checksum of its bytes.

Owns the format of `index.json`, and which shard of the index a name means. Leaves making one to `counting`.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from truestep.base.plainfile import parse_json
from truestep.errors import UsageError
from truestep.run.data.shards import windows
from truestep.run.data.shards.urls import kind_of

FORMAT, VERSION = "truestep shards", 1
_SHOWN = 5
_DIGEST = re.compile("[0-9a-f]{32}")
_MOST = 2**62
"""Numbers of samples are summed in 64 bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shard:
    """One file of samples; the checksum is blake2b (16 bytes) of the file, or None if it is not known."""

    url: str
    num_samples: int
    num_bytes: int
    checksum: str | None

    @property
    def kind(self) -> str:
        """The format, by the ending of the name."""
        return kind_of(self.url)


def to_json(shards: Sequence[Shard]) -> str:
    """Return the index as text: names are relative to the folder that all shards have in common."""
    names = _relative([shard.url for shard in shards])
    rows = [
        {"name": name, "samples": shard.num_samples, "bytes": shard.num_bytes, "checksum": shard.checksum}
        for name, shard in zip(names, shards, strict=True)
    ]
    lines = ",\n".join(f"    {json.dumps(row)}" for row in rows)
    return f'{{\n  "format": "{FORMAT}",\n  "version": {VERSION},\n  "shards": [\n{lines}\n  ]\n}}\n'


def from_json(text: str, *, source: str) -> dict[str, Mapping[str, Any]]:
    """Return an index's entries by name, in its order."""
    try:
        found = parse_json(text)
        if found["format"] != FORMAT or found["version"] != VERSION:
            raise ValueError(f"format {found['format']!r}, version {found['version']!r}")
        for row in found["shards"]:
            _check(row)
        return {row["name"]: row for row in found["shards"]}
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{source} is not an index of shards, version {VERSION} ({error})."
            " Write it with truestep.run.data.shards.write_index(urls, path)."
        ) from error


def _check(row: Mapping[str, Any]) -> None:
    numbers = (row["samples"], row["bytes"])
    is_whole = all(type(number) is int and 0 <= number < _MOST for number in numbers)
    checksum = row.get("checksum")
    is_digest = checksum is None or (isinstance(checksum, str) and _DIGEST.fullmatch(checksum))
    if not (is_whole and isinstance(row["name"], str) and is_digest):
        raise ValueError(f"a shard that is {repr(row)[:80]}")


def look_up(urls: Sequence[str], entries: Mapping[str, Mapping[str, Any]], *, source: str) -> list[Shard]:
    """Return the shards that names mean; data may have moved since the index was written."""
    found = [(url, _entry(url, entries)) for url in urls]
    missing = [url for url, entry in found if entry is None]
    if missing:
        raise UsageError(
            f"{len(missing)} of {len(urls)} shards are not in {source}: {_few(missing)}."
            " Write it again with truestep.run.data.shards.write_index(urls, path)."
        )
    return [
        Shard(url=url, num_samples=entry["samples"], num_bytes=entry["bytes"], checksum=entry.get("checksum"))
        for url, entry in found
        if entry is not None
    ]


def describe(shards: Sequence[Shard], *, window: int) -> str:
    """Return what a run's recipe says of a dataset: what is in it, wherever it lies, and its order."""
    hashed = hashlib.blake2b(digest_size=16)
    for shard in shards:
        hashed.update(f"{shard.num_samples} {shard.num_bytes} {shard.checksum}\n".encode())
    kinds = "/".join(sorted({shard.kind for shard in shards}))
    return f"{len(shards)} {kinds} shards {hashed.hexdigest()}, window {window}, order {windows.VERSION}"


def _entry(url: str, entries: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any] | None:
    parts = url.split("/")
    # The longest ending first: 0.tar and sub/0.tar are two shards.
    for first in range(len(parts)):
        entry = entries.get("/".join(parts[first:]))
        if entry is not None:
            return entry
    return None


def _relative(urls: Sequence[str]) -> list[str]:
    folders = [url.split("/")[:-1] for url in urls]
    shared = 0
    while folders and all(
        len(folder) > shared and folder[shared] == folders[0][shared] for folder in folders
    ):
        shared += 1
    return ["/".join(url.split("/")[shared:]) for url in urls]


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
