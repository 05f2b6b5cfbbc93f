"""The order of files in a folder or of items in a set decides what the model is trained on.

## What it finds
A folder listing (`os.listdir`, `glob`, `iterdir`, `os.walk`) that is not sorted, or a set of strings that is
iterated, where the order ends up in lists, labels or indices. Also `hash()` of a string, reduced to a number
of buckets. A remark if the script seeds no generator either.

## Why it matters
File systems list files in any order, and Python's strings have different hashes in every run. Class 3 on one
machine is another class on the next, and word 17 is another word in the next run. Seeds do not help, and a
saved model is used with the wrong labels.

## How to fix
Sort: `sorted(os.listdir(folder))`, `sorted(words)`. Hash with `zlib.crc32(text.encode())`.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from truestep.rules import Evidence, Finding, Meta, Severity, Source
from truestep.rules.kit.edits import Edit, call_at, is_set, replace_node, text_of
from truestep.rules.kit.order import ValueFlow
from truestep.rules.kit.syntax import walk
from truestep.rules.kit.where import assignments, covers, name_of
from truestep.rules.repro._promise import is_meant_to_repeat
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.passes import BackwardPass
from truestep.watch.evidence.facts.surroundings import SourceRead

_TRAINING = (OptimizerStep, BackwardPass)
RULE = Meta(
    code="REPRO02",
    severity="warning",
    is_observed=lambda evidence: any(map(evidence.has, _TRAINING)),
    fix="Put sorted() around the listing or the set before its order is used.",
)
_LISTINGS = frozenset({"listdir", "scandir", "glob", "iglob", "rglob", "iterdir", "walk"})
_SORTABLE = ("listdir", "glob", "iglob", "rglob", "iterdir")
"""Listings whose entries can be compared."""
_ORDERING = ("enumerate", "list", "tuple", "iter", "zip")
_TEXTUAL = re.compile(
    r"(^|_)(word|token|char|character|letter|name|text|sentence|vocab|vocabulary|string|file|path|tag|corpus|"
    r"filename|lemma|ngram|symbol|line)s?($|_)"
)
_GIVES_TEXTS = frozenset(
    {"split", "splitlines", "lower", "upper", "strip", "read", "readlines", "join", "read_text"}
)
_GIVES_NUMBERS = frozenset({"tolist", "item", "range", "int", "randint", "arange", "numpy", "unique"})
_MAX_CHARACTERS = 80
_MAX_DEPTH = 6
_CUTTING = ast.Mod | ast.BitAnd | ast.RShift


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find listings and sets whose order is used, and hashes that are."""
    severity: Severity | None = None if is_meant_to_repeat(evidence) else "info"
    texts = [(*_find_sets(source), *_find_hashes(source)) for source in evidence.sources]
    for finding in (*_find_listings(evidence), *chain.from_iterable(texts)):
        yield replace(finding, severity=severity)


def _find_listings(evidence: Evidence) -> Iterator[Finding]:
    last = max((moment.step for moment in evidence.of(*_TRAINING)), default=-1)
    met: set[tuple[str | None, int | None]] = set()
    for moment in evidence.of(SourceRead):
        place = (moment.file, moment.line)
        is_asked = moment.facts.what == "listing" and moment.step <= last and place not in met
        source = evidence.source(moment.file) if is_asked else None
        if source is None or moment.line is None or "," not in str(moment.facts.result):
            continue  # one entry has no order
        met.add(place)
        flow = ValueFlow(source)
        call = _call_at(flow, moment.line)
        if call is None:
            continue
        decided = flow.decided_at(call)
        if decided is not None:
            yield Finding.at(
                moment,
                "the order of files in the folder listing is used without sorting",
                line=call.lineno,
                evidence=f"{moment.facts.name} returned {_beginning(str(moment.facts.result))}; the order "
                f"is used at line {getattr(decided, 'lineno', call.lineno)}",
            )


def _beginning(listing: str) -> str:
    """Return the first names of a listing, whole, in a short line."""
    if len(listing) <= _MAX_CHARACTERS:
        return listing
    names, comma, _ = listing[:_MAX_CHARACTERS].rpartition(", ")
    return f"{names}{comma}..." if comma else f"{listing[:_MAX_CHARACTERS]}..."


def _call_at(flow: ValueFlow, line: int) -> ast.Call | None:
    """Return the listing at a line; if it was only consumed there, the one in its function."""
    calls = [
        node for node in walk(flow.tree) if isinstance(node, ast.Call) and name_of(node.func) in _LISTINGS
    ]
    for node in calls:
        if covers(node, line):
            return node
    for node in calls:
        function = flow.function_of(node)
        if function is not None and covers(function, line):
            return node
    return None


def _find_sets(source: Source) -> Iterator[Finding]:
    flow = ValueFlow(source)
    for node in walk(flow.tree):
        if not any(_are_texts(flow, *items) for items in _items_of_set(flow, node)):
            continue
        decided = flow.set_decided_at(node)
        line = getattr(decided, "lineno", None)
        if decided is not None and line is not None:
            yield Finding(
                message="the order of a set of strings is used, which differs in every run",
                file=source.path,
                line=line,
                step=0,
                evidence=f"the set is created at line {getattr(node, 'lineno', line)}",
            )


