"""What stands between Python and a folder: it lists every operation, lets one fail, notes what is flushed."""

# It stands in for `os` itself.
# ruff: noqa: PTH100, PTH112, PTH115, PTH118, PTH119, PTH120

import builtins
import io
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.faults.fault import Fault
from tests.faults.nodes import Cut, Names, Node, Nodes, Tree, Write, variants

_NEED_ROOM = ("create", "mkdir", "write", "flush")


class Disk:
    """Stands between Python and a folder while the `with` block runs, in all threads.

    Example: `with Disk(folder, Fault(3, "refuse")) as disk: store.save(snapshot)`
    """

    def __init__(self, root: Path, fault: Fault | None = None, *, is_checked: bool = False) -> None:
        self._root = os.path.realpath(root)
        self._fault = fault
        self._is_checked = is_checked
        self._initial = Nodes(Path(self._root))
        self._live = Nodes(Path(self._root))
        self._opened: dict[int, tuple[int, bool, tuple[int, int]]] = {}
        self._changes: list[tuple[int, int, Any]] = []
        self._lock = threading.RLock()
        self._index = 0
        self._looking: int | None = None
        self._restores: list[Callable[[], None]] = []
        self.operations: list[str] = []
        """What was done, in order: a verb and a path below the folder."""
        self.acknowledged: list[tuple[int, Any]] = []
        """What the caller was told is done, with the number of operations at that moment."""

    def acknowledge(self, what: Any) -> None:
        self.acknowledged.append((len(self.operations), what))

    def told_by(self, num_operations: int) -> list[Any]:
        """Return what had been acknowledged when only so many operations were done."""
        return [what for number, what in self.acknowledged if number <= num_operations]

    # Power cuts

    def power_cuts(self, *, seeds: range = range(2)) -> Iterator[tuple[int, str, Tree]]:
        """Yield what a power cut can leave after each number of operations; each folder once per promise.

        What was not flushed is lost, kept, cut, or there in length only, for names and contents apart; then
        any of it, by chance. A folder that was yielded already comes again only once more is acknowledged.
        """
        seen = set()
        for num in range(len(self.operations) + 1):
            nodes = self._after(num)
            for name, choose in variants(num, seeds):
                tree = nodes.tree(choose)
                key = (len(self.told_by(num)), frozenset(tree.items()))
                if key not in seen:
                    seen.add(key)
                    yield num, name, tree

    def _after(self, num_operations: int) -> Nodes:
        """Return files and folders after some operations, with what was flushed and what was not."""
        nodes = Nodes.__new__(Nodes)
        nodes.nodes = {number: Node(node.saved) for number, node in self._initial.nodes.items()}
        for index, number, change in self._changes:
            if index >= num_operations:
                break
            node = nodes.nodes.setdefault(number, Node(None))
            if isinstance(change, bytes | dict):  # a new one
                node.saved = change
            elif change is not None:
                node.pending.append(change)
            else:  # flushed
                node.saved, node.pending = node.now(), []
        return nodes

    # Operations

    def _do(self, verb: str, place: str, act: Callable[..., Any]) -> Any:
        """Do an operation, or what the fault makes of it; `act` is called with True to take half."""
        with self._lock:
            self._index = index = len(self.operations)
            self.operations.append(f"{verb} {place}")
            fault = self._fault
            is_hit = fault is not None and self._is_hit(fault, index, verb)
            done = self._fail(fault, verb, place, act) if is_hit else act()
            if self._is_checked:
                self._looking = threading.get_ident()
                real = Nodes(Path(self._root)).tree()
                self._looking = None
                assert real == self._live.tree(), f"something wrote around Disk, before {verb} {place}"
            return done

    def _is_hit(self, fault: Fault, index: int, verb: str) -> bool:
        if fault.how in ("full", "short, full"):
            return index >= fault.at and verb in _NEED_ROOM
        return index >= fault.at if fault.how == "gone" else index == fault.at

    def _fail(self, fault: Fault, verb: str, place: str, act: Callable[..., Any]) -> Any:
        if verb == "write" and fault.how.startswith("short") and self._index == fault.at:
            return act(True)
        if fault.how == "short":
            return act()
        if verb == "close" or fault.how == "refuse after":  # a descriptor is gone, whatever close says
            act()
        raise fault.error(place)

    def _change(self, number: int, change: Any) -> None:
        """Note what the operation under way did."""
        self._changes.append((self._index, number, change))
        node = self._live.nodes[number]
        if change is None:
            node.saved, node.pending = node.now(), []
        elif isinstance(change, Write | Cut | Names):
            node.pending.append(change)

    def _make(self, place: str, *, is_folder: bool) -> int:
        number = self._live.add(is_folder=is_folder)
        self._change(number, {} if is_folder else b"")
        self._set_names(place, number)
        return number

    def _set_names(self, place: str, number: int | None, *, instead_of: str | None = None) -> None:
        folder, name = os.path.split(place)
        changed = {name: number}
        if instead_of is not None:
            assert os.path.dirname(instead_of) == folder, "a rename between folders is not simulated"
            changed = {os.path.basename(instead_of): None, **changed}
        parent = self._find(folder)
        assert parent is not None
        self._change(parent, Names(changed))

    def _find(self, place: str) -> int | None:
        return self._live.find(tuple(part for part in place.split("/") if part))

    def _place(self, path: Any, dir_fd: int | None = None) -> str | None:
        """Return a path relative to the folder; None for what lies elsewhere."""
        if isinstance(path, int) or self._looking == threading.get_ident():
            return None
        text = os.fsdecode(path)
        if dir_fd is not None and not text.startswith("/"):
            text = os.path.join(os.readlink(f"/proc/self/fd/{dir_fd}"), text)
        text = os.path.abspath(text)
        if text == self._root:
            return ""
        return text.removeprefix(self._root + "/") if text.startswith(self._root + "/") else None

    def _known(self, descriptor: int) -> tuple[int, bool] | None:
        """Return what a descriptor was opened for; a number may have been given to another file since."""
        found = self._opened.get(descriptor)
        if found is None:
            return None
        try:
            status = os.fstat(descriptor)
        except OSError:
            return None
        return found[:2] if found[2] == (status.st_dev, status.st_ino) else None

    def _named(self, descriptor: int) -> str:
        path = os.readlink(f"/proc/self/fd/{descriptor}").removesuffix(" (deleted)")
        return path.removeprefix(self._root).lstrip("/")

    # What Python calls

    def __enter__(self) -> "Disk":
        for name in (
            "open",
            "close",
            "write",
            "pwrite",
            "ftruncate",
            "fsync",
            "rename",
            "unlink",
            "mkdir",
            "rmdir",
        ):
            self._put(os, name, getattr(self, f"_os_{name}"))
        self._put(os, "replace", self._os_rename)
        self._put(os, "remove", self._os_unlink)
        self._put(os, "fdatasync", self._os_fsync)
        for name in ("link", "symlink", "truncate", "writev", "pwritev", "sendfile", "mkfifo"):
            self._put(os, name, self._refused(name))
        self._put(io, "open", self._io_open)
        self._put(builtins, "open", self._io_open)
        return self

    def __exit__(self, *_: object) -> None:
        for restore in reversed(self._restores):
            restore()
        self._restores.clear()

    def _put(self, owner: Any, name: str, own: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        self._restores.append(lambda: setattr(owner, name, original))
        setattr(owner, name, lambda *args, **kwargs: own(original, *args, **kwargs))

    def _refused(self, name: str) -> Callable[..., Any]:
        def call(original: Any, *args: Any, **kwargs: Any) -> Any:
            is_inside = any(
                self._place(path) is not None for path in args[:2] if isinstance(path, str | os.PathLike)
            )
            is_inside |= isinstance(args[0], int) and self._known(args[0]) is not None
            assert not is_inside, f"os.{name} is not simulated"
            return original(*args, **kwargs)

        return call

    def _os_open(
        self, original: Any, path: Any, flags: int, *args: Any, dir_fd: int | None = None, **kw: Any
    ) -> int:
        place = self._place(path, dir_fd)
        if place is None:
            return original(path, flags, *args, dir_fd=dir_fd, **kw)
        is_new = bool(flags & os.O_CREAT) and self._find(place) is None

        def act() -> int:
            descriptor = original(path, flags, *args, dir_fd=dir_fd, **kw)
            number = self._make(place, is_folder=False) if is_new else self._find(place)
            if number is not None:
                if flags & os.O_TRUNC and not is_new:
                    self._change(number, Cut(0))
                status = os.fstat(descriptor)
                is_append = bool(flags & os.O_APPEND)
                self._opened[descriptor] = number, is_append, (status.st_dev, status.st_ino)
            return descriptor

        return self._do("create" if is_new else "open", place, act)

    def _os_close(self, original: Any, descriptor: int) -> None:
        if self._known(descriptor) is None:
            original(descriptor)
            return

        def act() -> None:
            del self._opened[descriptor]
            original(descriptor)

        self._do("close", self._named(descriptor), act)

    def _os_write(self, original: Any, descriptor: int, data: Any) -> int:
        return self._write(descriptor, data, None, lambda part: original(descriptor, part))

    def _os_pwrite(self, original: Any, descriptor: int, data: Any, offset: int) -> int:
        return self._write(descriptor, data, offset, lambda part: original(descriptor, part, offset))

    def _write(self, descriptor: int, data: Any, offset: int | None, write: Callable[[Any], int]) -> int:
        known = self._known(descriptor)
        if known is None:
            return write(data)
        number, is_append = known

        def act(is_half: bool = False) -> int:
            content = bytes(data)
            if is_append:
                place = len(self._live.nodes[number].now())
            else:
                place = os.lseek(descriptor, 0, os.SEEK_CUR) if offset is None else offset
            done = write(content[: (len(content) + 1) // 2] if is_half else content)
            self._change(number, Write(place, content[:done]))
            return done

        return self._do("write", self._named(descriptor), act)

    def _os_ftruncate(self, original: Any, descriptor: int, size: int) -> None:
        known = self._known(descriptor)
        if known is None:
            original(descriptor, size)
            return

        def act() -> None:
            original(descriptor, size)
            self._change(known[0], Cut(size))

        self._do("truncate", self._named(descriptor), act)

    def _os_fsync(self, original: Any, descriptor: int) -> None:
        known = self._known(descriptor)
        if known is None:
            original(descriptor)
            return
        # The real disk is not asked: what counts as flushed is what was given to this call.
        self._do("flush", self._named(descriptor) or ".", lambda: self._change(known[0], None))

    def _os_rename(self, original: Any, source: Any, target: Any, **kwargs: Any) -> None:
        old, new = self._place(source), self._place(target)
        if old is None or new is None:
            assert old is new, "a rename into or out of the folder is not simulated"
            original(source, target, **kwargs)
            return

        def act() -> None:
            original(source, target, **kwargs)
            self._set_names(new, self._find(old), instead_of=old)

        self._do("rename", f"{old} to {new}", act)

    def _os_unlink(self, original: Any, path: Any, *, dir_fd: int | None = None) -> None:
        self._remove("unlink", original, path, dir_fd)

    def _os_rmdir(self, original: Any, path: Any, *, dir_fd: int | None = None) -> None:
        self._remove("rmdir", original, path, dir_fd)

    def _remove(self, verb: str, original: Any, path: Any, dir_fd: int | None) -> None:
        place = self._place(path, dir_fd)
        if place is None:
            original(path, dir_fd=dir_fd)
            return

        def act() -> None:
            original(path, dir_fd=dir_fd)
            self._set_names(place, None)

        self._do(verb, place, act)

    def _os_mkdir(
        self, original: Any, path: Any, *args: Any, dir_fd: int | None = None, **kwargs: Any
    ) -> None:
        place = self._place(path, dir_fd)
        if place is None:
            original(path, *args, dir_fd=dir_fd, **kwargs)
            return

        def act() -> None:
            original(path, *args, dir_fd=dir_fd, **kwargs)
            self._make(place, is_folder=True)

        self._do("mkdir", place, act)

    def _io_open(  # noqa: PLR0917 - Python's own
        self,
        original: Any,
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        is_inside = self._known(file) is not None if isinstance(file, int) else self._place(file) is not None
        if not is_inside or not set(mode) & set("wax+"):
            if is_inside and not isinstance(file, int) and opener is None:
                opener = os.open  # the patched one: it is listed, and may fail
            return original(file, mode, buffering, encoding, errors, newline, closefd, opener)
        descriptor = file if isinstance(file, int) else (opener or os.open)(file, _flags(mode))
        raw = _Raw(descriptor, is_readable="+" in mode, is_closing=closefd)
        if buffering == 0:
            return raw
        opened = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return opened if "b" in mode else io.TextIOWrapper(opened, encoding, errors, newline, buffering == 1)


class _Raw(io.RawIOBase):
    """A file whose every operation goes through `os`, where Python's own goes around it."""

    def __init__(self, descriptor: int, *, is_readable: bool, is_closing: bool) -> None:
        self._descriptor = descriptor
        self._is_readable = is_readable
        self._is_closing = is_closing

    def fileno(self) -> int:
        return self._descriptor

    def readable(self) -> bool:
        return self._is_readable

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return os.readv(self._descriptor, [buffer])

    def write(self, data: Any) -> int:
        return os.write(self._descriptor, data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return os.lseek(self._descriptor, offset, whence)

    def truncate(self, size: int | None = None) -> int:
        size = self.tell() if size is None else size
        os.ftruncate(self._descriptor, size)
        return size

    def close(self) -> None:
        if not self.closed:
            super().close()
            if self._is_closing:
                os.close(self._descriptor)


def _flags(mode: str) -> int:
    access = os.O_RDWR if "+" in mode else os.O_WRONLY
    kinds = {"w": os.O_CREAT | os.O_TRUNC, "a": os.O_CREAT | os.O_APPEND, "x": os.O_CREAT | os.O_EXCL, "r": 0}
    return access | os.O_CLOEXEC | next(kinds[sign] for sign in mode if sign in kinds)


@contextmanager
def folder_in_memory() -> Iterator[Path]:
    """Give an empty folder that is quick: no real disk is needed where a false one stands before it."""
    memory = "/dev/shm"
    place = memory if os.path.isdir(memory) and os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="truestep-", dir=place) as folder:
        yield Path(folder)
