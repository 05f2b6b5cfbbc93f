"""A seed that the script has, as an option or a constant, and gives to no generator of torch.

Owns finding it in the source, and the line at which a reader looks for the call. Judges nothing.
"""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from truestep.rules import Evidence, Source
from truestep.rules.kit.syntax import walk
from truestep.rules.kit.where import Function, covers, has_run, name_of

_NAME = re.compile(r"(?:.*_)?seed|manualseed", re.IGNORECASE)
_SEEDING = re.compile(r"seed", re.IGNORECASE)
_DEVICE = re.compile(r"device|is_available|accel|cuda")
_OTHERS = re.compile(r"(?:.*\.)?(?:cuda|xpu|mps|np|numpy|random|env|envs|\w*_?space)\.\w+")
"""Calls that seed something else than torch's generator of the CPU."""


class GivenSeed(NamedTuple):
    """A seed that no call gives to torch."""

    name: str
    """As the user knows it: `--seed` or `SEED`."""
    file: str
    line: int
    """Where it is used last as a seed, or where options are read and a device chosen, or where it is set."""


def find_given_seed(evidence: Evidence) -> GivenSeed | None:
    """Return the seed that the script has and gives to nothing that seeds torch, if there is one."""
    for source in evidence.sources:
        if not has_run(evidence, source, line=1):
            continue
        for name, shown, line in sorted(_set_in(source.tree), key=lambda item: item[2]):
            is_option = shown != name  # a function that only reads options is not seen to run
            if (is_option or has_run(evidence, source, line=line)) and not _may_seed_torch(source, name):
                uses = [call.lineno for call in _seedings(source, name)]
                uses = [item for item in uses if has_run(evidence, source, line=item)]
                read_at = _read_at(source) if is_option else None
                return GivenSeed(shown, source.path, max(uses, default=read_at or line))
    return None


def _set_in(tree: ast.AST) -> Iterator[tuple[str, str, int]]:
    """Yield the name of each option and constant that is a seed, how it is written, and its line."""
    for node in walk(tree):
        if isinstance(node, ast.Call) and name_of(node.func) == "add_argument":
            default = next((word.value for word in node.keywords if word.arg == "default"), None)
            texts = [item.value for item in node.args if isinstance(item, ast.Constant)]
            option = next((item for item in texts if isinstance(item, str) and item.startswith("--")), "")
            name = option.removeprefix("--").replace("-", "_")
            if _NAME.fullmatch(name) and _is_number(default, least=1):
                yield name, option, node.lineno
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            name = name_of(targets[0]) or ""
            if _NAME.fullmatch(name) and _is_number(node.value, least=0):
                yield name, name, node.lineno


def _is_number(node: ast.expr | None, *, least: int) -> bool:
    """Whether it is a whole number. 0 as an option's default often means: no seed."""
    return isinstance(node, ast.Constant) and type(node.value) is int and node.value >= least


def _seedings(source: Source, name: str) -> Iterator[ast.Call]:
    """Yield the calls that are given the seed to seed something."""
    for node in walk(source.tree):
        if not isinstance(node, ast.Call):
            continue
        words = [word.value for word in node.keywords if word.arg and _SEEDING.search(word.arg)]
        given = [*node.args, *words] if _SEEDING.search(name_of(node.func) or "") else words
        if any(name_of(part) == name for item in given for part in ast.walk(item)):
            yield node


def _may_seed_torch(source: Source, name: str) -> bool:
    """Whether a call might that did not run, or the script counts with it."""
    for node in walk(source.tree):
        if isinstance(node, ast.AugAssign) and name_of(node.target) == name:
            return True
        if isinstance(node, Function) and _SEEDING.search(node.name):
            return True
    called = [call.func for call in _seedings(source, name) if _SEEDING.search(name_of(call.func) or "")]
    return not all(_OTHERS.fullmatch(ast.unparse(func)) for func in called)


def _read_at(source: Source) -> int | None:
    """Return the line that reads the script's options; if a device is chosen right after it, that of this."""
    names = ("parse_args", "parse_known_args")
    calls = (node for node in walk(source.tree) if isinstance(node, ast.Call))
    line = max((call.lineno for call in calls if name_of(call.func) in names), default=None)
    for node in walk(source.tree):
        body = getattr(node, "body", None)
        for first, second in pairwise(body if isinstance(body, list) else ()):
            if covers(first, line) and _DEVICE.search(ast.unparse(second)):
                return second.end_lineno if isinstance(second, ast.Assign | ast.If) else line
    return line
