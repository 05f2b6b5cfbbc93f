"""The page of practices lists every practice with its tests, and the tests keep to their form."""

import re
import textwrap
from pathlib import Path

import pytest

from scripts.practices_page import TITLES, Shown, build, find_shown

ROOT = Path(__file__).parent.parent
SHOWN = list(find_shown(ROOT / "tests"))
REQUIRED = [f"P{number:02}" for number in (*range(7, 17), 24, 25, 27, 36, 50)]
"""What `truestep.model` and `truestep.tensor` are there for."""


def test_practices_are_numbered_without_gaps() -> None:
    assert list(TITLES) == [f"P{number:02}" for number in range(1, 77)]


@pytest.mark.parametrize("practice", REQUIRED)
def test_a_practice_is_shown(practice: str) -> None:
    assert any(test.practice == practice for test in SHOWN), f"{practice} is not shown"


def wrong_with(test: Shown) -> list[str]:
    named = re.match(r"test_p(\d\d)_", test.name)
    return [
        words
        for is_wrong, words in [
            (test.practice not in TITLES, f"there is no practice {test.practice}"),
            (not re.fullmatch(r"[A-Z`(].*[^.][.]", test.sentence), "its docstring is not one sentence"),
            (len(test.sentence) > 200, "its docstring is too long for a line of the page"),
            (named is not None and f"P{named[1]}" != test.practice, "its name says another practice"),
        ]
        if is_wrong
    ]


@pytest.mark.parametrize("test", SHOWN, ids=lambda test: f"{test.path.stem}-{test.name}-{test.practice}")
def test_a_marked_test_keeps_to_the_form(test: Shown) -> None:
    assert wrong_with(test) == []


def test_a_test_named_after_a_practice_carries_its_marker() -> None:
    marked = {(test.path, test.name) for test in SHOWN}
    unmarked = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for name in re.findall(r"^def (test_p\d\d_\w+)", path.read_text(), flags=re.MULTILINE)
        if (path, name) not in marked
    ]
    assert unmarked == []


TEST = '''
    import pytest

    @pytest.mark.slow
    @pytest.mark.practice("P25")
    @pytest.mark.practice("P26")
    def test_p25_something() -> None:
        """It is shown
        in one sentence.

        More.
        """

    def test_other() -> None:
        """Not marked."""
'''


def test_markers_are_found_with_their_sentence(tmp_path: Path) -> None:
    (tmp_path / "test_file.py").write_text(textwrap.dedent(TEST))
    found = list(find_shown(tmp_path))
    assert [test.practice for test in found] == ["P25", "P26"]
    assert {(test.name, test.sentence) for test in found} == {
        ("test_p25_something", "It is shown in one sentence.")
    }
    assert wrong_with(found[0]) == []
    assert wrong_with(found[1]) == ["its name says another practice"]
    assert wrong_with(found[0]._replace(practice="P77", name="test_x", sentence="no")) == [
        "there is no practice P77",
        "its docstring is not one sentence",
    ]


def test_a_practice_without_test_is_said_to_be_not_shown() -> None:
    page = "\n".join(build([Shown("P25", ROOT / "tests" / "test_x.py", 3, "test_p25_x", "It holds.")]))
    assert "1 of 76 are shown." in page
    assert "  - It holds. [test_p25_x](../tests/test_x.py)" in page
    assert page.count("*not shown yet*") == 75
