"""The order of files in a folder or of items in a set decides what the model is trained on.

## What it finds
A folder listing (`os.listdir`, `glob`, `iterdir`, `os.walk`) that is not sorted, or a set of strings that is
iterated, where the order ends up in lists, labels or indices. A remark if the script seeds no
generator either.

## Why it matters
File systems list files in any order, and Python's strings have different hashes in every run. Class 3 on one
machine is another class on the next, and word 17 is another word in the next run. Seeds do not help, and a
saved model is used with the wrong labels.

## How to fix
Sort: `sorted(os.listdir(folder))`, `sorted(words)`.
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


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find listings and sets whose order is used."""
    severity: Severity | None = None if is_meant_to_repeat(evidence) else "info"
    texts = [_find_sets(source) for source in evidence.sources]
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
    """Return the listing at a line."""
    calls = (node for node in walk(flow.tree) if isinstance(node, ast.Call) and covers(node, line))
    return next((call for call in calls if name_of(call.func) in _LISTINGS), None)


def _find_sets(source: Source) -> Iterator[Finding]:
    flow = ValueFlow(source)
    for node in walk(flow.tree):
        if not any(_are_texts(flow, item) for item in _items_of_set(node)):
            continue
        decided = flow.set_decided_at(node)
        line = getattr(decided, "lineno", None)
        if line is not None:
            yield Finding.at(
                source.at(line),
                "the order of a set of strings is used, which differs in every run",
                step=0,
                evidence=f"the set is created at line {getattr(node, 'lineno', line)}",
            )


def _items_of_set(node: ast.AST) -> Iterator[ast.expr]:
    """Yield expressions that tell the type of a set's items."""
    match node:
        case ast.Set(elts=[first, *_]):
            yield first
        case ast.SetComp(elt=item):
            yield item
        case ast.Call(func=ast.Name(id="set" | "frozenset"), args=[given, *_]):
            yield given


def _are_texts(flow: ValueFlow, node: ast.expr, depth: int = 0) -> bool:
    """Whether an expression gives texts, or holds them."""
    if depth > _MAX_DEPTH or _gives_numbers(node):
        return False
    inner = _inner(node)
    if isinstance(node, ast.Name):
        inner = [value for value, _ in flow.values_of(node)]
        if any(map(_gives_numbers, inner)):
            return False
    return _is_text(node) or any(_are_texts(flow, one, depth + 1) for one in inner)


def _is_text(node: ast.expr) -> bool:
    """Whether an expression itself says that it gives texts."""
    if isinstance(node, ast.Name | ast.Attribute):
        return bool(_TEXTUAL.search((name_of(node) or "").lower()))
    is_giving = isinstance(node, ast.Call) and name_of(node.func) in _GIVES_TEXTS
    is_constant = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_giving or is_constant or isinstance(node, ast.JoinedStr)


def _inner(node: ast.expr) -> list[ast.expr]:
    """Return the expressions that an expression's items have the type of."""
    match node:
        case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
            return items[:1]
        case ast.ListComp(elt=inner) | ast.GeneratorExp(elt=inner) | ast.SetComp(elt=inner):
            return [inner]
        case ast.Call(func=function, args=items) if name_of(function) in ("list", "chain", "map"):
            return items
        case ast.BinOp(left=inner) | ast.Subscript(value=inner):
            return [inner]
    return []


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
