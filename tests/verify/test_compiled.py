"""Compiled code that is wrong is found with its module and line; rounding is not reported."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from truestep.verify import Script, VerifyOptions, verify
from truestep.verify.compiled import compiled_lines, explain
from truestep.verify.verdict import Verdict
from truestep.watch.control import compiling

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


def compare(folder: Path, monkeypatch: pytest.MonkeyPatch, patch: str) -> Verdict:
    (folder / "train.py").write_text(NET.replace("PATCH", patch))
    monkeypatch.chdir(folder)
    return verify(Script(path="train.py"), VerifyOptions(runs=1, is_compiled=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("patch", "module", "line"),
    [
        (DECOMPOSITION, "block.act (SiLU)", "return x + self.act(self.linear(self.norm(x)))"),
        (LOWERING, "the model itself (Net)", "loss = net(data[: 16 - step]).pow(2).mean()"),
        (NORM, "block.norm (LayerNorm)", "return x + self.act(self.linear(self.norm(x)))"),
    ],
)
def test_a_miscompilation_is_found_with_its_module_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patch: str, module: str, line: str
) -> None:
    verdict = compare(tmp_path, monkeypatch, patch)
    found = verdict.first_difference
    assert verdict.same is False, verdict.reason
    assert found is not None
    assert (found.name, found.module) == ("miscompiled", module)
    assert found.file is not None
    assert found.line is not None
    assert Path(found.file) == tmp_path / "train.py"
    assert Path(found.file).read_text().splitlines()[found.line - 1].strip() == line


@pytest.mark.slow
def test_a_clean_model_is_quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdict = compare(tmp_path, monkeypatch, "")
    assert verdict.same is True, verdict.reason or verdict.first_difference
    assert verdict.compiled is not None
    assert verdict.compiled["is_beyond"] is False
    assert verdict.compiled["judge"] == "float64"


class Shifted(nn.Module):
    """The gradient of its bias is zero but for rounding: a mean is taken away after it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, rows: Tensor) -> Tensor:
        rows = self.linear(rows)
        return torch.tanh(rows - rows.mean(0))


def test_a_gradient_that_is_zero_but_for_rounding_may_be_another_rounding() -> None:
    torch.manual_seed(0)
    module, call = Shifted(), ((torch.randn(32, 8),), {})
    eager = compiling.values_of_call(module, call)
    judge = compiling.values_of_call(compiling._doubled(module), ((call[0][0].double(),), {}))
    name = "gradient of linear.bias"
    rounded = {**eager, name: (judge[name] + 1e-7).float()}
    assert compiling.same(eager, rounded, judge=judge) == (True, "")
    is_same, words = compiling.same(eager, {**eager, name: (judge[name] + 1e-3).float()}, judge=judge)
    assert not is_same
    assert words.startswith(f"Accuracy failed for key name {name}; RMSE (res-fp64): 0.00100")


def test_infinities_at_the_same_places_are_equal() -> None:
    ours = {"output 0": torch.tensor([1.0, -torch.inf, torch.nan])}
    theirs = {"output 0": torch.tensor([1.1, -torch.inf, torch.nan])}
    assert compiling.same(ours, ours, judge=None)[0]
    assert not compiling.same(ours, theirs, judge=None)[0]
    assert not compiling.same(ours, {}, judge=None)[0]


def test_gradients_of_inputs_and_complex_values_are_compared() -> None:
    module = nn.Module()
    module.weight = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    module.forward = lambda rows: rows * module.weight
    values = compiling.values_of_call(module, ((torch.ones(3, requires_grad=True),), {}))
    assert values["output 0"].shape == (3, 2)
    assert values["gradient of input 0"].shape == (3,)


def test_the_module_around_a_module_list_is_the_one_that_calls_its_items() -> None:
    call: compiling.PlacedCall = (((), {}), (None, None))
    calls = dict.fromkeys(("blocks.0", "blocks.0.norm", "head"), call)
    assert compiling._caller("blocks.0", calls) == ""
    assert compiling._caller("blocks.0.norm", calls) == "blocks.0"
    assert compiling._caller("head", calls) == ""


def test_every_outermost_model_that_trains_is_kept(tmp_path: Path) -> None:
    audit = compiling._Audit(tmp_path / "compiled.json", lambda _: True)
    first, second, frozen = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False)
    for module in (first, second, frozen, second):
        audit.take(module, (torch.ones(1, 2),), {})
    assert [item.live for item in audit._models] == [first, second]


def told(**others: Any) -> dict[str, Any]:
    found = {"is_beyond": True, "distance": "output 0: 0.01", "judge": "float64", "model": "Net"}
    return {**found, "module": "", "kind": "Net", "file": "a.py", "line": 3, **others}


def test_a_difference_is_told_with_its_module_and_its_distance() -> None:
    finding = explain(told())
    assert (finding.module, finding.file, finding.line) == ("the model itself (Net)", "a.py", 3)
    assert finding.evidence == ["judged by float64: output 0: 0.01"]


def test_rounding_is_stated_in_a_line() -> None:
    assert compiled_lines(told(is_beyond=False)) == ["compiled: no more than rounding, judged by float64"]
    assert compiled_lines(told()) == []
    assert compiled_lines(None) == []
