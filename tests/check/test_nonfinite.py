"""Where the first value that is not finite comes from: by the check of a script, and by hand."""

from pathlib import Path

import pytest
import torch

from tests.gathering import judged
from truestep.check import Settings
from truestep.check.examine import examine
from truestep.watch import Script

SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4):
    x = torch.randn(8, 4)
    x[0] = 0.0
    optimizer.zero_grad()
    squares = (model(x) - model.bias).square().sum(1)
    length = squares.sqrt()
    loss = torch.where(x.any(1), length, 0.0).mean()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.practice("P14")
def test_p14_check_names_the_operation_that_gave_the_first_nan(tmp_path: Path) -> None:
    """`truestep check` names the line and the operation that gave the first NaN, not where it showed."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    _, told = judged(script)
    (finding,) = [item for item in told.findings if item.rule.meta.code == "LOOP11"]
    assert SCRIPT.splitlines()[(finding.finding.line or 0) - 1] == "    length = squares.sqrt()"
    assert "sqrt" in finding.finding.message


@pytest.mark.practice("P14")
def test_p14_a_mask_on_the_output_does_not_save_the_gradient() -> None:
    """Leaving NaN out of the result (`isnan` mask, `nanmean`) still gives a NaN gradient; mask the input."""
    x = torch.tensor([4.0, 1.0, -1.0], requires_grad=True)
    for leave_out in (lambda y: y[~torch.isnan(y)].mean(), torch.nanmean):
        result = leave_out(x.sqrt())
        assert result == 1.5
        (gradient,) = torch.autograd.grad(result, x)
        assert torch.isnan(gradient).tolist() == [False, False, True]
    result = x[x > 0].sqrt().mean()
    (gradient,) = torch.autograd.grad(result, x)
    assert result == 1.5
    assert gradient.tolist() == [0.125, 0.25, 0.0]


def test_the_second_run_that_finds_it_writes_nothing_into_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT + "    open('steps.txt', 'a').write(f'{step}\\n')\n")
    monkeypatch.chdir(tmp_path)
    result = examine(Script(path="train.py"), Settings())
    (told,) = [item for item in result.findings if item.rule.meta.code == "LOOP11"]
    assert (tmp_path / "steps.txt").read_text() == "0\n1\n2\n3\n"
    assert told.finding.file == str(script)
    assert script.read_text().splitlines()[(told.finding.line or 0) - 1] == "    length = squares.sqrt()"
