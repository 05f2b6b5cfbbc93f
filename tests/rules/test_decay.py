"""Weight decay is reported where the optimizer applies it, with its value."""

import re

import pytest

from tests.rules.test_spared import run

TRAINING = """
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
optimizer = {optimizer}
for step in range(6):
    x = torch.randn(64, 8)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
SKIPPING = """
class Filtered(torch.optim.Optimizer):
    def __init__(self, params, lr, weight_decay):
        super().__init__(params, dict(lr=lr, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                d = p.grad if p.ndim < 2 else p.grad.add(p, alpha=group["weight_decay"])
                p.add_(d, alpha=-group["lr"])
class Adam(Filtered):
    pass
"""


@pytest.mark.parametrize("name", ["Filtered", "Adam"])
def test_decay_that_an_optimizer_of_the_users_may_skip_is_not_reported(name: str) -> None:
    text = SKIPPING + TRAINING.format(optimizer=f"{name}(model.parameters(), lr=0.01, weight_decay=0.1)")
    assert not run("PAR08", text) and not run("PAR09", text)


@pytest.mark.parametrize(("decay", "is_reported"), [("0.1", True), ("1e-8", False)])
def test_decay_is_reported_with_its_value_unless_it_is_negligible(decay: str, is_reported: bool) -> None:
    found = run(
        "PAR08", TRAINING.format(optimizer=f"torch.optim.Adam(model.parameters(), weight_decay={decay})")
    )
    assert len(found) == is_reported
    for finding in found:
        assert re.search(r"weight_decay=0\.1 applies to 4 vectors: 0\.bias, 1\.weight", finding.evidence)


def test_a_subclass_that_keeps_the_step_of_torch_is_reported() -> None:
    text = "class Named(torch.optim.SGD):\n    pass\n" + TRAINING.format(
        optimizer="Named(model.parameters(), lr=0.01, weight_decay=0.1)"
    )
    assert len(run("PAR08", text)) == 1
