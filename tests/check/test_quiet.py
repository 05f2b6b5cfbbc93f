"""Remarks that are often a matter of taste are shown with -v, or if their rule is selected."""

from pathlib import Path

from tests.check.test_check import MENDED, check, write
from truestep.rules import find_rules

UNSEEDED = MENDED.replace("torch.manual_seed(0)\n", "")


def test_a_quiet_remark_is_counted_and_shown_with_v_or_if_it_is_selected(tmp_path: Path) -> None:
    assert UNSEEDED != MENDED
    write(tmp_path, UNSEEDED)
    plain = check(tmp_path, "train.py").stdout
    assert "REPRO01" not in plain and "nothing found in" in plain and "more remark" in plain, plain
    for words in (("-v",), ("--select", "REPRO01")):
        shown = check(tmp_path, *words, "train.py").stdout
        assert "info  REPRO01" in shown and "with -v" not in shown, shown


def test_a_warning_of_a_rule_with_quiet_remarks_is_shown(tmp_path: Path) -> None:
    assert next(rule for rule in find_rules() if rule.meta.code == "REPRO01").meta.is_quiet
    write(
        tmp_path,
        MENDED.replace(
            "import torch\n", "import random\nimport torch\nx = [random.random() for _ in range(9)]\n", 1
        ),
    )
    shown = check(tmp_path, "train.py").stdout
    assert "warning  REPRO01" in shown, shown
