"""Every sentence that states a verdict has a test that builds the case in which it would be false.

Such a test is marked with the sentence: `@pytest.mark.verdict("nothing found{}")`. Sentences that have
none yet are listed in `verdicts_untested.txt`, which may only become shorter.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent
SOURCES = ROOT.parent / "src" / "truestep"
PACKAGES = ("cli", "report", "verify", "tune", "check")
_WORDS = "same|identical|nothing|proved|fixed|faster|no gain|no clear gain|not checked|likely cause|all done"
VERDICT = re.compile(rf"\b({_WORDS})\b", re.IGNORECASE)


def _templates(tree: ast.AST) -> Iterator[str]:
    """Yield the strings of a module, `{}` for what is put in; docstrings and parts of f-strings are none."""
    parts = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            parts.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            parts |= set(map(id, node.values))
    for node in ast.walk(tree):
        if id(node) in parts:
            continue
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _sentences() -> set[str]:
    files = [path for name in PACKAGES for path in (SOURCES / name).rglob("*.py")]
    found = (text.strip() for path in files for text in _templates(ast.parse(path.read_text())))
    return {text.replace("\n", " ") for text in found if " " in text and VERDICT.search(text)}


def _marked() -> set[str]:
    texts = (path.read_text() for path in ROOT.rglob("test_*.py"))
    trees = [ast.parse(text) for text in texts if "mark.verdict(" in text]
    return {
        str(node.args[0].value)
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.verdict"
        if isinstance(node.args[0], ast.Constant)
    }


def test_each_verdict_has_a_test_in_which_it_would_be_false() -> None:
    untested = set((ROOT / "verdicts_untested.txt").read_text().splitlines())
    sentences, marked = _sentences(), _marked()
    assert marked - sentences == set(), "marked tests of sentences that no command prints"
    assert sentences - marked - untested == set(), "new sentences: mark a test in which each would be false"
    assert untested - (sentences - marked) == set(), "no longer untested: remove these lines"


def test_a_template_is_found_as_it_would_be_printed() -> None:
    tree = ast.parse('"""The same."""\nprint(f"all {n} runs are identical", "nothing", "a b")')
    found = {text for text in _templates(tree) if VERDICT.search(text)}
    assert found == {"all {} runs are identical", "nothing"}
