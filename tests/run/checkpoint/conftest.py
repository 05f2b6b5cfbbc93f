"""What the checkpoint tests share: exact comparison, small snapshots, and children killed at system calls."""

import os
import signal
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from truestep.base.bits import digest
from truestep.run.checkpoint import Snapshot, Store

CHANGING = [
    "mkdir",
    "open",
    "write",
    "fsync",
    "rename",
    "replace",
    "unlink",
    "remove",
    "rmdir",
    "link",
    "symlink",
    "truncate",
    "ftruncate",
]
RUN = "run-a"


def find_difference(a: Any, b: Any, path: str = "state") -> str | None:
    """Name the first place where two states differ in type, value or bits; None if they do not."""
    if type(a) is not type(b):
        return f"{path}: {type(a)} and {type(b)}"
    if isinstance(a, dict):
        if list(map(repr, a)) != list(map(repr, b)):
            return f"{path}: keys {list(a)} and {list(b)}"
        return next((d for key in a if (d := find_difference(a[key], b[key], f"{path}.{key}"))), None)
    if isinstance(a, list | tuple | deque):
        if len(a) != len(b):
            return f"{path}: lengths {len(a)} and {len(b)}"
        found = (find_difference(x, y, f"{path}.{i}") for i, (x, y) in enumerate(zip(a, b, strict=True)))
        return next((d for d in found if d), None)
    is_same: bool
    if isinstance(a, torch.Tensor):
        is_same = digest([("", _plain(a))]) == digest([("", _plain(b))]) and a.dtype == b.dtype
    elif isinstance(a, numpy.ndarray | numpy.generic):
        is_same = (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    elif isinstance(a, float):
        is_same = numpy.float64(a).tobytes() == numpy.float64(b).tobytes()
    else:
        is_same = a == b
    return None if is_same else f"{path}: {a!r} and {b!r}"


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().resolve_conj().resolve_neg()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def make_states(cursor: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(cursor)
    weight = torch.randn(8, 4, generator=generator)
    state = {0: {"step": torch.tensor(float(cursor)), "exp_avg": torch.randn(8, 4, generator=generator)}}
    return {
        "model": {"weight": weight, "tied": weight, "mask": torch.tensor([True, False])},
        "optimizer": {"state": state, "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.99), "params": [0]}]},
    }


def make_snapshot(cursor: int) -> Snapshot:
    facts = {"recipe": {"seed": 7, "lanes": 4}, "lineage": [cursor]}
    return Snapshot(cursor=cursor, states=make_states(cursor), facts=facts)


def count_or_kill(kill_at: int | None, how: str) -> list[str]:
    """Patch `os` in this process: list the changing calls, and die by SIGKILL at one of them."""
    calls: list[str] = []

    def patch(name: str) -> None:
        original = getattr(os, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            index = len(calls)
            calls.append(name)
            if index == kill_at and how == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            if index == kill_at and how == "halfway" and name == "write":
                original(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            result = original(*args, **kwargs)
            if index == kill_at and how == "after":
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        setattr(os, name, call)

    for name in CHANGING:
        patch(name)
    return calls


def run_in_child(
    work: Callable[[], Any], kill_at: int | None = None, how: str = "before"
) -> tuple[int, list[str]]:
    """Do the work in a forked child; return its wait status and the changing calls it made (if it lived)."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            write = os.write
            calls = count_or_kill(kill_at, how)
            work()
            write(writer, " ".join(calls).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    return os.waitpid(child, 0)[1], text.split()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run" / "snapshots"


@pytest.fixture
def store(folder: Path) -> Store:
    return Store(folder, run_id=RUN)


@pytest.fixture(name="find_difference")
def _find_difference() -> Callable[..., str | None]:
    return find_difference


@pytest.fixture(name="make_snapshot")
def _make_snapshot() -> Callable[[int], Snapshot]:
    return make_snapshot


@pytest.fixture(name="run_in_child")
def _run_in_child() -> Callable[..., tuple[int, list[str]]]:
    return run_in_child
