"""Compiled code that is wrong is found with its module and operation; rounding is not reported."""

from pathlib import Path
from typing import Any

import pytest

from truestep.verify import Script, VerifyOptions, verify
from truestep.verify.compiled import explain
from truestep.verify.describe import compiled_lines
from truestep.verify.verdict import Verdict

NET = """\
import torch
from torch import nn

aten = torch.ops.aten
PATCH


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.linear = nn.Linear(16, 16)
        self.act = nn.SiLU()

    def forward(self, x):
        return x + self.act(self.linear(self.norm(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.block = Block()
        self.last = nn.Linear(16, 4)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        BREAK
        return self.last(self.block(x))


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = torch.randn(16, 8)
for step in range(4):
    loss = net(data[: 16 - step]).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
DECOMPOSITION = """\
from torch._inductor.decomposition import decompositions
decompositions[aten.silu.default] = lambda x: x * torch.sigmoid(x) * 1.001
"""
LOWERING = """\
from torch._inductor import lowering
tanh = lowering.lowerings[aten.tanh.default]
lowering.lowerings[aten.tanh.default] = lambda x: lowering.lowerings[aten.mul.Tensor](tanh(x), 1.001)
"""
NORM = """\
from torch._inductor.decomposition import decompositions
norm = decompositions[aten.native_layer_norm.default]
decompositions[aten.native_layer_norm.default] = lambda x, s, w, b, eps: norm(x, s, w, b, 1e4 * eps)
"""


def compare(folder: Path, monkeypatch: pytest.MonkeyPatch, patch: str, broken: str = "pass") -> Verdict:
    (folder / "train.py").write_text(NET.replace("PATCH", patch).replace("BREAK", broken))
    monkeypatch.chdir(folder)
    return verify(Script(path="train.py"), VerifyOptions(runs=1, is_compiled=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("patch", "module", "operation"),
    [
        (DECOMPOSITION, "block.act (SiLU)", "aten.silu.default"),
        (LOWERING, "the model itself (Net)", "aten.tanh.default"),
        (NORM, "block.norm (LayerNorm)", "aten.native_layer_norm.default"),
    ],
)
def test_a_miscompilation_is_found_with_its_module_and_operation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patch: str, module: str, operation: str
) -> None:
    verdict = compare(tmp_path, monkeypatch, patch)
    found = verdict.first_difference
    assert verdict.same is False, verdict.reason
    assert found is not None
    assert (found.name, found.module, found.operation) == ("miscompiled", module, operation)


@pytest.mark.slow
def test_a_clean_model_is_quiet_and_its_breaks_and_recompilations_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = compare(tmp_path, monkeypatch, "", broken="print('here')")
    assert verdict.same is True, verdict.reason or verdict.first_difference
    assert verdict.compiled is not None
    text = (tmp_path / "train.py").read_text().splitlines()
    line = 1 + text.index("        print('here')")
    assert [(item["file"], item["line"]) for item in verdict.compiled["breaks"]] == [
        (str(tmp_path / "train.py"), line)
    ]
    assert any("size mismatch" in item["text"] for item in verdict.compiled["recompilations"])
    assert {name: worst["is_beyond"] for name, worst in verdict.compiled["stages"].items()} == {
        "aot_eager": False,
        "aot_eager_decomp_partition": False,
        "inductor": False,
    }


def told() -> dict[str, Any]:
    worst = {"is_beyond": True, "value": "output 0", "apart": 0.01, "eager_apart": 1e-7}
    found = {**worst, "module": "", "kind": "Net", "stage": "inductor", "operation": None}
    broken = [{"file": "a.py", "line": 3, "text": "because"}]
    return {
        "judge": "float64",
        "stages": {"inductor": worst},
        "breaks": broken,
        "recompilations": [],
        "found": found,
    }


def test_a_difference_is_told_with_its_stage_and_its_distance() -> None:
    finding = explain(told())
    assert finding.module == "the model itself (Net)"
    assert finding.evidence[0] == "first off in inductor: a lowering, a pass or a kernel"
    assert finding.evidence[1] == "output 0 is 0.01 from float64; eager code is 1e-07 from it"


def test_stages_and_breaks_are_listed() -> None:
    lines = compiled_lines(Verdict(compiled=told()))
    assert lines == [
        "compiled inductor: beyond rounding: output 0 0.01 from the judge, eager 1e-07",
        "graph break a.py:3  because",
    ]
    assert compiled_lines(Verdict()) == []
