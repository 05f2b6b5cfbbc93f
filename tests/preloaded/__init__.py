"""A Python for tests that has torch imported already: in tests `sys.executable` is one.

Importing torch takes two to four seconds of processor time, a fork some hundredths of one. The executable is
a small client: it sends its arguments, folder, environment and streams to a server that has torch imported.
The server forks a process that does what Python would do; the client waits for it, passes signals on and ends
as it ends. What that process starts with `sys.executable` is forked from the same server. The first client
starts the server, which ends with the process that called `install`.

A start that a fork cannot imitate is a cold one: other options than -c, -m and -u, other variables that
Python or torch read as they start (another hash seed, another number of threads), inherited descriptors,
other limits or namespaces. The file `cold.log` in the folder says why. All forks have the server's hash seed
and addresses. Tests about those, and some for each command, are marked `cold`.
"""

import json
import os
import sys
from pathlib import Path

FOLDER, COLD = "TRUESTEP_TESTS_PRELOADED", "TRUESTEP_TESTS_COLD"
"""Variables: the folder of the clients, and whether they start Python as users do."""
REAL = sys.executable
"""The Python that runs the tests."""
_HERE = Path(__file__).parent
_COMMANDS = {"python": [], "truestep": ["-m", "truestep"], "torchrun": ["-m", "torch.distributed.run"]}
_STUB = """\
#!{real} -IS
import os, sys
sys.path.insert(0, {here!r})
from client import Client
client = Client([*{words!r}, *sys.argv[1:]], real={real!r}, folder={folder!r}, owner={owner!r})
client.run(is_cold={cold!r} in os.environ)
"""


def install(folder: Path) -> None:
    """Write the clients `python`, `truestep` and `torchrun` into a folder."""
    for name, words in _COMMANDS.items():
        stub = _STUB.format(
            real=REAL,
            here=str(_HERE),
            words=words,
            folder=str(folder),
            owner=os.getpid(),
            cold=COLD,
        )
        (folder / name).write_text(stub)
        (folder / name).chmod(0o700)
    (folder / "environment.json").write_text(json.dumps(dict(os.environ)))


def use(folder: Path) -> None:
    """Put the clients in the place of this process's Python, for what it starts from now on."""
    sys.executable = str(folder / "python")
    os.environ["PATH"] = os.pathsep.join([str(folder), os.environ.get("PATH", os.defpath)])
