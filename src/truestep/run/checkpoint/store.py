"""A run's folder of snapshots: published by rename, deleted by rename, the newest good one found.

Owns the names in the folder and the order of system calls. Leaves the content of a snapshot to `snapshot`,
and the lock that keeps two runs out of one folder to the caller.
"""

import errno
import itertools
import os
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from truestep.base.plainfile import read_bytes
from truestep.base.runfiles import explained, make_folder, require_own, sync_folder
from truestep.errors import DamagedSnapshot, SaveFailed, StateError, UsageError
from truestep.run.checkpoint import snapshot as snapshots
from truestep.run.checkpoint.chunks import Chunk
from truestep.run.checkpoint.durable import Written, remove, write_file
from truestep.run.checkpoint.parts import Target
from truestep.run.checkpoint.saving_group import Crew
from truestep.run.checkpoint.snapshot import Snapshot
from truestep.run.checkpoint.state import Json, Packed, pack

MIN_KEEP = 2

_FOLDER = re.compile(r"step-(\d{12,})")
_ATTACHMENT = re.compile(r"step-(\d{12,})\.([a-z][a-z0-9_-]*)\.json")
_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_ATTACHMENT_FORMAT, _ATTACHMENT_VERSION = "truestep-attachment", 1
_TEMPORARY, _TRASH = ".tmp-", ".trash-"


def snapshot_name(cursor: int) -> str:
    """Return the name of a snapshot's folder; names of its attachments begin with it and a dot."""
    return f"step-{cursor:012d}"


def find_cursors(folder: Path) -> list[int]:
    """Return the cursors of all published snapshots in a folder, good or not, newest first."""
    names = os.listdir(folder) if folder.is_dir() else []
    found = [int(match[1]) for name in names if (match := _FOLDER.fullmatch(name))]
    return sorted((cursor for cursor in found if snapshot_name(cursor) in names), reverse=True)


