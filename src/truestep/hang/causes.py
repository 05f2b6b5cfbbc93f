"""Likely causes: what in the user's source sends one rank another way.

Owns which signs point to which cause. Reads sources as text, runs nothing, and claims nothing about ranks:
that is settled by the verdict.
"""

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from truestep.hang.verdict import Verdict, differs, name_ranks
from truestep.watch.evidence.kinds import Place
from truestep.watch.evidence.stalls import INIT, NEW_GROUP, Standing

_RANK = re.compile(r"rank|is_(?:main|master|primary|first)|is_global_zero|should_save", re.IGNORECASE)
_EVALUATION = re.compile(r"eval|valid|\btest(?!ing_)", re.IGNORECASE)
_SAVING = re.compile(r"save|checkpoint|snapshot", re.IGNORECASE)
_BLOCKS = ("body", "orelse", "finalbody")
Read = Callable[[str], str]


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A likely cause, and what to do about it."""

    name: str
    sentence: str
    fix: str
    about: int | None = None
    """The rank that takes the way which the others do not."""


def read_source(path: str) -> str:
    """Return a file of the user's; empty if it cannot be read."""
    try:
        return Path(path).read_bytes().decode(errors="replace")
    except OSError:
        return ""


def find_cause(verdict: Verdict, *, read: Read = read_source) -> tuple[Verdict, Cause | None]:
    """Return the most likely cause; and the verdict, turned round if the source shows another odd one."""
    if verdict.kind == "absent":
        return verdict, _of_stuck(verdict) or _of_sources(verdict, read)[1]
    number, cause = _of_sources(verdict, read)
    if not verdict.is_even:
        return verdict, cause
    turned = replace(verdict, odd=verdict.waiting, waiting=verdict.odd)
    other_number, other = _of_sources(turned, read)
    if other_number < number:
        verdict, turned, cause = turned, verdict, other
    is_about_odd = cause is None or cause.about in (None, *(item.rank for item in verdict.odd))
    return verdict if is_about_odd else turned, cause


_STUCK = {
    "lock": "{ranks} waits for a lock that no thread of the process can release",
    "input": "{ranks} waits for input: breakpoint(), pdb or input()",
    "queue": "{ranks} waits for a queue or pipe that no other process has open: its producer has ended",
    "loader": "a DataLoader worker of {ranks} waits for a lock that was held when it was forked",
    "stopped": "{ranks} is stopped by a signal (SIGSTOP, or a job that was suspended)",
}
"""What a rank is that cannot continue, by how it is stuck."""
_WORK = {"evaluation": (_EVALUATION, "evaluates"), "saving": (_SAVING, "saves a checkpoint")}
_TOGETHER = (
    "Let all ranks enter it together, or call the collectives in it on no rank: use the model inside the DDP "
    "wrapper, and a barrier that every rank calls."
)
_FIXES = {
    "lock": "Release the lock on every path (use `with lock:`), and never take it twice in one thread.",
    "input": "Remove the breakpoint, or debug with one process.",
    "queue": "See why the producer ended: its exit code, or the kernel's log if memory ran out. Wait with "
    "get(timeout=...) and check that the process is alive.",
    "loader": "Create locks, threads and clients inside the worker, pass multiprocessing_context='spawn', or "
    "try num_workers=0.",
    "stopped": "Continue it: kill -CONT {pid}",
    "rank branch": "Call the collective on every rank. Keep only printing and writing inside the condition.",
    "uneven batches": "Give every rank the same number of steps: a DistributedSampler, drop_last=True, or "
    "`with model.join():` around the loop.",
    "swallowed exception": "Do not catch errors around a collective on one rank: raise them, or let all "
    "ranks decide together to skip the step.",
    "pair": "Call the matching {half} on rank {peer}; check src, dst and the order of both.",
    "group": "Call {call} on every rank, in the same order, also on ranks outside the group.",
    "shape": "Make the tensor the same on all ranks: pad the last batch, or exchange sizes first.",
    "dtype": "Convert the tensor to one dtype on all ranks before the collective.",
    "branch": "Decide on one rank and broadcast the decision, or reduce it over all ranks first.",
    "evaluation": _TOGETHER,
    "saving": _TOGETHER,
    "order": "Call the same collectives in the same order on every rank. Sort what you loop over: the order "
    "of a set differs between processes.",
}
"""What to do, by cause."""


