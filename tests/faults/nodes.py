"""Files and folders with what was flushed and what was not, and all that a power cut could make of them."""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

Tree: TypeAlias = dict[str, bytes | None]
"""By path, what each file holds; None for a folder."""


class Write(NamedTuple):
    """Bytes for a place in a file."""

    offset: int
    data: bytes


class Cut(NamedTuple):
    """A new length of a file."""

    size: int


class Names(NamedTuple):
    """Names of a folder that appear (with what they name) and disappear, all at once."""

    changed: dict[str, int | None]


@dataclass
class Node:
    """A file or a folder: what is on the disk for certain, and what was done since it was last flushed."""

    saved: Any
    pending: list[Any] = field(default_factory=list)

    def after(self, changes: list[Any]) -> Any:
        """Return the content if only these of the changes had reached the disk."""
        if isinstance(self.saved, dict):
            names = dict(self.saved)
            for change in changes:
                names.update(change.changed)
            return {name: number for name, number in names.items() if number is not None}
        content = bytearray(self.saved)
        for change in changes:
            if isinstance(change, Cut):
                content = content[: change.size].ljust(change.size, b"\0")
            else:
                content = content.ljust(change.offset, b"\0")
                content[change.offset : change.offset + len(change.data)] = change.data
        return bytes(content)

    def now(self) -> Any:
        return self.after(self.pending)


class Nodes:
    """All files and folders below one folder, which has the number 0."""

    def __init__(self, root: Path) -> None:
        self._numbers = itertools.count(1)
        self.nodes: dict[int, Node] = {}
        self._scan(root, 0)

    def _scan(self, path: Path, number: int) -> None:
        if path.is_dir():
            children = {child.name: next(self._numbers) for child in sorted(path.iterdir())}
            self.nodes[number] = Node(children)
            for name, child in children.items():
                self._scan(path / name, child)
        else:
            self.nodes[number] = Node(path.read_bytes())

    def add(self, *, is_folder: bool) -> int:
        number = next(self._numbers)
        self.nodes[number] = Node({} if is_folder else b"")
        return number

    def find(self, parts: tuple[str, ...]) -> int | None:
        number: int | None = 0
        for part in parts:
            if number is None or not isinstance(self.nodes[number].saved, dict):
                return None
            number = self.nodes[number].now().get(part)
        return number

    def tree(self, choose: Callable[[Node], Any] = Node.now) -> Tree:
        """Return what can be reached if each file and folder has the content that is chosen for it."""
        found: Tree = {}

        def walk(number: int, prefix: str) -> None:
            content = choose(self.nodes[number])
            if isinstance(content, dict):
                found[prefix] = None
                for name, child in content.items():
                    walk(child, f"{prefix}/{name}" if prefix else name)
            else:
                found[prefix] = content

        walk(0, "")
        del found[""]
        return found


def variants(num: int, seeds: range) -> Iterator[tuple[str, Callable[[Node], Any]]]:
    """Yield what can have become of that which was not flushed."""

    def names(content: Callable[[Node], Any]) -> Callable[[Node], Any]:
        return lambda node: node.now() if isinstance(node.saved, dict) else content(node)

    yield "all of it lost", lambda node: node.saved
    yield "all of it kept", Node.now
    yield "names kept, contents lost", names(lambda node: node.saved)
    yield "names kept, contents cut", names(_cut)
    yield "names kept, contents zero", names(_zero)
    yield "names lost, contents kept", lambda node: node.saved if isinstance(node.saved, dict) else node.now()
    for seed in seeds:
        pick = random.Random(f"{num} {seed}")
        yield f"any of it, by seed {seed}", lambda node, pick=pick: _some(node, pick)


def _num_safe(node: Node, content: bytes) -> int:
    """How many bytes cannot be lost: what was flushed, if nothing but the end of the file was changed."""
    return len(node.saved) if content.startswith(node.saved) else 0


def _cut(node: Node) -> bytes:
    content: bytes = node.now()
    least = _num_safe(node, content)
    return content[: least + (len(content) - least) // 2] if node.pending else content


def _zero(node: Node) -> bytes:
    content: bytes = node.now()
    least = _num_safe(node, content)
    return content[:least].ljust(len(content), b"\0") if node.pending else content


def _some(node: Node, pick: random.Random) -> Any:
    content = node.after([change for change in node.pending if pick.random() < 0.5])
    if isinstance(content, dict) or not node.pending or pick.random() < 0.5:
        return content
    return content[: pick.randint(_num_safe(node, content), len(content))]


def build(tree: Tree, folder: Path) -> Path:
    """Make a folder that holds what a power cut left."""
    folder.mkdir(parents=True)
    for name, content in tree.items():
        if content is None:
            (folder / name).mkdir()
        else:
            (folder / name).write_bytes(content)
    return folder
