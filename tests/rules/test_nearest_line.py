"""A finding is reported at the line that has to change, where the evidence shows which it is."""

import pytest

from tests.rules.test_spared import line_of, run

LOOP = """
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    guess = model(x)

    loss = nn.functional.mse_loss(guess, x.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
"""
HEAD = 4
"""Lines before a script's first: those that `run` adds, and an empty one."""


def lines_of(code: str, text: str) -> list[int | None]:
    return [item.line for item in run(code, text)]


def test_a_missing_step_is_reported_at_the_backward_pass() -> None:
    text = LOOP.replace("    optimizer.step()\n", "")
    assert lines_of("LOOP02", text) == [HEAD + line_of(text, "loss.backward()")]


def test_a_step_before_the_backward_pass_is_reported_at_the_step() -> None:
    text = LOOP.replace(
        "    loss.backward()\n    optimizer.step()", "    optimizer.step()\n    loss.backward()"
    )
    (finding,) = run("LOOP02", text)
    assert finding.line == HEAD + line_of(text, "optimizer.step()")
    assert finding.message.startswith("the optimizer steps before the backward pass")


@pytest.mark.parametrize(("code", "rate"), [("PAR07", "0.0"), ("PROBE07", "1e4")])
def test_a_useless_rate_is_reported_where_the_optimizer_is_created(code: str, rate: str) -> None:
    text = LOOP.replace("lr=0.01", f"lr={rate}").replace("SGD", "Adam")
    assert lines_of(code, text) == [HEAD + line_of(text, "optimizer = ")]


def test_a_rate_of_zero_that_a_schedule_sets_is_reported_at_the_step() -> None:
    schedule = "torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)\nfor step in"
    text = LOOP.replace("for step in", schedule)
    assert lines_of("PAR07", text) == [HEAD + line_of(text, "optimizer.step()")]


EVALUATED = """
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
x = torch.randn(96, 6)
y = (x.sum(1) > 0).long()
train = DataLoader(TensorDataset(x[:64], y[:64]), batch_size=16, shuffle=True)
valid = DataLoader(TensorDataset(x[64:], y[64:]), batch_size=8)
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters())

def evaluate():
    model.eval()
    num_right = 0
    num_all = 0
    with torch.no_grad():
        for inputs, targets in valid:
            scores = model(inputs)
            num_right += int((scores.argmax(1) == targets).sum())

for epoch in range(2):
    model.train()
    for inputs, targets in train:
        loss = F.cross_entropy(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    evaluate()
"""


def test_train_for_eval_is_reported_where_it_is_called() -> None:
    assert run("MODE01", EVALUATED) == []
    text = EVALUATED.replace("model.eval()", "model.train()")
    assert lines_of("MODE01", text) == [HEAD + line_of(text, "model.train()")]


def test_one_input_drawn_several_times_in_train_mode_is_on_purpose() -> None:
    text = EVALUATED.replace("model.eval()", "model.train()").replace(
        "scores = model(inputs)", "scores = (model(inputs) + model(inputs) + model(inputs)) / 3"
    )
    assert run("MODE01", text) == []


NORMALISED = """
torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x):
        return F.softmax(self.layer(x), dim=1)


model = Net()
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    x = torch.randn(16, 8)
    output = model(x)
    right = output.argmax(1) == x[:, :4].argmax(1)
    loss = F.nll_loss(output, x[:, :4].argmax(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_softmax_for_log_softmax_is_reported_where_it_is_called() -> None:
    assert lines_of("LOSS01", NORMALISED)[0] == HEAD + line_of(NORMALISED, "F.softmax")
    weighted = NORMALISED.replace("right = ", "mean = output * torch.arange(4) ; right = ")
    assert lines_of("LOSS01", weighted)[0] == HEAD + line_of(weighted, "F.nll_loss")
