"""The check of words finds what users should not read, and nothing in code."""

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import words

ROOT = Path(__file__).parent.parent


def found(text: str) -> list[str]:
    return [place.word for place in words.find(iter([words.Text(ROOT, 1, text)]))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("it tells what could not tell", ["tells", "tell", "could not tell"]),
        ("Mend it and go on", ["Mend", "go on"]),
        ("Each has a folder of its own", ["of its own"]),
        ("run 2 parts at step 1", ["parts at"]),
        ("`check` reports the line and how to fix it", []),
        ("the tale of a mended-looking recommendation", ["mended"]),
        ("hidden layers in the backward direction, partly", []),
    ],
)
def test_words_are_found_whole_and_in_any_case(text: str, expected: list[str]) -> None:
    assert sorted(found(text)) == sorted(expected)


def test_code_in_pages_is_not_read_and_lines_keep_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "ROOT", tmp_path)
    (tmp_path / "page.md").write_text(
        "# The same to the bit\n```\nit tells\n```\n`told` [x](anew.md) is fine\nso many\n"
    )
    places = list(words.find(words.pages("*.md")))
    assert [(place.line, place.word) for place in places] == [(6, "so many")]


def test_messages_are_strings_of_the_code_and_not_its_docstrings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words, "ROOT", tmp_path)
    folder = tmp_path / "src" / "truestep" / "part"
    folder.mkdir(parents=True)
    (folder / "a.py").write_text(
        '"""It tells."""\nx = f"go on with {1}"\ntold = "told"\ny = "not tried"  # words: fixed elsewhere\n'
    )
    assert [place.word for place in words.find(words.messages("part/*.py"))] == ["go on"]


def test_everything_that_users_read_is_clean() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "words.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
