"""examples/edit_answers.py does what its printed numbers say."""

import re
from pathlib import Path

import pytest

from scripts.pages import run_script

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "edit_answers.py"


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> str:
    done = run_script(EXAMPLE, tmp_path_factory.mktemp("edit"))
    assert done.returncode == 0, done.stderr
    return done.stdout


def pairs(line: str) -> list[tuple[int, int]]:
    return [(int(hits), int(count)) for hits, count in re.findall(r"(\d+) of (\d+)", line)]


@pytest.mark.slow
@pytest.mark.practice("P76")
def test_p76_ten_answers_are_edited_and_no_other_logit_moves(printed: str) -> None:
    """A codebook before one layer changes ten answers with their paraphrases, and no bit of others."""
    (at_radius,) = [line for line in printed.splitlines() if line.startswith("   0.6")]
    assert pairs(at_radius) == [(10, 10), (30, 30), (760, 760)]
    rows = {line.split()[0]: pairs(line) for line in printed.splitlines() if re.match(r" +\d", line)}
    # Too narrow reaches no paraphrase, too wide takes others along: the measure can tell the difference.
    assert rows["0.05"] == [(10, 10), (0, 30), (760, 760)]
    assert rows["2.4"][2][0] < 760


@pytest.mark.slow
@pytest.mark.practice("P76")
def test_p76_two_answers_in_one_reach_split_it(printed: str) -> None:
    """Two answers that want the same neighbourhood halve the distance between them, and both are kept."""
    told = dict(re.findall(r"^(\w[^\n]*?)  +(\S[^\n]*)$", printed, flags=re.MULTILINE))
    before, after = map(float, told["conflict: radius of the first key"].split(" -> "))
    assert 0 < after < before
    for label in (
        "the first phrasing: logits as before it",
        "the second phrasing: newest answer",
        "other edits: logits as before it",
        "all others: logits as before any edit",
        "without codebook: logits as before",
    ):
        ((hits, count),) = pairs(told[label])
        assert hits == count > 0, label
    assert told["weights as before, to the bit"] == "True"


@pytest.mark.slow
def test_the_page_shows_what_the_example_prints(printed: str) -> None:
    assert f"```\n{printed}```\n" in (ROOT / "docs" / "editing.md").read_text()
