"""Finds words that people do not use, in text that users read: documentation, messages, help.

Usage: python scripts/words.py. Prints how many there are in each area, and every place. Exit code 1 if there
is one. What to write instead is in WORDS.
"""

import ast
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

WORDS = {
    r"tells?|told|telling": "report, show, print",
    r"says?|said|saying": "report, show, print",
    r"mends?|mended|mending": "fix",
    r"right scripts?|accus(?:e|es|ed|ing)": "correct script, false positive, flag",
    r"(?:leave|leaves|left|leaving) (?:\w+ ){0,2}alone|hides?|hiding": "suppress, ignore",
    r"parts at|parted|(?:runs|chains|they) part": "diverge, differ",
    r"(?:go|goes|going|gone|went) on": "resume, continue",
    r"anew": "restart, start over, again",
    r"(?:give|gives|given) (?:\w+ ){0,2}free": "release",
    r"is no rule": "is not a rule, unknown rule",
    r"rules? looked|nothing to look at|not looked at": "N rules ran; not seen: ...",
    r"could not tell|cannot tell": "inconclusive",
    r"to the bit": "bit-for-bit identical, reproducible",
    r"(?:it|scripts?|runs?) repeats?": "is reproducible",
    r"as (?:it|they) (?:stands?|is|are)": "unmodified",
    r"knobs? in turns?|turns? (?:\w+ )?knobs?": "try each setting",
    r"pass(?:es|ed)? over": "skip",
    r"not tried": "untested",
    r"here": "on this machine, on this page",
    r"was seen": "ran, was observed",
    r"of (?:its|their|your|his) own": "its own X, separate",
    r"so many": "N",
    r"nobody": "no one, or name who",
    r"who(?:m)?ever": "anyone who",
    r"by (?:itself|themselves)": "on its own, automatically",
    r"in peace": "undisturbed",
    r"weighted rightly": "with the right weight",
    r"what (?:becomes|became) of": "what happened to",
}
"""What not to write, and what to write instead."""
_FOUND = {re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE): better for pattern, better in WORDS.items()}
_FENCE = re.compile(r"^ *(```+|~~~+).*?^ *\1\s*$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`|\]\([^)]*\)|<!--.*?-->")
_HEADING = re.compile(r"^#+ ")
_TO_THE_BIT = "to the bit"
_EXEMPT = "# words: "
"""On a line of code, with a reason: what is written there is fixed elsewhere."""


class Text(NamedTuple):
    """A line that users read, where it is, and what follows it in the same paragraph."""

    path: Path
    line: int
    text: str
    after: str = ""


class Place(NamedTuple):
    """A word that should not be there."""

    path: Path
    line: int
    word: str
    better: str


def pages(*patterns: str) -> Iterator[Text]:
    """Yield the lines of Markdown files outside of code: what commands print belongs to the commands."""
    for pattern in patterns:
        for path in sorted(ROOT.glob(pattern)):
            yield from _page(path, path.read_text(encoding="utf-8"))


def _page(path: Path, text: str) -> Iterator[Text]:
    text = _FENCE.sub(lambda block: "\n" * block[0].count("\n"), text)
    lines = _CODE.sub("", text).split("\n")
    for number, (line, after) in enumerate(zip(lines, [*lines[1:], ""], strict=True), start=1):
        is_headline = _HEADING.match(line) is not None
        yield Text(path, number, line.replace(_TO_THE_BIT, "") if is_headline else line, after)


@cache
def _built() -> dict[str, tuple[str, str]]:
    sys.path.append(str(ROOT))
    from scripts.built_pages import build_pages  # noqa: PLC0415  the path is set above

    return build_pages()


def built_pages() -> Iterator[Text]:
    """Yield the lines of the pages that are built for the site; the place is the file they are built from."""
    for source, text in _built().values():
        yield from _page(ROOT / source, text)


def _docstrings(tree: ast.AST) -> set[ast.Constant]:
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, owners)
        and node.body
        and isinstance(node.body[0], ast.Expr)
        and isinstance(node.body[0].value, ast.Constant)
    }


