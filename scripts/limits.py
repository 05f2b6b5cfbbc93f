"""Holds the limits on size and shape, which no linter knows, and refuses leftover files.

Usage: python scripts/limits.py [ROOT]. Prints file:line and what to do; exit code 1 if anything was found.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
MAX_POSITIONAL = 2
MAX_ARGUMENTS = 8
MAX_RUN_METHODS = 12
MAX_DOCSTRING_LINES = 5
VAGUE_NAMES = {"util", "common", "misc", "helper", "manager"}
DOCUMENTED = "## What it finds"
"""In the docstring of a rule, which is its page in the documentation."""
EXCUSE = "# limits:"
"""On the line of a `def` whose signature somebody else fixed (torch calls it), followed by the reason."""

LEFTOVERS = {".orig", ".rej", ".bak", ".swp"}
"""What editors, merges and patches leave behind; in the package it would ship with the wheel."""

PACKAGE = "src"
SIZES_ONLY = ("tests", "benchmarks", "examples", "scripts")

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Violation(NamedTuple):
    """One broken limit: where, and what to do about it."""

    path: Path
    line: int
    message: str


def _sizes(path: Path, source: str, tree: ast.Module) -> Iterator[Violation]:
    num_lines = len(source.splitlines())
    if num_lines > MAX_FILE_LINES:
        yield Violation(
            path, 1, f"file has {num_lines} lines, at most {MAX_FILE_LINES}: split it by what it owns"
        )
    for node in ast.walk(tree):
        if isinstance(node, Function):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > MAX_FUNCTION_LINES:
                message = (
                    f"{node.name} has {length} lines, at most {MAX_FUNCTION_LINES}: take a step out of it"
                )
                yield Violation(path, node.lineno, message)


def _name(path: Path, package: Path) -> Iterator[Violation]:
    for part in path.relative_to(package).with_suffix("").parts:
        for word in part.lower().split("_"):
            if word.removesuffix("s") in VAGUE_NAMES:
                yield Violation(path, 1, f"{part!r} names a role: name the thing that the module owns")


def _docstring(path: Path, tree: ast.Module) -> Iterator[Violation]:
    text = ast.get_docstring(tree)
    num_lines = len([line for line in (text or "").splitlines() if line.strip()])
    if num_lines == 0:
        yield Violation(path, 1, "no module docstring: say what the module owns and what it leaves to others")
    elif num_lines > MAX_DOCSTRING_LINES and DOCUMENTED not in (text or ""):
        message = f"module docstring has {num_lines} lines, at most {MAX_DOCSTRING_LINES}: three are enough"
        yield Violation(path, 1, message)


def _decorators(node: ast.ClassDef | Function) -> set[str]:
    """Return the decorators' last names: `dataclasses.dataclass(...)` gives `dataclass`."""
    callees = [item.func if isinstance(item, ast.Call) else item for item in node.decorator_list]
    return {ast.unparse(callee).rpartition(".")[2] for callee in callees}


def _arguments(function: Function, *, is_method: bool) -> tuple[int, int]:
    """Return how many arguments can be given by position, and how many there are, without self or cls."""
    given = function.args
    has_self = is_method and "staticmethod" not in _decorators(function)
    num_positional = len(given.posonlyargs) + len(given.args) - has_self
    num_stars = (given.vararg is not None) + (given.kwarg is not None)
    return num_positional, num_positional + len(given.kwonlyargs) + num_stars


def _public_calls(tree: ast.Module) -> Iterator[tuple[Function, str, bool]]:
    """Yield each public function, method and constructor with its name and whether it is a method."""
    for node in tree.body:
        if isinstance(node, Function) and not node.name.startswith("_"):
            yield node, node.name, False
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            for member in node.body:
                if not isinstance(member, Function):
                    continue
                if member.name in {"__init__", "__call__"} or not member.name.startswith("_"):
                    yield member, f"{node.name}.{member.name}", True


def _signatures(path: Path, source: str, tree: ast.Module) -> Iterator[Violation]:
    lines = source.splitlines()
    for node, name, is_method in _public_calls(tree):
        if lines[node.lineno - 1].partition(EXCUSE)[2].strip():
            continue
        num_positional, num_all = _arguments(node, is_method=is_method)
        if num_positional > MAX_POSITIONAL:
            message = (
                f"{name} takes {num_positional} by position, at most {MAX_POSITIONAL}: use * for the rest"
            )
            yield Violation(path, node.lineno, message)
        if num_all > MAX_ARGUMENTS:
            message = (
                f"{name} takes {num_all} arguments, at most {MAX_ARGUMENTS}: group what belongs together"
            )
            yield Violation(path, node.lineno, message)


def _is_keyword_only(node: ast.ClassDef) -> bool:
    return any(
        keyword.arg == "kw_only" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call)
        for keyword in decorator.keywords
    )


def _dataclasses(path: Path, tree: ast.Module) -> Iterator[Violation]:
    # The constructor is a call like any other; how many facts the class holds is its own affair.
    for node in tree.body:
        is_public = isinstance(node, ast.ClassDef) and not node.name.startswith("_")
        if is_public and "dataclass" in _decorators(node) and not _is_keyword_only(node):
            fields = [member for member in node.body if isinstance(member, ast.AnnAssign)]
            names = [ast.unparse(field.annotation) for field in fields]
            num_fields = names.index("KW_ONLY") if "KW_ONLY" in names else len(names)
            if num_fields > MAX_POSITIONAL:
                message = f"{node.name} has {num_fields} fields by position: write @dataclass(kw_only=True)"
                yield Violation(path, node.lineno, message)


def _run_class(path: Path, tree: ast.Module) -> Iterator[Violation]:
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or node.name != "Run":
            continue
        functions = [member for member in node.body if isinstance(member, Function)]
        methods = {
            function.name
            for function in functions
            if not function.name.startswith("_")
            and not _decorators(function) & {"property", "cached_property", "setter", "deleter"}
        }
        if len(methods) > MAX_RUN_METHODS:
            message = (
                f"Run has {len(methods)} public methods, at most {MAX_RUN_METHODS}: give the work to a part"
            )
            yield Violation(path, node.lineno, message)


def find_violations(root: Path) -> Iterator[Violation]:
    """Yield every broken limit below `root`: all limits in src, sizes in tests, benchmarks and the like."""
    for folder in (PACKAGE, *SIZES_ONLY, "docs", "deploy"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in LEFTOVERS:
                yield Violation(path, 1, "left behind by an editor or a merge: remove it")
    for folder in (PACKAGE, *SIZES_ONLY):
        for path in sorted((root / folder).rglob("*.py")):
            source = path.read_text(encoding="utf-8")
            tree = ast.parse(source, filename=str(path))
            yield from _sizes(path, source, tree)
            if folder == PACKAGE:
                yield from _name(path, root / PACKAGE)
                yield from _docstring(path, tree)
                yield from _signatures(path, source, tree)
                yield from _dataclasses(path, tree)
                yield from _run_class(path, tree)


def main() -> int:
    """Print the violations below the folder given, or below the checkout."""
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    violations = list(find_violations(root))
    for path, line, message in violations:
        print(f"{path.relative_to(root)}:{line}: {message}")
    print(f"limits: {len(violations)} broken" if violations else "limits: all kept")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
