"""What public scripts have shown: correct code that rules must let be, beside the mistake that they seek."""

from dataclasses import replace

import pytest

from tests.gathering import run_text
from tests.rule_examples import buggy, scripts_of
from truestep.rules import Finding, find_rules
from truestep.watch import Moment
from truestep.watch.evidence.facts.passes import BackwardPass

RULES = {rule.meta.code: rule for rule in find_rules()}
START = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
FILE = "/project/trainer.py"


def run(code: str, text: str) -> list[Finding]:
    """Return what a rule finds in a script that is run."""
    return list(RULES[code].check(run_text(START + text).evidence))


COMPARED = """
class Net(nn.Module):
    def __init__(self, is_normed):
        super().__init__()
        self.is_normed, self.norm, self.out = is_normed, nn.BatchNorm1d(4), nn.Linear(4, 1)

    def forward(self, x):
        return self.out(self.norm(x) if self.is_normed else x)

torch.manual_seed(0)
for model in [Net(True), Net(False)]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(5):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
"""


def test_a_layer_that_learns_in_another_model_of_the_class_is_switched_off() -> None:
    assert not run("PAR06", COMPARED)
    finding, *_ = run("PAR06", COMPARED.replace("Net(True)", "Net(False)"))
    assert "norm" in finding.message


WARMED_UP = """
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
for step in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
"""


def test_a_scheduler_that_another_file_steps_later_is_not_forgotten() -> None:
    found = run_text(START + WARMED_UP).evidence
    assert list(RULES["LOOP10"].check(found))
    given_away = WARMED_UP.replace("for step", "handler = repr(scheduler)\nfor step")
    assert not run("LOOP10", given_away)
    later = "def end(self, epoch):\n    if epoch >= 10:\n        self.scheduler.step()\n"
    backward = BackwardPass("backward")
    found.first.moments.append(
        Moment(facts=backward, step=0, at_s=0.0, took_s=0.0, file=FILE, line=1, function="")
    )
    found = replace(found, texts={**found.texts, FILE: later})
    assert not list(RULES["LOOP10"].check(found))


ATTACKED = """
def attack(model, x, y):
    x = x.clone().requires_grad_(True)
    return x + torch.autograd.grad(F.cross_entropy(model(x), y), x)[0].sign()

torch.manual_seed(0)
model = nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    model.train()
    for step in range(3):
        x, y = torch.randn(8, 4), torch.randint(0, 3, (8,))
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    for step in range(3):
        print((model(attack(model, x, y)).argmax(1) == y).sum().item())
"""


def test_an_evaluation_that_needs_gradients_elsewhere_is_a_remark_without_an_edit() -> None:
    evidence = run_text(START + ATTACKED).evidence
    (finding,) = RULES["MODE02"].check(evidence)
    assert finding.severity == "info"
    source = evidence.source(finding.file)
    make_edits = RULES["MODE02"].make_edits
    assert source is not None
    assert make_edits is not None
    assert make_edits(source, finding) == []
    (finding,) = RULES["MODE02"].check(
        run_text(START + ATTACKED.replace("attack(model, x, y)).", "x).")).evidence
    )
    assert finding.severity is None


OTHER = """
style = nn.Conv2d(1, 4, 3)(torch.rand(8, 1, 8, 8) / 2)
"""


@pytest.mark.parametrize("scaled", [".mul(255)", " * 255.0"])
def test_pixels_may_be_large_where_the_script_makes_them_so(scaled: str) -> None:
    drawn = "torch.randint(0, 256, (8, 1, 8, 8)).float()"
    assert not run("DATA07", buggy("DATA07").replace(drawn, f"torch.rand(8, 1, 8, 8){scaled}"))
    (finding,) = run("DATA07", buggy("DATA07").replace(drawn, "torch.rand(8, 1, 8, 8).div(1 / 255)"))
    assert "never scaled" in finding.message


def test_the_input_of_another_model_says_nothing_of_this_one() -> None:
    scripts = scripts_of("DATA07")
    assert scripts
    text = scripts.clean.replace("torch.manual_seed(0)", OTHER + "torch.manual_seed(0)")
    assert not run("DATA07", text)


def test_pictures_with_equal_corners_are_different_micro_batches() -> None:
    text = buggy("LOOP03").replace("nn.Linear(4, 1)", "nn.Sequential(nn.Flatten(), nn.Linear(64, 1))")
    pictures = text.replace("torch.randn(8, 4)", "F.pad(torch.randn(8, 6, 6), (1, 1, 1, 1))")
    assert len(run("LOOP03", pictures.replace("x.sum(1, keepdim=True)", "x.sum((1, 2))[:, None]"))) == 1


