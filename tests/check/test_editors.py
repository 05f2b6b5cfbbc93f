"""The problem matcher in docs/how-to/editors.md reads what check prints, as VS Code does."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.check.test_formats import found, result_of
from truestep.check import RuleFinding
from truestep.cli._answer import Answer, Format
from truestep.watch import Script

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "editors.md"


def read_task() -> Any:
    (text,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (task,) = json.loads(text)["tasks"]
    return task


def problems(output: str) -> Iterator[dict[str, str]]:
    """Match as VS Code does: all patterns, each at the line after the last one's."""
    patterns = read_task()["problemMatcher"]["pattern"]
    lines = output.split("\n")
    for start in range(len(lines) - len(patterns) + 1):
        matches = [
            re.search(item["regexp"], line)
            for item, line in zip(patterns, lines[start : start + len(patterns)], strict=True)
        ]
        if all(matches):
            yield {
                name: match[group]
                for item, match in zip(patterns, matches, strict=True)
                for name, group in item.items()
                if name != "regexp" and match
            }


def printed(*findings: RuleFinding, text: str) -> str:
    result = result_of(*findings)
    result.evidence.texts.update({item.finding.file: text for item in findings if item.finding.file})
    return Answer(script=Script(path="train.py"), result=result, patch="").render(Format.text)


def test_each_finding_with_a_line_becomes_one_problem() -> None:
    text = "import torch\n\n    error  LOOP01 stale-gradients\nx: y:3\n"
    output = printed(
        found(
            "LOOP01",
            message="gradients are stale: error  LOOP01 again",
            line=3,
            evidence="a\n  b.py:3\n    c",
        ),
        found("DATA04", message="sorted by class", line=4, file="/repo/with space/a:b.py", step=3),
        found("PROBE07", message="a remark", severity="info"),
        found("REPRO01", file=None, line=None),
        text=text,
    )
    assert list(problems(output)) == [
        {
            "severity": "error",
            "code": "LOOP01",
            "file": "/repo/sub/train.py",
            "line": "3",
            "message": "gradients are stale: error  LOOP01 again",
        },
        {
            "severity": "warning",
            "code": "DATA04",
            "file": "/repo/with space/a:b.py",
            "line": "4",
            "message": "sorted by class",
        },
        {
            "severity": "info",
            "code": "PROBE07",
            "file": "/repo/sub/train.py",
            "line": "3",
            "message": "a remark",
        },
    ]


def test_the_task_uses_options_that_exist() -> None:
    from typer.main import get_command

    from tests.test_docs import strange_options
    from truestep.cli import build_app

    words = read_task()["args"]
    commands = get_command(build_app()).commands  # type: ignore[attr-defined]
    assert words[:2] == ["-m", "truestep"] and strange_options(words[1:], commands) == []
