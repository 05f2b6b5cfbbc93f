"""`check --deep`: what a copy of the model can learn, and that the script's own model is left as it is."""

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.gathering import run_script
from truestep.check import check_plan
from truestep.rules import find_rules
from truestep.watch.evidence.facts.passes import LearningTested
from truestep.watch.inspect.probe.deep import Batch, _learn

RULES = {rule.meta.code: rule for rule in find_rules()}
SCRIPT = """
import torch
from torch import nn

torch.manual_seed(0)
x = torch.randn(256, 8)
y = x[:, :4].argmax(1)
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, labels in zip(x.split(32), y.split(32)):
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(sum(float(item.sum()) for item in model.parameters()))
"""


def batches() -> list[Batch]:
    torch.manual_seed(0)
    x = torch.randn(128, 8)
    return [(((part,), {}), part[:, :4].argmax(1)) for part in x.split(16)]


def test_one_batch_and_true_labels_are_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("truestep.watch.inspect.probe.deep._MAX_S", 1e6)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    before = [item.clone() for item in model.parameters()]
    num_classes, single, true, permuted, _ = _learn(model, batches(), loss="cross entropy")
    assert num_classes == 4 and single[-1] < 0.5 * single[0] and true[-1] < 0.95 * permuted[-1]
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_a_model_whose_output_is_cut_off_learns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("truestep.watch.inspect.probe.deep._NUM_STEPS", 8)
    model = nn.Sequential(nn.Linear(8, 4), nn.Hardtanh(100.0, 101.0))
    _, single, _, _, _ = _learn(model, batches(), loss="cross entropy")
    assert single[-1] == single[0]


def test_an_output_that_does_not_fit_the_target_is_not_tried() -> None:
    assert isinstance(_learn(nn.Linear(8, 3), batches(), loss="squared error"), str)


@pytest.mark.slow
def test_a_script_is_tried_and_gives_the_same_result(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    deep = run_script(path, plan=check_plan(deep=True), timeout_s=300)
    plain = run_script(path, timeout_s=300)
    (tested,) = deep.evidence.of(LearningTested)
    assert not tested.facts.reason and not plain.evidence.of(LearningTested)
    assert deep.code == plain.code == 0 and deep.output == plain.output
    (finding,) = RULES["PROBE11"].check(deep.evidence)
    assert finding.severity == "info" and "learns one batch" in finding.message
