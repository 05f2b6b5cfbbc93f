"""PERF04: what changed between compilations in words, and nothing where each shape is compiled on purpose."""

from pathlib import Path

import pytest

from tests.gathering import run_script
from truestep.rules import Finding, find_rules
from truestep.rules.perf.repeated_compilation import _change

SCRIPT = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x, factor):
        return self.layer(x) * factor

model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
compiled = torch.compile(model, backend="eager", OPTIONS)
for step in range(STEPS):
    loss = compiled(torch.randn(SIZE, 4), FACTOR).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
RULE = next(rule for rule in find_rules() if rule.meta.code == "PERF04")


def found(folder: Path, *, size: str = "8", factor: str = "1", steps: int, options: str) -> list[Finding]:
    path = folder / "train.py"
    values = {"SIZE": size, "FACTOR": factor, "STEPS": str(steps), "OPTIONS": options}
    text = SCRIPT
    for name, value in values.items():
        text = text.replace(name, value)
    path.write_text(text)
    return list(RULE.check(run_script(path).evidence))


@pytest.mark.parametrize(
    ("steps", "size", "options", "num_found"),
    [
        (48, "8 + step % 4", "dynamic=False", 0),  # four shapes on purpose
        (8, "8 + step % 4", "dynamic=False", 1),  # too few steps for four
        (96, "8 + step % 9", "dynamic=False", 1),  # more shapes than the compiler keeps
        (8, "8 + step", "dynamic=None", 0),
    ],
)
def test_shapes_are_reported_unless_they_are_few_and_asked_for(
    tmp_path: Path, steps: int, size: str, options: str, num_found: int
) -> None:
    assert len(found(tmp_path, steps=steps, size=size, options=options)) == num_found


def test_what_changes_is_named_with_its_values(tmp_path: Path) -> None:
    (shapes,) = found(tmp_path, steps=8, size="8 + step % 4", options="dynamic=False")
    assert (
        shapes.evidence == "`forward` was compiled 4 times: the size of axis 0 of `x` changes (8, 9, 10, 11)"
    )
    (numbers,) = found(tmp_path, steps=60, factor="step % 4", options="dynamic=False")
    assert numbers.evidence == "`forward` was compiled 4 times: the value of `factor` changes (0, 1, 2)"


@pytest.mark.parametrize(
    ("guard", "changed"),
    [
        ("tensor 'x' rank mismatch. expected 2, actual 3", ("the number of axes of `x` changes", "2", "3")),
        (
            "tensor 'x' dtype mismatch. expected Float, actual Half",
            ("the dtype of `x` changes", "Float", "Half"),
        ),
        (
            "tensor 'x' stride mismatch at index 1. expected 4, actual 1",
            ("the stride of axis 1 of `x` changes", "4", "1"),
        ),
        ("len(x) < 3    # if x:  # a.py:3 in f\nUser stack trace:", ("`len(x) < 3` no longer holds", "", "")),
    ],
)
def test_a_guard_becomes_words(guard: str, changed: tuple[str, str, str]) -> None:
    assert _change(f"0/1: {guard}") == changed
