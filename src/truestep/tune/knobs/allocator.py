"""The allocator: whether glibc gives freed memory back, only to ask the system for it in the next step."""

import platform
from collections.abc import Mapping
from typing import Any

from truestep.base.memory import keep_freed
from truestep.tune.knob import Choice, Knob, ScriptFacts, Skip
from truestep.tune.knobs._worth import too_small
from truestep.watch.script.tape import Tape


def propose(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:  # noqa: ARG001
    """Propose to keep it, where glibc allocates what is computed with."""
    if platform.libc_ver()[0] != "glibc":
        return Skip(reason="the process does not use glibc's allocator.")
    if facts.device != "cpu":
        return Skip(reason="the model is on the GPU, where torch keeps freed memory anyway.")
    skip = too_small(facts, "forward", "backward", what="the model", best="free memory")
    return skip or [Choice(value="keep", words="keep freed memory")]


def apply(value: str, tape: Tape) -> None:  # noqa: ARG001
    """Tell glibc."""
    keep_freed()


KNOB = Knob(
    priority=40,
    about="Keeps freed memory for the next step, which otherwise may request thousands of pages again.",
    propose=propose,
    lines=(
        "libc = ctypes.CDLL(None)  # first thing in the script, after `import ctypes`",
        "libc.mallopt(-1, 2**30)  # M_TRIM_THRESHOLD: keep up to 1 GiB free",
        "libc.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD: keep all smaller blocks",
    ),
    changes_bits=False,
    setting=lambda value: ("allocator", value),
)