def _cause(name: str, sentence: str, about: Standing | None = None, **words: object) -> Cause:
    fix = _FIXES[name].format(**words)
    return Cause(name=name, sentence=sentence, fix=fix, about=None if about is None else about.rank)


def _of_stuck(verdict: Verdict) -> Cause | None:
    odd = verdict.odd[0]
    if odd.doing != "stuck" or odd.how not in _STUCK:
        return None
    return _cause(odd.how, _STUCK[odd.how].format(ranks=name_ranks(verdict.odd)), pid=odd.pid)


def _of_sources(verdict: Verdict, read: Read) -> tuple[int, Cause | None]:
    """Return the first cause that the source shows, and its place among all: the clearest signs first."""
    odd, other = verdict.odd[0], verdict.waiting[0]
    for number, finder in enumerate(_FINDERS):
        cause = finder(odd, other, read)
        if cause is not None:
            return number, cause
    return len(_FINDERS), None


def _both(odd: Standing, other: Standing) -> tuple[tuple[Standing, Standing], ...]:
    return ((odd, other), (other, odd))


def _rank_branch(odd: Standing, other: Standing, read: Read) -> Cause | None:
    """A condition on the rank around one side's line, and not around the other's."""
    for item, rest in _both(odd, other):
        if item.pending is not None and item.pending.is_pair:
            continue  # a send or a receive belongs under a condition on the rank
        for place in _places(item):
            test = _rank_test(place, read)
            if test is None or any(_rank_test(known, read) == test for known in _places(rest)):
                continue
            if item is other and not odd.stack and odd.doing != "ended":
                continue
            line, text, _ = test
            words = f"`{text}` at line {line} lets only some ranks reach line {place.line}"
            return _cause("rank branch", words, item)
    return None


def _rank_test(place: Place, read: Read) -> tuple[int, str, str] | None:
    """Return the condition on the rank that decides whether a line is reached, and its branch."""
    for node in _around(place, read):
        if (
            isinstance(node, ast.If)
            and _RANK.search(ast.unparse(node.test))
            and _is_in_body(node, place.line)
        ):
            return node.lineno, f"if {ast.unparse(node.test)}", _arm(node, place.line)
    for node in _left_before(place, read):
        if _RANK.search(ast.unparse(node.test)):
            return node.lineno, f"if {ast.unparse(node.test)}", "after"
    return None


def _uneven_batches(odd: Standing, other: Standing, read: Read) -> Cause | None:
    """One side is still in a loop that the other has left."""
    for item, rest in _both(other, odd):
        loop = _left_loop(item, rest, read)
        if loop is not None:
            words = (
                f"rank {rest.rank} left the loop of line {loop.lineno}, which rank {item.rank} is still in: "
                f"it has fewer batches{_counts(rest, item)}"
            )
            return _cause("uneven batches", words, rest)
    return None


def _left_loop(inside: Standing, outside: Standing, read: Read) -> ast.For | ast.While | None:
    """Return the loop that one rank is in and that the other has left in the same function."""
    for place in reversed(_places(inside)):  # the outermost that was left: a loop over parameters is in it
        loops = [node for node in _around(place, read) if isinstance(node, ast.For | ast.While)]
        for loop in loops:
            for known in _places(outside):
                is_same = (known.file, known.function) == (place.file, place.function)
                if is_same and known.line > (loop.end_lineno or loop.lineno):
                    return loop
            if outside.doing == "ended" and _num_made(outside, like=inside):
                return loop
    return None


def _num_made(item: Standing, *, like: Standing) -> int:
    """Return how many collectives a rank has entered of the kind that another one waits in."""
    return (item.by_kind or {}).get(like.pending.kind, 0) if like.pending is not None else 0


