"""A device for tests that behaves like a GPU where that matters, on any machine with a compiler.

It is called "toy" and has two devices, `toy:0` and `toy:1`. `source/` is its C++, `toy/` what scripts import.
`environment` gives what a script needs to find it. It is compiled once per torch into the user's cache, which
takes a minute of processor time; later starts need 0.1 s.

As on a GPU:

- Backward runs on autograd's threads, and mixing devices is an error.
- Each operator takes time on the device's clock, and the host runs ahead. What makes a GPU's host wait sleeps
  until that time and is recorded with the Python lines that led to it: `toy.waits()`, or the file in TOY_LOG.
- Generators, memory statistics, a limit that raises `torch.OutOfMemoryError`, autocast, pinned memory,
  streams and events are the device's. After a fork the device cannot be used.

Not as on a GPU: kernels are the CPU's and done before the call returns, so the bits are the CPU's, and a
missing synchronisation shows nothing. Only attention and recurrent layers take other kernels than on the CPU.
Sparse tensors, quantisation, compiled code and the profiler's device activity are missing.
"""

import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
AUTOLOAD = "TOY_AUTOLOAD"
"""Variable: what `tests.preloaded` forks loads the device. Python does, as torch finds it on the path."""


def environment(**settings: str) -> dict[str, str]:
    """Return variables with which a script finds the device and has it loaded when it starts.

    >>> subprocess.run([sys.executable, "train.py"], env={**os.environ, **environment(TOY_KERNEL_US="50")})
    """
    path = os.pathsep.join(filter(None, [str(FOLDER), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, AUTOLOAD: "1", **settings}


def run(code: str, *, cwd: Path | None = None, **settings: str) -> str:
    """Run code that uses the device in a process for it, and return what it printed.

    The device is never loaded into the tests' own process: other tests would find an accelerator there.
    """
    words = [sys.executable, "-c", code]
    variables = {**os.environ, **environment(**settings)}
    done = subprocess.run(
        words, env=variables, cwd=cwd, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