def messages(pattern: str) -> Iterator[Text]:
    """Yield the strings in code that are sentences: messages, help, labels. No docstrings."""
    for path in sorted((ROOT / "src" / "truestep").glob(pattern)):
        source = path.read_text(encoding="utf-8")
        tree, lines = ast.parse(source), source.split("\n")
        notes = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        skipped = _docstrings(tree) | notes
        for node in ast.walk(tree):
            is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in skipped
            if not is_text or " " not in node.value or "\n" in node.value.strip("\n"):
                continue
            if _EXEMPT not in lines[node.lineno - 1]:
                yield Text(path, node.lineno, node.value)


def web_pages() -> Iterator[Text]:
    """Yield the lines of the report's and the live view's files for browsers."""
    for path in sorted(path for path in (ROOT / "src").rglob("*") if path.suffix in (".js", ".html")):
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
            yield Text(path, number, line)


def command_help() -> Iterator[Text]:
    """Yield the docstrings of the commands: their help."""
    for path in sorted((ROOT / "src" / "truestep" / "cli").glob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and "Exit codes:" in (ast.get_docstring(node) or ""):
                for number, line in enumerate((ast.get_docstring(node) or "").split("\n"), start=1):
                    yield Text(path, node.lineno + number, line)


def public_docstrings() -> Iterator[Text]:
    """Yield the docstrings that the site shows: of the names on the pages of the API and their members."""
    shown = re.compile(r"^::: truestep\.(?P<module>.+)\.(?P<name>\w+)$", re.MULTILINE)
    for _, text in _built().values():
        for found in shown.finditer(text):
            home = ROOT / "src" / "truestep" / found["module"].replace(".", "/")
            path = home / "__init__.py" if home.is_dir() else home.with_suffix(".py")
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if getattr(node, "name", None) == found["name"]:
                    yield from _shown(path, node)


def _shown(path: Path, node: ast.AST) -> Iterator[Text]:
    """Yield the docstring of a class or function, and those of public members."""
    if not isinstance(node, ast.ClassDef | ast.FunctionDef):
        return
    start = node.body[0].lineno
    lines = [_CODE.sub("", line) for line in (ast.get_docstring(node) or "").split("\n") if line[:3] != ">>>"]
    for number, (line, after) in enumerate(zip(lines, [*lines[1:], ""], strict=True)):
        yield Text(path, start + number, line, after)
    for member in node.body if isinstance(node, ast.ClassDef) else []:
        if not getattr(member, "name", "_").startswith("_"):
            yield from _shown(path, member)


PACKAGES = sorted(
    path.name for path in (ROOT / "src" / "truestep").iterdir() if (path / "__init__.py").exists()
)
AREAS: dict[str, Callable[[], Iterator[Text]]] = {
    "readme": lambda: pages("README.md"),
    "project": lambda: pages("CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "deploy/README.md"),
    "changelog": lambda: pages("CHANGELOG.md"),
    "docs": lambda: pages("docs/**/*.md"),
    "help": command_help,
    "web pages": web_pages,
    "api docstrings": public_docstrings,
    "built pages": built_pages,
    "messages of modules": lambda: messages("*.py"),
    **{f"messages of {name}": lambda name=name: messages(f"{name}/**/*.py") for name in PACKAGES},  # type: ignore[misc]
}
"""Every area: a part of what users read."""


def find(texts: Iterator[Text]) -> Iterator[Place]:
    """Yield every word that should not be there."""
    for path, line, text, after in texts:
        both = f"{text.rstrip()} {after.strip()}"  # a phrase may be broken between two lines
        for pattern, better in _FOUND.items():
            for found in pattern.finditer(both):
                if found.start() < len(text.rstrip()):
                    yield Place(path, line, found[0], better)


def main() -> int:
    """Print the counts and every place."""
    num_found = 0
    for name, texts in AREAS.items():
        places = list(find(texts()))
        num_found += len(places)
        print(f"words: {name}: {len(places)}")
        for path, line, word, better in places:
            print(f"  {path.relative_to(ROOT)}:{line}: {word!r}: write {better}")
    return int(num_found > 0)


if __name__ == "__main__":
    sys.exit(main())