def _counts(fewer: Standing, more: Standing) -> str:
    low, high = _num_made(fewer, like=more), _num_made(more, like=more)
    if more.pending is None or not low < high:
        return ""
    return f" ({low} times {more.pending.kind} against {high})"


def _swallowed_exception(odd: Standing, other: Standing, read: Read) -> Cause | None:
    """A line with collectives in a `try` that one rank has left by its `except`, and then continued."""
    for place in _places(other):
        for node in _around(place, read):
            if not isinstance(node, ast.Try) or not _is_in_body(node, place.line):
                continue
            handler = next((item for item in node.handlers if not _raises(item)), None)
            if handler is None or not 0 < _num_made(odd, like=other) < _num_made(other, like=other):
                continue
            if _has_fewer_turns(odd, other, place, read):
                continue
            words = (
                f"the `except` at line {handler.lineno} swallowed an error on rank {odd.rank}, "
                f"which then skipped a collective{_counts(odd, other)}"
            )
            return _cause("swallowed exception", words, odd)
    return None


def _has_fewer_turns(odd: Standing, other: Standing, place: Place, read: Read) -> bool:
    """Whether the counter of a loop shows that a rank had fewer batches, and not that it skipped one."""
    names = {
        name.id
        for node in _around(place, read)
        if isinstance(node, ast.For)
        for name in ast.walk(node.target)
        if isinstance(name, ast.Name)
    }
    for one, mine in zip(odd.stack, odd.numbers, strict=False):
        for two, theirs in zip(other.stack, other.numbers, strict=False):
            if (one.file, one.function) == (two.file, two.function):
                shared = [name for name in names if name in mine and name in theirs]
                return any(mine[name] < theirs[name] for name in shared)
    return False


def _pair(odd: Standing, other: Standing, _read: Read) -> Cause | None:
    for item in (odd, other):
        pending = item.pending
        if pending is not None and pending.is_pair and pending.members:
            word, half = ("from", "send") if pending.name == "recv" else ("to", "recv")
            peer = pending.members[0]
            words = (
                f"rank {item.rank} is in {pending.name} {word} rank {peer}, and rank {peer} does not call "
                "the other half"
            )
            return _cause("pair", words, item, half=half, peer=peer)
    return None


def _group(odd: Standing, other: Standing, _read: Read) -> Cause | None:
    for item, rest in _both(odd, other):
        if item.pending is not None and item.pending.name in (INIT, NEW_GROUP):
            call = item.pending.name
            return _cause("group", f"only some ranks call {call}, which all ranks must call", rest, call=call)
    return None


def _other_tensors(odd: Standing, other: Standing, _read: Read) -> Cause | None:
    if odd.pending is None or other.pending is None:
        return None
    what = differs(odd.pending, other.pending)
    if what not in ("shape", "dtype"):
        return None
    words = (
        f"the {what} of the tensor in {odd.pending.name} differs between ranks: "
        f"{odd.pending.tensors} on rank {odd.rank}, {other.pending.tensors} on rank {other.rank}"
    )
    return _cause(what, words)


def _other_work(odd: Standing, other: Standing, read: Read) -> Cause | None:
    """One side is in a function of evaluation or of saving, and the other is not."""
    for name, (pattern, word) in _WORK.items():
        for item, rest in _both(odd, other):
            if _works_on(item, pattern, read) and not _works_on(rest, pattern, read):
                return _cause(name, f"rank {item.rank} {word} while rank {rest.rank} is elsewhere", item)
    return None


def _works_on(item: Standing, pattern: re.Pattern[str], read: Read) -> bool:
    if any(pattern.search(place.function) for place in item.stack):
        return True
    return any(pattern.search(_line_text(place, read).partition("#")[0]) for place in _places(item)[:2])


