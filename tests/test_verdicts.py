"""Every sentence that states a verdict has a test that builds the case in which it would be false.

Such a test is marked with the sentence: `@pytest.mark.verdict("nothing found{}")`.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent
SOURCES = ROOT.parent / "src" / "truestep"
PACKAGES = ("cli", "report", "verify", "tune", "check")
_SAME = r"^same\b|\b(?:is|are|compute|about) the same\b|^the same$|\bidentical"
_GAIN = "faster|pays off|no gain|no clear gain"
_WORDS = rf"nothing|proved|was fixed|fixed \{{\}}|{_GAIN}|not checked|likely cause|all done"
VERDICT = re.compile(rf"{_SAME}|\b(?:{_WORDS})", re.IGNORECASE)
ADVICE = {"fix", "help", "show_default", "title"}
"""Arguments that hold what to do or a name: they state nothing of a run."""


def _templates(tree: ast.AST) -> Iterator[str]:
    """Yield the strings of a module, `{}` for what is put in.

    Docstrings and parts of f-strings are none. What is raised refuses a verdict, and advice gives none.
    """
    others = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr):
            others.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            others |= set(map(id, node.values))
        elif isinstance(node, ast.Raise) or (isinstance(node, ast.keyword) and node.arg in ADVICE):
            others |= set(map(id, ast.walk(node)))
    for node in ast.walk(tree):
        if id(node) in others:
            continue
        if isinstance(node, ast.JoinedStr):
            yield "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _sentences() -> set[str]:
    files = [path for name in PACKAGES for path in (SOURCES / name).rglob("*.py")]
    found = (text.strip() for path in files for text in _templates(ast.parse(path.read_text())))
    return {
        text.replace("\n", " ")
        for text in found
        if " " in text and VERDICT.search(text) and not text.startswith("#")
    }


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
    sentences, marked = _sentences(), _marked()
    assert marked - sentences == set(), "marked tests of sentences that no command prints"
    assert sentences - marked == set(), "new sentences: mark a test in which each would be false"


def test_a_template_is_found_as_it_would_be_printed() -> None:
    tree = ast.parse('"""The same."""\nprint(f"all {n} runs are identical", "nothing", "a b")')
    found = {text for text in _templates(tree) if VERDICT.search(text)}
    assert found == {"all {} runs are identical", "nothing"}


def test_advice_refusals_and_other_uses_of_a_word_are_no_verdicts() -> None:
    tree = ast.parse('Cause(fix="do nothing", words="a race")\nraise UsageError("nothing to compare")')
    assert [text for text in _templates(tree) if VERDICT.search(text)] == []
    for text in ("in a fixed order", "the number is not fixed", "threads change the same tensor"):
        assert VERDICT.search(text) is None
    for text in ("fixed {} of {}", "nothing was fixed", "the runs are the same", "same in {}", "the same"):
        assert VERDICT.search(text) is not None
