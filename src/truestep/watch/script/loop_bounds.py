"""How many steps a script would make to its end, where its loops say so.

Owns reading the loops around a step: from the source, with what variables hold at the moment. What may end a
loop early, or leave out a step, makes the number unknown. Runs no code of the user's but a loader's length.
"""

import ast
from collections import deque
from functools import lru_cache
from math import prod
from pathlib import Path
from types import FrameType
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

from truestep.watch.digests.keeping import is_looping, locals_of, script_frames
from truestep.watch.script.sites import Sites

_SOME_ROUNDS = (ast.Break, ast.Continue, ast.Return, ast.Raise)
_UNSURE = (ast.While, ast.AsyncFor, ast.If, ast.Match, ast.ExceptHandler)
_PASSES_ON = ("enumerate", "tqdm")
_MISSING = object()


def expected_steps(sites: Sites) -> int | None:
    """Return how many steps the loops around this one make in all; None if that cannot be known."""
    frames = script_frames(sites)
    while frames and not sites.is_own(frames[-1].f_code.co_filename):  # what has made the step
        frames.pop()
    lengths: list[int | None] = []
    for frame in frames:
        if sites.is_own(frame.f_code.co_filename):
            loops = _loops_at(frame.f_code.co_filename, frame.f_lineno)
            lengths += [None] if loops is None else [_length(loop.iter, frame) for loop in loops]
        elif is_looping(frame):
            return None  # a framework's loop
    known = [length for length in lengths if length is not None]
    return prod(known) if known and len(known) == len(lengths) else None


@lru_cache(maxsize=64)
def _loops_at(file: str, line: int) -> tuple[ast.For, ...] | None:
    """Return the loops of one function around a line; None if some round may go without that line."""
    try:
        nodes: list[ast.AST] = [ast.parse(Path(file).read_bytes())]
    except (OSError, SyntaxError, ValueError):
        return None
    found: list[ast.For] = []
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            found = []
        elif isinstance(node, ast.For):
            found.append(node)
        elif isinstance(node, _UNSURE) and (found or isinstance(node, ast.While)):
            return None
        nodes = [inner for inner in ast.iter_child_nodes(node) if _covers(inner, line)]
    is_cut = any(isinstance(inner, _SOME_ROUNDS) for loop in found for inner in ast.walk(loop))
    return None if is_cut else tuple(found)


def _covers(node: ast.AST, line: int) -> bool:
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    return first is not None and last is not None and first <= line <= last


def _length(source: ast.expr, frame: FrameType) -> int | None:
    """Return how many rounds a loop over this makes."""
    if isinstance(source, ast.Call):
        called = source.func.id if isinstance(source.func, ast.Name) else ""
        if called == "range" and not source.keywords:
            bounds = [_value(item, frame) for item in source.args]
            return len(range(*bounds)) if all(type(bound) is int for bound in bounds) else None
        return _length(source.args[0], frame) if called in _PASSES_ON and source.args else None
    value = _value(source, frame)
    if isinstance(value, DataLoader) and type(value).__len__ is DataLoader.__len__:
        try:
            return len(value)
        except TypeError:  # a stream
            return None
    if type(value) in (list, tuple, deque, dict, range):
        return len(value)
    return value.shape[0] if type(value) is Tensor and value.ndim else None


def _value(source: ast.expr, frame: FrameType) -> Any:
    """Return what a name, an attribute of one or a constant holds."""
    if isinstance(source, ast.Constant):
        return source.value
    if isinstance(source, ast.Attribute):
        return getattr(_value(source.value, frame), "__dict__", {}).get(source.attr, _MISSING)
    if isinstance(source, ast.Name):
        return locals_of(frame).get(source.id, frame.f_globals.get(source.id, _MISSING))
    return _MISSING