def _branch(odd: Standing, other: Standing, read: Read) -> Cause | None:
    """A condition around one side's line only, or with each side in another branch."""
    for item, rest in _both(odd, other):
        for place in _places(item):
            for node in _around(place, read):
                arm = _arm(node, place.line) if isinstance(node, ast.If) else ""
                if not arm or not isinstance(node, ast.If):
                    continue
                if any(_arm(node, known.line) == arm for known in _places(rest) if known.file == place.file):
                    continue
                true, false = (item, rest) if arm == "body" else (rest, item)
                words = (
                    f"`if {ast.unparse(node.test)}` at line {node.lineno} was true on rank {true.rank} "
                    f"and not on rank {false.rank}"
                )
                return _cause("branch", words, item)
    return None


def _order(odd: Standing, other: Standing, _read: Read) -> Cause | None:
    mine, theirs = odd.pending, other.pending
    if mine is None or theirs is None:
        return None
    ranks = f"rank {odd.rank} and rank {other.rank}"
    if mine.group != theirs.group:
        return _cause("order", f"{ranks} wait in different groups, whose ranks wait for each other")
    words = (
        f"{ranks} call different collectives as number {mine.number} of the group: another order, or one "
        "that the other rank does not call"
    )
    return _cause("order", words)


_FINDERS = (
    _rank_branch,
    _swallowed_exception,
    _uneven_batches,
    _pair,
    _group,
    _other_tensors,
    _branch,
    _other_work,
    _order,
)
"""From causes with clear signs to those that are only a place to look at."""


def _places(item: Standing) -> list[Place]:
    """Return the user's lines of a rank, innermost first; those of its last collective if it has ended."""
    if item.stack:
        return list(item.stack)
    return [item.pending.place] if item.pending is not None and item.pending.place is not None else []


@lru_cache(maxsize=64)
def _tree(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _covers(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _around(place: Place, read: Read) -> Iterator[ast.stmt]:
    """Yield the statements around a line, the outermost first, inside the function that it is in."""
    for node in _statements(_scope(place, read)):
        if _covers(node, place.line):
            yield node


def _scope(place: Place, read: Read) -> ast.AST:
    """Return the innermost function around a line, or the module."""
    tree = _tree(read(place.file))
    found: ast.AST = tree
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if _covers(node, place.line) and node.name == place.function:
            found = node
    return found


def _statements(scope: ast.AST) -> Iterator[ast.stmt]:
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if isinstance(node, ast.stmt):
            yield node
        yield from _statements(node)


def _is_in_body(node: ast.stmt, line: int) -> bool:
    """Whether a line is in the body of a statement, or in its `else`, and not in its first line."""
    parts = [item for name in _BLOCKS for item in getattr(node, name, [])]
    return any(_covers(item, line) for item in parts)


def _arm(node: ast.If, line: int) -> str:
    """Return which branch of a condition a line is in: `body`, `orelse`, or neither."""
    for name in ("body", "orelse"):
        block: list[ast.stmt] = getattr(node, name)
        if any(_covers(item, line) for item in block):
            return name
    return ""


def _left_before(place: Place, read: Read) -> Iterator[ast.If]:
    """Yield conditions before a line, in a block around it, under which the block is left."""
    for block in _blocks(_scope(place, read)):
        if not block[0].lineno <= place.line <= (block[-1].end_lineno or block[-1].lineno):
            continue
        for node in block:
            if node.lineno >= place.line:
                break
            if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Return | ast.Continue | ast.Break):
                yield node


def _blocks(scope: ast.AST) -> Iterator[list[ast.stmt]]:
    for name in _BLOCKS:
        block = getattr(scope, name, None)
        if isinstance(block, list) and block:
            yield block
            for node in block:
                if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    yield from _blocks(node)
    for handler in getattr(scope, "handlers", []):
        yield from _blocks(handler)


def _raises(handler: ast.ExceptHandler) -> bool:
    return any(isinstance(node, ast.Raise) for node in ast.walk(handler))


def _line_text(place: Place, read: Read) -> str:
    lines = read(place.file).split("\n")
    return lines[place.line - 1].strip() if 0 < place.line <= len(lines) else ""