class Damage(NamedTuple):
    """A snapshot that cannot be used, and why, in one line."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return self.reason


class Store:
    """The snapshots of one run; at every moment the newest published one before a save stays readable.

    One process writes at a time (the caller holds the run's lock). `keep` good snapshots stay, the older ones
    go after a newer one is published.

    Several processes have a store each, with their `crew`, and call `save` and `load_newest` in the same
    order. Where no tensor is spread over them the first process alone writes; attachments and cleaning are
    always its own.

    Example: `Store(Path("runs/digits/snapshots"), run_id="digits-7f3a")`
    """

    def __init__(
        self,
        folder: Path,
        *,
        run_id: str,
        keep: int = MIN_KEEP,
        crew: Crew = Crew(),  # noqa: B008 - frozen
    ) -> None:
        if keep < MIN_KEEP:
            raise UsageError(
                f"keep must be at least {MIN_KEEP}, got {keep}: a damaged newest one needs one before it."
            )
        self._folder = Path(folder)
        self._run_id = run_id
        self._keep = keep
        self.crew = crew
        self._numbers = itertools.count()
        self._good: set[int] = set()
        self._is_inside = self._folder.parent.is_dir()
        """Whether it lies in a folder of others', which is not made again if it is lost."""

    def save(self, snapshot: Snapshot) -> Path:
        """Publish a snapshot: it is either there complete, or not there.

        A good snapshot of the same cursor (saved again after a resume) is kept as it is; a damaged one is
        replaced.
        Raises StateError for a state that cannot be stored, SaveFailed if the disk refuses or, with several
        processes, if one of them fails or is gone.
        """
        final = self._path(snapshot.cursor)
        if self.crew.size > 1:
            packed = pack(snapshot.states)
            if packed.parts:
                self._save_together(snapshot, packed)
                return final
            if not self.crew.is_first:
                return final
        if self._has_good(snapshot.cursor):
            return final
        temporary = None
        try:
            temporary = self._make_temporary()
            snapshots.write(snapshot, temporary, run_id=self._run_id)
            self._publish(temporary, snapshot.cursor)
        except BaseException as error:
            self._give_up(snapshot.cursor, temporary, error)
            raise
        self._prune(snapshot.cursor)
        return final

    def load_newest(self, *, target: Target | None = None) -> tuple[Snapshot | None, list[Damage]]:
        """Return the newest good snapshot (None if there is none), and every newer one that is damaged.

        With several processes each checks its share of the files, and all come to the same answer. Tensors
        come whole, or where `target` names a DTensor spread like that one, however they were when saved.
        """
        damages = []
        for cursor in self.crew.gather(find_cursors(self._folder))[0]:
            try:
                loaded = self._load(cursor, target)
            except (MemoryError, StateError):
                raise  # of this machine or script, not of the snapshot: going back would not help
            except Exception as error:  # noqa: BLE001 - whatever a bad snapshot does, the one before it is tried
                damages.append(self._damage(cursor, error))
            else:
                self._good.add(cursor)
                return loaded, damages
        return None, damages

    def is_published(self, cursor: int) -> bool:
        """Whether this process has saved or loaded the snapshot of a cursor, and has not removed it since."""
        return cursor in self._good

    def attach(self, cursor: int, name: str, *, value: Json) -> None:
        """Publish a small JSON value beside a published snapshot; an earlier one of that name is replaced."""
        path = self._attachment(cursor, name)
        if not self.crew.is_first:
            return
        require_own(self._folder)
        if not self._path(cursor).is_dir():
            raise UsageError(
                f"{self._path(cursor)} does not exist: attach {name!r} after the snapshot is saved."
            )
        body: dict[str, Json] = {
            "format": _ATTACHMENT_FORMAT,
            "version": _ATTACHMENT_VERSION,
            "run": self._run_id,
            "cursor": cursor,
            "name": name,
            "value": snapshots.plain_json(value, name),
        }
        temporary = self._unused(_TEMPORARY)
        try:
            write_file(temporary, [snapshots.seal(body)])
            os.rename(temporary, path)
            sync_folder(self._folder)
        except OSError as error:
            remove(temporary)
            raise self._failure(f"{path} could not be written", error) from error

    def attached(self, cursor: int, name: str) -> Json:
        """Return what was attached under a name; None if nothing was, or if it is damaged."""
        path = self._attachment(cursor, name)
        if not path.is_file() or path.is_symlink():
            return None
        try:
            body = snapshots.unseal(read_bytes(path))
        except (OSError, ValueError, RecursionError):
            return None
        expected = {"format": _ATTACHMENT_FORMAT, "run": self._run_id, "cursor": cursor, "name": name}
        is_ours = expected.items() <= body.items() and body.get("version") == _ATTACHMENT_VERSION
        value: Json = body.get("value")
        return value if is_ours else None

    def clean(self) -> None:
        """Remove what killed processes left behind; call it only while holding the run's lock."""
        require_own(self._folder)
        if not self.crew.is_first or not self._folder.is_dir():
            return
        with explained(self._folder):
            for name in os.listdir(self._folder):
                if name.startswith((_TEMPORARY, _TRASH)):
                    remove(self._folder / name)
            for cursor, path in self._attachments():
                if not os.path.lexists(self._path(cursor)):
                    remove(path)
            sync_folder(self._folder)

    def _save_together(self, snapshot: Snapshot, packed: Packed) -> None:
        """Save what is spread over processes; every one of them is here, the first does what is done once."""
        from truestep.run.checkpoint.together import save_parts  # noqa: PLC0415  a second, and few need it

        cursor = snapshot.cursor
        temporary: Path | None = None

        def begin() -> str | None:
            nonlocal temporary
            if self._has_good(cursor):
                return None
            temporary = self._make_temporary()
            return temporary.name

        def finish(files: dict[str, Written], chunks: list[Chunk]) -> None:
            assert temporary is not None
            manifest = snapshots.manifest_of_parts(
                snapshot, packed, run_id=self._run_id, files=files, chunks=chunks
            )
            snapshots.seal_folder(temporary, manifest)
            self._publish(temporary, cursor)
            self._prune(cursor)

        try:
            save_parts(packed, self._folder, crew=self.crew, begin=begin, finish=finish)
        except BaseException as error:
            self._give_up(cursor, temporary, error)
            raise

    def _give_up(self, cursor: int, temporary: Path | None, error: BaseException) -> None:
        """Remove what a failed save has written; if the disk refused, say so in words."""
        if temporary is not None:
            remove(temporary)
        if isinstance(error, OSError):
            raise self._failure(f"{self._path(cursor)} could not be written", error) from error

    def _load(self, cursor: int, target: Target | None) -> Snapshot:
        folder, crew = self._path(cursor), self.crew

        def check() -> dict[str, Any]:
            share = {"rank": crew.rank, "size": crew.size}
            return snapshots.check(folder, run_id=self._run_id, cursor=cursor, **share)

        manifest = crew.agree(check)
        return crew.agree(lambda: snapshots.build(folder, manifest, target=target))

    def _publish(self, temporary: Path, cursor: int) -> None:
        final = self._path(cursor)
        if self._drop_attachments(cursor):  # of a snapshot that is gone, or damaged and now replaced
            sync_folder(self._folder)  # first: a power cut must not leave them beside the new one
        trash = self._move_to_trash(cursor) if os.path.lexists(final) else None
        os.rename(temporary, final)
        sync_folder(self._folder)
        if trash is not None:
            remove(trash)
        self._good.add(cursor)

    def _prune(self, saved: int) -> None:
        """Remove what is older than the newest `keep` good ones; the one just saved is never removed."""
        try:
            self._remove_old(saved)
        except OSError as error:
            what = f"{self._path(saved)} was written, but older ones could not be removed"
            raise self._failure(what, error) from error

    def _remove_old(self, saved: int) -> None:
        num_good = 0
        old = []
        for cursor in find_cursors(self._folder):
            if cursor == saved:
                num_good += 1
            elif num_good < self._keep:
                num_good += self._is_good(cursor)
            elif snapshots.is_of_run(self._path(cursor), run_id=self._run_id, cursor=cursor):
                old.append(cursor)
        trash = [self._move_to_trash(cursor) for cursor in old]
        if trash:
            # The names must be gone from the disk before the content is: after a power cut an old snapshot is
            # whole or absent.
            sync_folder(self._folder)
        for cursor, path in zip(old, trash, strict=True):
            self._drop_attachments(cursor)
            remove(path)

    def _has_good(self, cursor: int) -> bool:
        """Whether there is a good snapshot of a cursor; its bytes are looked at again."""
        is_good = os.path.lexists(self._path(cursor)) and self._find_damage(cursor) is None
        if not is_good:
            self._good.discard(cursor)
        return is_good

    def _is_good(self, cursor: int) -> bool:
        """Whether a snapshot counts as one to fall back on; each is checked once per process at most."""
        if cursor not in self._good and self._find_damage(cursor) is None:
            self._good.add(cursor)
        return cursor in self._good

    def _find_damage(self, cursor: int) -> Damage | None:
        try:
            snapshots.check(self._path(cursor), run_id=self._run_id, cursor=cursor)
        except Exception as error:  # noqa: BLE001 - whatever a bad snapshot does, it is only bad
            return self._damage(cursor, error)
        return None

    def _damage(self, cursor: int, error: Exception) -> Damage:
        reason = str(error)
        if not isinstance(error, DamagedSnapshot):
            reason = f"cannot be read: {type(error).__name__}: {reason}"
        path = self._path(cursor)
        return Damage(path, f"{path.parent.name}/{path.name}: {' '.join(reason.split())}")

    def _move_to_trash(self, cursor: int) -> Path:
        trash = self._unused(_TRASH)
        os.rename(self._path(cursor), trash)
        self._good.discard(cursor)
        return trash

    def _drop_attachments(self, cursor: int) -> bool:
        """Remove what is attached to a cursor; return whether anything was."""
        paths = [path for owner, path in self._attachments() if owner == cursor]
        for path in paths:
            os.unlink(path)
        return bool(paths)

    def _make_temporary(self) -> Path:
        require_own(self._folder)
        make_folder(self._folder, with_parents=not self._is_inside)
        temporary = self._unused(_TEMPORARY)
        os.mkdir(temporary)
        return temporary

    def _unused(self, prefix: str) -> Path:
        # A killed process with the same number (always 1 in a container) may have left its own behind.
        while True:
            path = self._folder / f"{prefix}{os.getpid()}-{next(self._numbers)}"
            if not os.path.lexists(path):
                return path

    def _path(self, cursor: int) -> Path:
        return self._folder / snapshot_name(cursor)

    def _attachment(self, cursor: int, name: str) -> Path:
        if not _NAME.fullmatch(name):
            raise UsageError(f"name must be lower-case letters, digits, - and _, got {name!r}.")
        return self._folder / f"{snapshot_name(cursor)}.{name}.json"

    def _attachments(self) -> list[tuple[int, Path]]:
        matches = [(name, _ATTACHMENT.fullmatch(name)) for name in os.listdir(self._folder)]
        return [(int(match[1]), self._folder / name) for name, match in matches if match]

    def _failure(self, what: str, error: OSError) -> SaveFailed:
        reason = f"{error.strerror or error} ({errno.errorcode.get(error.errno or 0, 'no error number')})"
        where = next(folder for folder in [self._folder, *self._folder.parents] if folder.is_dir())
        free = f"{shutil.disk_usage(where).free:,} bytes are free in {where}"
        advice = (
            "Earlier snapshots are intact: make room or repair the disk, then run the same command again."
        )
        return SaveFailed(f"{what}: {reason}; {free}. {advice}")
