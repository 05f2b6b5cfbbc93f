"""What to type instead, when a script fails because of how it was started.

Owns the reasons that are recognized, and the command in each hint.
"""

import re
import shlex
from pathlib import Path

from truestep.watch import Script

_OPTIONS = ("--steps", "--processes", "--select", "--ignore", "--fix", "--format")
_RANK = re.compile(
    r"KeyError: '(?:LOCAL_|NODE_)?(?:RANK|WORLD_SIZE)'"
    r"|environment variable (?:RANK|WORLD_SIZE|MASTER_ADDR|MASTER_PORT) expected, but not set"
)
_RELATIVE = "attempted relative import with no known parent package"


def hint_for(script: Script, error: str, *, is_under_torchrun: bool) -> str:
    """Return a hint to add to the reason for which a script failed; empty if there is none."""
    words = list(script.arguments)
    misplaced = next((word for word in words if word in _OPTIONS), None)
    if misplaced is not None:
        return f". The script got {misplaced}: if it is an option of truestep, put it before the script."
    if not is_under_torchrun and _RANK.search(error):
        name = ["-m", script.path] if script.is_module else [script.path]
        return (
            f". It has to be started by torchrun: truestep check --processes 2 {shlex.join([*name, *words])}"
        )
    if not script.is_module and _RELATIVE in error:
        folder, module = _module_of(Path(script.path).absolute())
        go = "" if folder == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
        return f". It is a module of a package: {go}truestep check -m {shlex.join([module, *words])}"
    return ""


def _module_of(path: Path) -> tuple[Path, str]:
    """Return the folder to stand in, and the name by which `python -m` finds a file from there."""
    folder = path.parent
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        folder = folder.parent
    if folder == path.parent:  # a package without __init__.py: it begins below the working folder
        folder = Path.cwd() if path.parent.is_relative_to(Path.cwd()) else folder
    if folder == path.parent:
        folder = folder.parent
    return folder, ".".join(path.relative_to(folder).with_suffix("").parts)
