"""The examples of our rules: one with the mistake, and one that looks similar and is correct.

Owns where they are: scripts in `rules/examples/CODE`, recorded evidence in `rules/evidence`.
"""

from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path

from tests.patches import apply
from tests.rules.evidence.doctor import CHANGES
from tests.rules.evidence.jobs import JOBS
from tests.rules.evidence.machines import SOUND
from truestep.rules import Evidence

HOME = Path(__file__).parent / "rules"


@dataclass(frozen=True, kw_only=True)
class Scripts:
    """Two scripts, and the first one after the fix, if its page shows that and not the second."""

    buggy: str
    clean: str
    fixed: str | None


@cache
def scripts_of(code: str) -> Scripts | None:
    """Return the scripts of a rule; none if it has recorded evidence."""
    folder = HOME / "examples" / code.lower()
    if not folder.is_dir():
        return None
    buggy, patch = (folder / "buggy.py").read_text(), folder / "fixed.patch"
    fixed = apply(buggy, patch.read_text()) if patch.exists() else None
    return Scripts(buggy=buggy, clean=(folder / "clean.py").read_text(), fixed=fixed)


def buggy(code: str) -> str:
    """Return the script with the mistake."""
    return (HOME / "examples" / code.lower() / "buggy.py").read_text()


def recorded(code: str) -> tuple[Evidence, Evidence]:
    """Return recorded evidence of the mistake, and of what looks similar."""
    if code in CHANGES:
        buggy, clean = (Evidence(machine=replace(SOUND, **changes)) for changes in CHANGES[code])
        return buggy, clean
    if code in JOBS:
        return JOBS[code]
    module = import_module(f"tests.rules.evidence.{code.lower()}")
    return module.BUGGY, module.CLEAN
