"""Links, pipes and devices planted in a run folder: nothing that truestep writes leaves it through them.

Which names are written is observed, so that one that is added later is covered too.
"""

import itertools
import os
import re
import shutil
import signal
import stat
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import truestep as ts
from truestep import cli
from truestep.base.bits import digest_state
from truestep.errors import TruestepError

MAX_S = 60
SCRIPT = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    optimizer.zero_grad()
    model(torch.ones(4, 2)).mean().backward()
    optimizer.step()
"""
PRECIOUS = b"precious\n"


class Ear:
    """Hears every name below a folder that Python writes, makes, renames or removes."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.names: set[str] = set()
        sys.addaudithook(self._hear)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if self.folder is None:
            return
        if event == "open":
            path, mode, flags = args
            is_writing = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) or set(mode or "") & set("wax+")
            paths = [path] if is_writing else []
        elif event == "os.rename":
            paths = list(args[:2])
        elif event in ("os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.link", "shutil.rmtree"):
            paths = [args[0]]
        else:
            return
        for path in paths:
            if isinstance(path, str | os.PathLike):
                self._add(Path(os.path.abspath(path)))  # noqa: PTH100 - links are not followed

    def _add(self, path: Path) -> None:
        assert self.folder is not None
        while path != self.folder and path.is_relative_to(self.folder):
            self.names.add(str(path.relative_to(self.folder)))
            path = path.parent


EAR = Ear()


@contextmanager
def hearing(folder: Path) -> Iterator[set[str]]:
    """Collect the names that are written below a folder; also those that no hook of Python saw."""
    before = look(folder)
    EAR.folder, EAR.names = folder, set()
    try:
        yield EAR.names
    finally:
        EAR.folder = None
    after = look(folder)
    EAR.names.update(name for name in after if after[name] != before.get(name))


def look(folder: Path) -> dict[str, Any]:
    """Return what there is below a folder: kinds, permissions and contents."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content: Any = None
        if stat.S_ISREG(status.st_mode):
            content = path.read_bytes()
        found[str(path.relative_to(folder))] = (status.st_mode, content)
    return found


@dataclass(frozen=True)
class Case:
    """Something that writes into a run folder, and what it gives."""

    name: str
    act: Callable[[Path], Any]
    is_fresh: bool = False
    """Whether it begins in an empty folder."""


def train(folder: Path, epochs: int = 2) -> str:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = ts.Snapshots(every_steps=2, in_background=False)
    with ts.Run(folder, seed=1, lanes=1, snapshots=options, progress=False) as run:
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(ts.Loader([torch.ones(2)] * 4, batch_size=2), epochs=epochs):
            for x in step:
                step.backward(model(x).sum())
            step.update(optimizer)
            step.log(shown=1.0)
    return digest_state(model.state_dict())


def command(*words: str) -> Callable[[Path], Any]:
    """Return what runs a command in this process on the folder `GIFT`; the last word names its answer."""
    *arguments, answer = words

    def act(folder: Path) -> Any:
        sys.argv = ["truestep", *(word.replace("GIFT", str(folder)) for word in arguments)]
        with pytest.raises(SystemExit) as ended:
            cli.main()
        if ended.value.code:
            raise SystemExit(ended.value.code)
        path = folder / answer
        if path.is_dir():
            assert any(path.iterdir())
            return None
        assert path.is_file() and not path.is_symlink() and path.stat().st_nlink == 1
        return path.suffix == ".jsonl" or path.read_bytes().replace(bytes(folder.parent), b"")

    return act


RECORDED = ["--record", "GIFT"]
CASES = [
    Case("run, begun", train, is_fresh=True),
    Case("run, resumed", train),
    Case("report", command("report", "GIFT", "report.html")),
    Case("csv", command("export", "GIFT", "--to", "csv", "record.csv")),
    Case("tensorboard", command("export", "GIFT", "--to", "tensorboard", "tensorboard")),
    Case("followed", command("export", "GIFT", "--to", "tensorboard", "--follow", "tensorboard")),
    Case("check", command("check", *RECORDED, "train.py", "record.jsonl")),
    Case("verify", command("verify", *RECORDED, "--steps", "2", "train.py", "record.jsonl")),
]


@pytest.fixture(scope="module")
def gift(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is half done."""
    folder = tmp_path_factory.mktemp("made") / "gift"
    train(folder, epochs=1)
    return folder


class Place:
    """A copy of the gift, with something outside of it that must stay as it is."""

    def __init__(self, root: Path, case: Case, gift: Path) -> None:
        self.folder, self.outside = root / "gift", root / "outside"
        if case.is_fresh:
            self.folder.mkdir(parents=True)
        else:
            shutil.copytree(gift, self.folder)
        self.outside.mkdir(parents=True)

    def plant(self, name: str, kind: str) -> bool:
        """Put something in the place of a name; False if this machine cannot make it."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        target, was_folder = self.outside / "target", path.is_dir()
        if path.exists():  # what was there, so that who follows a link finds all that he expects
            path.rename(target)
        if kind == "link to a folder":
            if target.is_file():
                target.unlink()
            target.mkdir(exist_ok=True)
            for decoy in (".tmp-1-1", ".trash-1-1"):
                (target / decoy).mkdir()
                (target / decoy / "precious").write_bytes(PRECIOUS)
            (target / "step-000000000009.witness.json").write_bytes(PRECIOUS)
        elif not target.exists():
            target.write_bytes(PRECIOUS)
        return self._make(path, kind, target=target) and not (kind == "hard link" and was_folder)

    def _make(self, path: Path, kind: str, *, target: Path) -> bool:
        if kind.startswith("link"):
            path.symlink_to(os.path.relpath(target, path.parent))
        elif kind == "dangling link":
            path.symlink_to(self.outside / "new")
        elif kind == "hard link" and target.is_file():
            path.hardlink_to(target)
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        elif kind == "device":
            try:
                os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
            except PermissionError:
                return False
        return True


KINDS = ("link to a file", "link to a folder", "dangling link", "hard link", "pipe", "device", "folder")


def pairs(names: set[str]) -> Iterator[tuple[str, str]]:
    """Yield names with each kind; names that differ in numbers only take turns."""
    alike = defaultdict(list)
    for name in sorted(names):
        alike[re.sub(r"\.new-\w+|\d+", "#", name)].append(name)
    for members in alike.values():
        yield from zip(itertools.cycle(members), KINDS, strict=False)


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    def give_up(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_nothing_that_is_written_leaves_the_folder(
    case: Case,
    gift: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # most of the time, and no part of the claim
    monkeypatch.setattr(sys, "argv", ["truestep"])
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    good = Place(tmp_path / "good", case, gift)
    with hearing(good.folder) as names:
        wanted = case.act(good.folder)
    assert names
    for number, (name, kind) in enumerate(pairs(names)):
        place = Place(tmp_path / str(number), case, gift)
        if not place.plant(name, kind):
            continue
        before = look(place.outside)
        capfd.readouterr()
        told, code, given = "", 2, None
        with at_most(MAX_S):
            try:
                given = case.act(place.folder)
            except SystemExit as ended:
                told, code = capfd.readouterr().err, ended.code
            except TruestepError as error:
                told = str(error)
        assert look(place.outside) == before, (name, kind)
        is_told = code == 2 and name.split("/")[0] in told
        assert is_told if told else given == wanted, (name, kind, told)
        shutil.rmtree(tmp_path / str(number))
