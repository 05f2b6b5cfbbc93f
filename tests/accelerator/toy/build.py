"""Compiles the device once per torch and source, into the user's cache."""

import fcntl
import hashlib
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import torch

SOURCE = Path(__file__).parents[1] / "source"
_FLAGS = ["-std=c++20", "-fPIC", "-O0", "-fmax-errors=3"]
_LIBRARIES = ["-lc10", "-ltorch_cpu", "-ltorch_python"]


def library() -> Path:
    """Return the compiled device; compile it if this torch has none. One process does, others wait for it."""
    folder = _cache() / _key()
    found = folder / "toy.so"
    if found.exists():
        return found
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # ends with the process that holds it, however that ends
        if not found.exists():
            _compile(folder)
    return found


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "truestep-tests" / "accelerator"


def _key() -> str:
    content = hashlib.blake2b(" ".join(_FLAGS).encode(), digest_size=8)
    for path in sorted(SOURCE.iterdir()):
        content.update(path.name.encode() + path.read_bytes())
    return f"torch-{torch.__version__}-{sys.implementation.cache_tag}-{content.hexdigest()}"


def _compile(folder: Path) -> None:
    """Compile two files at a time, link, and put the result in place at once."""
    torch_folder = Path(torch.__file__).parent
    includes = [torch_folder / "include", torch_folder / "include/torch/csrc/api/include"]
    flags = [*_FLAGS, *(f"-I{path}" for path in [*includes, sysconfig.get_paths()["include"]])]
    sources = sorted(SOURCE.glob("*.cpp"), key=lambda path: path.stem not in {"operators", "autocast"})
    waiting, running, objects = list(sources), [], []
    while waiting or running:
        while waiting and len(running) < 2:
            source = waiting.pop(0)
            objects.append(folder / f"{source.stem}.o")
            running.append(_start(["g++", *flags, "-c", str(source), "-o", str(objects[-1])]))
        _finish(running.pop(0))
    made = folder / "new.so"
    link = ["g++", "-shared", *map(str, objects), f"-L{torch_folder / 'lib'}", *_LIBRARIES, "-o", str(made)]
    _finish(_start(link))
    for path in objects:
        path.unlink()
    made.rename(folder / "toy.so")


def _start(words: list[str]) -> "subprocess.Popen[str]":
    try:
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    except FileNotFoundError:
        raise RuntimeError("the test accelerator is compiled with g++: install it") from None


def _finish(process: "subprocess.Popen[str]") -> None:
    output, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"the test accelerator does not compile with torch {torch.__version__}:\n{output}")


if __name__ == "__main__":
    library()
