"""Processes that the script starts through `multiprocessing` without a fork: CUDA is redirected in them too.

Owns the beginning of their command line. Forked ones have all that their parent has; programs that the script
starts in other ways are left alone. Imports no torch.
"""

from typing import Any

from truestep.watch.hooks.table import Function, Hook, put
from truestep.watch.script.tape import Tape

# As at the start of a script: what lies in the working folder must not stand in for what we import.
_CODE = (
    "import sys; path = list(sys.path); sys.flags.safe_path or sys.path.pop(0); "
    "from truestep.watch.control.redirect import redirect; redirect({num_devices}); sys.path[:] = path; "
    "del redirect, path; {code}"
)
_STARTS = ("from multiprocessing.spawn", "from multiprocessing.forkserver")
"""How the code begins that is run by such a process; one that is observed redirects CUDA by its plan."""


def redirect_children(tape: Tape) -> None:
    """Redirect CUDA in started processes if the plan says so."""
    num_devices = tape.plan.cuda_devices
    if num_devices:
        put(None, [Hook("multiprocessing.util.spawnv_passfds", start, given=(num_devices,), changes=True)])


def start(num_devices: int, spawn: Function, /, *args: Any) -> Any:
    """Start a process that redirects CUDA first."""
    path, words, *rest = args

    def prefixed(word: Any) -> Any:
        is_code = str(word).startswith(_STARTS)
        return _CODE.format(num_devices=num_devices, code=word) if is_code else word

    return spawn(path, [prefixed(word) for word in words], *rest)