TWICE = """
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(4):
    x = torch.randn(8, 4)
    loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
    optimizer.zero_grad()
    FIRST
    SECOND
    optimizer.step()
"""
AGAIN = "loss.backward(retain_graph=True)"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (AGAIN, "loss.backward()"),
        ("(64 * loss).backward(retain_graph=True)", "(64 * loss).backward()"),
        (AGAIN, "loss.backward(); nn.utils.clip_grad_norm_(model.parameters(), 1)"),
    ],
)
def test_a_loss_that_counts_twice_is_found(first: str, second: str) -> None:
    (finding,) = run("LOOP03", TWICE.replace("FIRST", first).replace("SECOND", second))
    assert finding.line == 13 and finding.severity is None and "count twice" in finding.message


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (AGAIN, "optimizer.zero_grad(); loss.backward()"),
        (AGAIN, "[p.grad.zero_() for p in model.parameters()]; loss.backward()"),
        (AGAIN, "loss.backward(); [p.grad.div_(2) for p in model.parameters()]"),
        (AGAIN, "[p.grad.mul_(0.5) for p in model.parameters()]; (0.5 * loss).backward()"),
        ("(loss / 2).backward(retain_graph=True)", "(loss / 2).backward()"),
        (AGAIN, "loss.backward(torch.tensor(0.5))"),
        (AGAIN, "torch.autograd.grad(loss, model.parameters())"),
        (AGAIN, "(loss + model[0].weight.square().mean()).backward()"),
        (AGAIN, "(-0.3 * loss).backward()"),
        (
            "loss.backward(inputs=[*model[0].parameters()], retain_graph=True)",
            "loss.backward(inputs=[*model[1].parameters()])",
        ),
        (
            "loss.backward(create_graph=True)",
            "sum(p.grad.square().sum() for p in model.parameters()).backward()",
        ),
    ],
)
def test_two_passes_over_one_graph_that_do_not_count_twice_are_not_reported(first: str, second: str) -> None:
    assert run("LOOP03", TWICE.replace("FIRST", first).replace("SECOND", second)) == []


BY_HAND = """
torch.manual_seed(0)
model, frozen = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 1)), nn.Linear(1, 1).eval()


def evaluate():
    model.eval()
    total = 0.0
    for x in torch.randn(24, 4).split(8):
        total += (model(x) - x.sum(1, keepdim=True)).square().mean().item()
    return total


for epoch in range(2):
    model.train()
    for x in torch.randn(32, 4).split(8):
        model.zero_grad()
        goal = frozen(x.sum(1, keepdim=True)).detach()
        (model(x) - goal).square().mean().backward()
        for parameter in model.parameters():
            parameter.data.add_(parameter.grad, alpha=-0.01)
    evaluate()
"""


def test_an_evaluation_with_graphs_is_found_where_weights_are_updated_by_hand() -> None:
    (finding,) = run("MODE02", BY_HAND)
    assert finding.line == 4 + BY_HAND[: BY_HAND.index("for x in torch.randn(24")].count("\n")
    assert run("MODE02", BY_HAND.replace("def evaluate", "@torch.no_grad()\ndef evaluate")) == []
    assert run("MODE02", BY_HAND.replace("alpha=-0.01", "alpha=0")) == []  # nothing is trained


WHOLE = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        return self.out(F.dropout(x, 0.5, training=True))


torch.manual_seed(0)
x, y = torch.randn(30, 4), torch.randint(3, (30,))
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(6):
    model.train()
    optimizer.zero_grad()
    F.cross_entropy(model(x)[:10], y[:10]).backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        for part in PARTS:
            F.cross_entropy(model(INPUT)[part], y[part])
"""


@pytest.mark.parametrize(
    ("parts", "given", "num"),
    [
        ("(slice(10), slice(10, 20), slice(20, 30))", "x", 1),
        ("[slice(10)] * 10", "x", 0),  # Monte-Carlo dropout
        ("[slice(10)] * 3", "unseen", 0),
    ],
)
def test_dropout_in_eval_mode_is_found_on_a_whole_graph(parts: str, given: str, num: int) -> None:
    text = WHOLE.replace("PARTS", parts).replace("INPUT", given)
    found = run("MODE04", text.replace("model = Net", "unseen = x + 1\nmodel = Net"))
    assert len({finding.line for finding in found}) == num


PAIRED = """
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 2)

    def forward(self, x, order=None):
        return self.out(x if order is None else x[order])


torch.manual_seed(0)
data = torch.randn(64, 4)
loader = DataLoader(TensorDataset(data, torch.arange(64) % 4 // 2), batch_size=16)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    order = x[:, 1].argsort()
    loss = LOSS
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("loss", "num"),
    [
        ("F.cross_entropy(model(x), y.roll(1, 0))", 1),
        ("F.cross_entropy(model(x), y)", 0),
        ("F.cross_entropy(model(x[order]), y[order])", 0),
        ("F.cross_entropy(model(x, order), y[order])", 0),
        ("F.cross_entropy(model(x[order])[order.argsort()], y)", 0),
        ("F.cross_entropy(model(0.7 * x + 0.3 * x[order]), y[order])", 0),
        ("0.5 * F.cross_entropy(model(x), y) + 0.5 * F.cross_entropy(model(x), y[order])", 0),
        ("F.cross_entropy(model(x), torch.tensor([1, 0])[y])", 0),  # as for an adversary
    ],
)
def test_labels_in_another_order_than_their_inputs_are_found(loss: str, num: int) -> None:
    found = run("DATA14", PAIRED.replace("LOSS", loss))
    assert [finding.line for finding in found] == [4 + PAIRED[: PAIRED.index("loss =")].count("\n")] * num
