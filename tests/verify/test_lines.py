"""The backward slice: from a line to the lines that its values may come from."""

from pathlib import Path

import pytest

from truestep.verify.lines import Statement, slice_from

SCRIPT = """\
import os
import random
import time

def read(folder):
    names = os.listdir(folder)
    return [name.upper() for name in names]

class Data:
    def __init__(self, folder):
        self.names = read(folder)

    def fetch(self, index):
        found = self.names[index]
        return found

size = 16 if os.environ.get("CI") else 32
unrelated = 3
order = list(range(64))
random.shuffle(order)
for start in range(0, 64, size):
    rows = order[
        start : start + size
    ]
    use(rows)
began = time.time()
generator = torch.Generator().manual_seed(
    time.time_ns()
)
words = {word for word in text.split()}
size += 1
layers[0](order)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


def statement_at(path: str, line: int) -> Statement | None:
    return next(slice_from(path, line), None)


def lines(script: str, line: int) -> list[int]:
    return [statement.line for statement in slice_from(script, line)]


def test_what_a_line_uses_leads_to_who_assigned_it(script: str) -> None:
    found = lines(script, 25)
    assert found[:2] == [25, 22]
    assert {17, 19, 20, 21} <= set(found)
    assert 18 not in found
    assert 26 not in found


def test_nearer_lines_come_first(script: str) -> None:
    found = lines(script, 22)
    assert found.index(20) < found.index(19)  # what changes a name in place counts as giving it a value


def test_attributes_and_calls_lead_into_other_functions(script: str) -> None:
    found = lines(script, 14)
    assert found.index(11) < found.index(6)
    assert 17 not in found


def test_a_statement_of_several_lines_is_one(script: str) -> None:
    assert statement_at(script, 23) == statement_at(script, 22)
    seeding = statement_at(script, 28)
    assert seeding is not None
    assert (seeding.line, seeding.seeds) == (27, True)


def test_sets_are_noticed(script: str) -> None:
    found = [statement_at(script, line) for line in (30, 19)]
    assert [statement is not None and statement.makes_set for statement in found] == [True, False]


def test_what_cannot_be_read_gives_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("def (:\n")
    assert list(slice_from(str(broken), 1)) == []
    assert list(slice_from(str(tmp_path / "missing.py"), 1)) == []
    assert statement_at(str(broken), 1) is None


def test_a_line_outside_of_the_file_gives_nothing(script: str) -> None:
    assert list(slice_from(script, 400)) == []


def test_a_call_without_a_name_leads_to_what_it_uses_alone(script: str) -> None:
    assert set(lines(script, 32)) == {32, 20, 19}
