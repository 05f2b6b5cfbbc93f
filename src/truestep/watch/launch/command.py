"""Starting a script under observation, as `python SCRIPT` or `python -m MODULE` would start it.

Owns the command line of the watched process. What happens in it is in `exec_script`.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from truestep.base.interpreter import python_module
from truestep.base.variables import read_variables
from truestep.errors import UsageError
from truestep.watch.launch.scratch import Scratch
from truestep.watch.plan import Plan

# The working folder leaves the path first: a file in it must not shadow a module that we import.
_CODE = (
    "import sys; sys.flags.safe_path or sys.path.pop(0); "
    "from truestep.watch.script.exec_script import exec_script; exec_script({settings!r})"
)

# Some things are settled before Python has started: this sets them, then becomes the watched process.
_BEFORE = """\
import os, sys
for name, value in {environment!r}.items():
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
if {fixed!r}:
    import ctypes
    personality = ctypes.CDLL(None).personality
    personality.argtypes = [ctypes.c_ulong]
    personality(personality(0xFFFFFFFF) | 0x0040000)  # ADDR_NO_RANDOMIZE; refused in some containers
os.execvp(sys.argv[1], sys.argv[1:])
"""


@dataclass(frozen=True, kw_only=True)
class Script:
    """What is run: as `python PATH ARGUMENTS`, or `python -m PATH ARGUMENTS`."""

    path: str
    arguments: tuple[str, ...] = ()
    is_module: bool = False
    device: Literal["cpu"] | None = None
    """The device that stands in for CUDA; None leaves the choice to torch."""

    @property
    def name(self) -> str:
        """Its name without the folder, for messages."""
        return self.path if self.is_module else Path(self.path).name

    @property
    def folder(self) -> Path:
        """Where its own files are: beside it, or under the working folder for a module."""
        return Path.cwd() if self.is_module else Path(self.path).resolve().parent


def command(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    plan: Plan,
    folder: Path,
    module: bool = False,
    python: Sequence[str] = (),
    environment: Mapping[str, str | None] | None = None,
    processes: int | None = None,
) -> list[str]:
    """Return the command that runs a script under observation; each process of it adds a file to the folder.

    `python` is the interpreter with its options, this one if not given. With `module` the script is a
    module's name, as for `python -m`. `environment` has variables to set; None takes one away. With
    `processes` torchrun starts so many.
    """
    if not module and not Path(script).exists():
        raise UsageError(f"{script} does not exist. Pass the path of a script, or module=True and its name.")
    settings = {
        "script": str(script),
        "module": module,
        "folder": str(folder.absolute()),
        "plan": plan.as_fields(),
    }
    words = [*(python or [sys.executable]), "-c", _CODE.format(settings=settings), *arguments]
    words = [*_before(environment or {}, plan.frozen), *words]
    return words if processes is None else _under_torchrun(words, processes)


def plain_command(script: str | Path, arguments: Sequence[str], *, folder: Path) -> list[str]:
    """Return the command that runs a script with nothing observed but where it stands when it hangs."""
    settings = {"script": str(script), "module": False, "folder": str(folder.absolute()), "plan": None}
    return [sys.executable, "-u", "-c", _CODE.format(settings=settings), *arguments]


def start(
    script: Script,
    *,
    plan: Plan,
    folder: Path,
    scratch: Scratch | None = None,
    environment: Mapping[str, str | None] | None = None,
    processes: int | None = None,
    python: str | None = None,
    **how: Any,
) -> subprocess.Popen[bytes]:
    """Start a script as `command` says, in the copied working folder if there is one.

    `how` is for Popen. Evidence goes to the folder.
    """
    if script.device is not None:
        plan = replace(plan, cuda_devices=processes or 1)  # one for each
    if python is not None and scratch is not None:
        known = read_variables(["PYTHONPATH"]).get("PYTHONPATH", "")
        environment = {**(environment or {}), "PYTHONPATH": f"{scratch.package()}{os.pathsep}{known}"}
    path = script.path if scratch is None or script.is_module else scratch.locate(script.path)
    words = command(
        path,
        script.arguments,
        plan=plan,
        folder=folder,
        module=script.is_module,
        environment=environment,
        processes=processes,
        python=() if python is None else (python,),
    )
    return subprocess.Popen(words, cwd=None if scratch is None else scratch.work, **how)


def _under_torchrun(words: list[str], processes: int) -> list[str]:
    number = f"--nproc-per-node={processes}"
    torchrun = python_module("torch.distributed.run", "--standalone", number, "--no-python")
    return [*torchrun, *(word.replace("$", "$$") for word in words)]  # it replaces ${local_rank}, and $$ by $


def _before(environment: Mapping[str, str | None], frozen: Sequence[str]) -> list[str]:
    """Return the prefix of the command, which sets what must be set before Python starts."""
    # Addresses need it too: sets of names are walked while modules are imported, and objects made on the way.
    fixed_hash = {"PYTHONHASHSEED": "0"} if {"hash", "addresses"} & set(frozen) else {}
    settled = {**environment, **fixed_hash}
    fixed = "addresses" in frozen and sys.platform == "linux"
    if not settled and not fixed:
        return []
    # -I: what the environment says is meant for the script. A torchrun has set its own by then.
    return [sys.executable, "-I", "-S", "-c", _BEFORE.format(environment=settled, fixed=fixed)]
