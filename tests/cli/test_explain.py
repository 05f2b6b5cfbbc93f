"""`truestep explain`: what it prints, and its exit codes."""

import json
import subprocess
import sys
from pathlib import Path

from click.testing import Result
from typer.testing import CliRunner

from truestep.cli import build_app

TRUESTEP = str(Path(sys.executable).with_name("truestep"))


def explain(*arguments: str) -> Result:
    """Run the command in this process: importing torch once more for each test takes seconds."""
    return CliRunner().invoke(build_app(), ["explain", *arguments])


def test_an_expression_is_told_step_by_step() -> None:
    done = explain("x = torch.arange(6); y = x.view(2, 3); y.t().reshape(-1)")
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[1] == "2  x.view(2, 3)       (6,) -> (2, 3)    view of x"
    assert "copy of step 3" in done.stdout
    assert lines[-1] == "x and y share elements: writing to one changes the other"


def test_json_goes_to_standard_output_alone() -> None:
    done = explain("torch.arange(12).view(3, 4).T[:, ::2]", "--format", "json")
    fields = json.loads(done.stdout)
    assert [step["verdict"] for step in fields["operations"]] == ["new", "view", "view", "view"]
    assert fields["tensors"][0]["stride"] == [1, 8]


def test_a_failing_expression_ends_in_one_line_and_exit_code_2() -> None:
    command = [TRUESTEP, "explain", "torch.ones(2, 3) @ torch.ones(2, 3)"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "cannot be multiplied" in done.stderr