def _find_hashes(source: Source) -> Iterator[Finding]:
    """Find `hash(text) % buckets`: the hash of a text is another one in every run."""
    flow = ValueFlow(source)
    for node in walk(flow.tree):
        parts = walk(node.left) if isinstance(node, ast.BinOp) and _is_cut(node) else ()
        for call in parts:
            hashed = call.args if isinstance(call, ast.Call) and _is_name(call.func, "hash") else []
            if len(hashed) == 1 and _are_texts(flow, hashed[0], False):
                yield Finding(
                    message="hash() of a string is used, which differs in every run",
                    file=source.path,
                    line=getattr(call, "lineno", None),
                    step=0,
                    evidence="Python draws a new hash seed for strings at every start",
                    fix="Use zlib.crc32(text.encode()) or hashlib instead of hash().",
                )


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_cut(node: ast.BinOp) -> bool:
    return isinstance(node.op, _CUTTING) and not isinstance(node.left, ast.Constant | ast.JoinedStr)


def _items_of_set(flow: ValueFlow, node: ast.AST) -> Iterator[tuple[ast.expr, bool]]:
    """Yield expressions that tell the type of a set's items, and whether they give them one by one."""
    if isinstance(node, ast.Set):
        yield node.elts[0], False
    elif isinstance(node, ast.SetComp):
        yield node.elt, False
    elif (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("set", "frozenset")
    ):
        if node.args:
            yield node.args[0], True
        else:
            yield from _put_into(flow, node)


def _put_into(flow: ValueFlow, node: ast.Call) -> Iterator[tuple[ast.expr, bool]]:
    """Yield what is put later into a set that is made empty."""
    for call, name in flow.calls_on(node):
        if name in ("add", "update") and call.args:
            yield call.args[0], name == "update"


def _are_texts(flow: ValueFlow, node: ast.expr, is_many: bool, depth: int = 0) -> bool:  # limits: recursive
    if depth > _MAX_DEPTH:
        return False
    match node:
        case ast.Constant() | ast.JoinedStr():
            found = isinstance(node, ast.JoinedStr) or isinstance(node.value, str)
        case ast.List(elts=[first, *_]) | ast.Tuple(elts=[first, *_]) | ast.Set(elts=[first, *_]):
            found = _are_texts(flow, first, False, depth + 1)
        case ast.ListComp() | ast.GeneratorExp() | ast.SetComp():
            found = _are_texts(flow, node.elt, False, depth + 1)
        case ast.Call():
            is_passing = name_of(node.func) in ("list", "chain", "map")
            inner = is_passing and any(_are_texts(flow, one, True, depth + 1) for one in node.args)
            found = name_of(node.func) in _GIVES_TEXTS or inner
        case ast.Attribute():
            found = bool(_TEXTUAL.search(node.attr.lower()))
        case ast.Name():
            found = _is_text_name(flow, node, is_many, depth)
        case ast.BinOp():
            found = _are_texts(flow, node.left, is_many, depth + 1)
        case ast.Subscript():
            found = _is_text_item(flow, node, depth)
        case _:
            found = False
    return found


def _is_text_name(flow: ValueFlow, node: ast.Name, is_many: bool, depth: int) -> bool:
    values = list(flow.values_of(node))
    if any(_gives_numbers(value) for value, _ in values):
        return False
    for value, is_item in values:
        if _are_texts(flow, value, is_many or is_item, depth + 1):
            return True
    return bool(_TEXTUAL.search(node.id.lower()))


def _is_text_item(flow: ValueFlow, item: ast.Subscript, depth: int) -> bool:
    """Whether texts are subscripted, or records have texts under that key: `{"breed": "pug"}`."""
    key = item.slice.value if isinstance(item.slice, ast.Constant) else None
    if not isinstance(key, str):
        return _are_texts(flow, item.value, True, depth + 1)
    for node in walk(flow.tree):
        if isinstance(node, ast.Dict):
            for name, value in zip(node.keys, node.values, strict=True):
                if isinstance(name, ast.Constant) and name.value == key:
                    return not _gives_numbers(value) and _are_texts(flow, value, False, depth + 1)
    return bool(_TEXTUAL.search(key.lower()))


def _gives_numbers(node: ast.expr) -> bool:
    return any(isinstance(item, ast.Call) and name_of(item.func) in _GIVES_NUMBERS for item in walk(node))


def make_edits(source: Source, finding: Finding) -> list[Edit]:
    """Sort a listing where it is made, and a set where its order is used."""
    listings = (call_at(source, finding.line, name=name) for name in _SORTABLE)
    found = next(filter(None, listings), None) or _set_used_at(source, finding.line)
    return replace_node(source, found, text=f"sorted({text_of(source, found)})") if found is not None else []


def _set_used_at(source: Source, line: int | None) -> ast.expr | None:
    """Return the set, or a name that is given one, over which something goes at a line."""
    for node in walk(source.tree):
        if isinstance(node, ast.For | ast.comprehension):
            used = node.iter
        elif isinstance(node, ast.Call) and name_of(node.func) in _ORDERING and node.args:
            used = node.args[0]
        else:
            continue
        values = [value for _, value in assignments(source.tree, name_of(used) or "")] or [used]
        if covers(used, line) and any(map(is_set, values)):
            return used
    return None
