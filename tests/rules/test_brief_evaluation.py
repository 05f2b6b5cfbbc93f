"""Evaluations of one or two batches, behind a method of the model, or in a loop within a loop."""

import pytest

from tests.gathering import run_text
from truestep.rules import Finding, find_rules

RULES = {rule.meta.code: rule for rule in find_rules()}

START = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(96, 8)
y = x[:, :4].argmax(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Linear(16, 4))

    def forward(self, x):
        return self.layers(x)

    def predict(self, x):
        return self(x).argmax(1)


model = Net()
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(TensorDataset(x[:64], y[:64]), 16, shuffle=True)
test_loader = DataLoader(TensorDataset(x[64:], y[64:]), 16)


def train():
    for data, target in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(data), target).backward()
        optimizer.step()


"""

ONCE = """
def evaluate():
    model.eval()
    with torch.no_grad():
        loss = F.cross_entropy(model(x[64:]), y[64:])
    model.train()
    return loss.item()


train()
print(evaluate())
"""

BATCHES = """
def evaluate():
    total = 0.0
    model.eval()
    for _ in range(1):
        with torch.no_grad():
            for data, target in test_loader:
                # in batches
                total += F.cross_entropy(model(data), target).item()
    model.train()
    return total


for epoch in range(2):
    model.train()
    train()
    print(evaluate())
"""

CALLED = """
for epoch in range(3):
    train()
    model.eval()
    with torch.no_grad():
        for rows in x[64:].split(8):
            model.predict(rows)
    model.train()
"""


def run(code: str, text: str) -> list[Finding]:
    ran = run_text(START + text)
    assert ran.code == 0, ran.output
    return list(RULES[code].check(ran.evidence))


def lines(code: str, text: str) -> list[int | None]:
    return [item.line for item in run(code, text)]


def line_of(text: str, what: str) -> int:
    return (START + text)[: (START + text).index(what, len(START))].count("\n") + 1


def test_a_single_pass_in_a_function_that_evaluates_needs_no_graph() -> None:
    text = ONCE.replace("with torch.no_grad():", "if True:")
    assert lines("MODE02", text) == [line_of(text, "loss = ")]
    assert lines("MODE02", ONCE) == []
    assert lines("MODE02", text.replace("evaluate", "look")) == []


def test_labels_that_are_moved_in_the_only_batch_of_an_evaluation_are_found() -> None:
    text = ONCE.replace("y[64:])", "y[64:].roll(1, 0))")
    assert lines("DATA14", text) == [line_of(text, "loss = ")]
    assert lines("DATA14", ONCE) == []


def test_two_batches_in_train_mode_are_no_drawing_of_masks() -> None:
    text = BATCHES.replace("    model.eval()\n", "    model.train()\n", 1)
    assert lines("MODE01", text) == [line_of(text, "model.train()\n    for")]
    assert lines("MODE01", BATCHES) == []


def test_the_outermost_loop_of_an_evaluation_is_named() -> None:
    text = BATCHES.replace("    model.eval()\n", "    pass\n", 1)
    assert lines("MODE01", text) == [line_of(text, "for _")]


@pytest.mark.parametrize("what", ["model.eval()", "with torch.no_grad():"])
def test_a_pass_in_a_method_of_the_model_is_named_where_the_method_is_called(what: str) -> None:
    text = CALLED.replace(what, "if True:" if what.endswith(":") else "pass")
    found = lines("MODE02" if what.endswith(":") else "MODE01", text)
    assert [line is not None and abs(line - line_of(text, "for rows")) <= 1 for line in found] == [True]


def test_eval_in_place_of_train_after_an_evaluation_is_named() -> None:
    text = CALLED.replace("model.train()", "model.eval()  # again")
    found = run("MODE03", text)
    assert [item.line for item in found] == [line_of(text, "model.eval()  # again")]
    assert run("MODE03", CALLED) == []


def test_noise_in_a_shuffled_set_that_is_evaluated_once_is_found() -> None:
    noisy = """
class Noisy(TensorDataset):
    def __getitem__(self, place):
        data, target = super().__getitem__(place)
        return data + NOISE * torch.randn(8), target


test_loader = DataLoader(Noisy(x[64:], y[64:]), 16, shuffle=True)
train()
model.eval()
with torch.no_grad():
    for data, target in test_loader:
        print((model(data).argmax(1) == target).float().mean())
"""
    assert len(run("DATA06", noisy.replace("NOISE", "0.3"))) == 1
    assert run("DATA06", noisy.replace("NOISE", "0.0")) == []


def test_a_step_that_is_missing_is_named_where_tensors_are_trained() -> None:
    text = """
weight = torch.zeros(8, requires_grad=True)
optimizer = torch.optim.SGD([weight], 0.1)
for step in range(8):
    (x @ weight - y).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
    lost = text.replace("    optimizer.step()\n", "")
    assert lines("LOOP02", lost) == [line_of(lost, "(x @")]
    assert lines("LOOP02", text) == []


def test_a_divided_loss_matters_where_decay_is_added_to_the_gradient() -> None:
    text = """
optimizer = torch.optim.Adam(model.parameters(), weight_decay=DECAY)
for step in range(4):
    optimizer.zero_grad()
    (F.cross_entropy(model(x), y) / 32).backward()
    optimizer.step()
"""
    assert [item.severity for item in run("LOOP21", text.replace("DECAY", "0.1"))] == [None]
    assert [item.severity for item in run("LOOP21", text.replace("DECAY", "0.0"))] == ["info"]


def test_a_term_whose_score_is_detached_outside_of_the_model_has_no_gradient() -> None:
    text = """
judge = nn.Sequential(nn.Linear(8, 1), nn.Sigmoid())
optimizer = torch.optim.Adam(judge.parameters())
for step in range(4):
    real, made = judge(x).view(-1), judge(x + 1).view(-1)
    first = F.binary_cross_entropy(real, torch.ones(96))
    second = F.binary_cross_entropy(made, torch.zeros(96))
    optimizer.zero_grad()
    ((first + second) / 2).backward()
    optimizer.step()
"""
    cut = text.replace("cross_entropy(real,", "cross_entropy(real.detach(),")
    assert lines("LOSS06", cut) == [line_of(cut, "first =")]
    assert lines("LOSS06", text) == []


def test_a_text_that_is_made_after_training_needs_no_graph() -> None:
    text = """
for epoch in range(3):
    train()
with torch.no_grad():
    row = x[:1]
    for place in range(9):
        row = F.one_hot(model(row).argmax(1), 4).repeat(1, 2).float()
"""
    kept = text.replace("with torch.no_grad():", "if True:")
    assert lines("MODE02", kept) == [line_of(kept, "for place")]
    assert lines("MODE02", text) == []


def test_the_last_game_of_a_policy_that_learns_is_no_evaluation() -> None:
    text = """
for game in range(4):
    chances = [F.log_softmax(model(row[None]), 1)[0, 0] for row in x[:9]]
    if game < 3:
        optimizer.zero_grad()
        (-torch.stack(chances).sum()).backward()
        optimizer.step()
"""
    assert lines("MODE02", text) == []


LEARNING = """    loss = F.cross_entropy(model(x), y)
    loss.backward()
    with torch.no_grad():
        for weight in model.parameters():
            weight -= 0.05 * weight.grad
            weight.grad = None
    optimizer.zero_grad()
"""


def test_a_first_step_larger_than_all_weights_is_found_where_nothing_is_learned() -> None:
    text = """
deep = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(deep.parameters(), lr=RATE)
for step in range(16):
    optimizer.zero_grad()
    (deep(x).tanh() - x[:, 4:].clamp(-0.1, 0.1)).abs().mean().backward()
    optimizer.step()
"""
    found = run("PROBE07", text.replace("RATE", "0.38"))
    assert [(item.line, item.severity) for item in found] == [(line_of(text, "optimizer ="), "warning")]
    assert run("PROBE07", text.replace("RATE", "0.001")) == []
    beside = text.replace("    (deep", LEARNING + "    (deep").replace("RATE", "0.38")
    assert [(item.line, item.severity) for item in run("PROBE07", beside)] == [
        (line_of(text, "optimizer ="), "warning")
    ]


def test_what_an_optimizer_lacks_of_a_model_of_a_library_is_found() -> None:
    text = """
from transformers import BertConfig, BertModel

sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
model = BertModel(BertConfig(vocab_size=12, **sizes), add_pooling_layer=False)
optimizer = torch.optim.Adam([*model.parameters()][2:])
tokens = torch.randint(0, 12, (4, 6))
for step in range(4):
    optimizer.zero_grad()
    model(tokens).last_hidden_state.square().mean().backward()
    optimizer.step()
"""
    assert lines("PAR04", text) == [line_of(text, "optimizer =")]
    assert lines("PAR04", text.replace("[2:]", "")) == []


def test_an_evaluation_begins_at_the_block_around_the_call() -> None:
    text = """
def score(rows):
    return [model(row).argmax(1) for row in rows.split(8)]


for epoch in range(3):
    train()
    model.eval()
    with torch.no_grad():
        score(x[64:])
    model.train()
"""
    assert lines("MODE01", text.replace("model.eval()", "pass")) == [line_of(text, "with torch")]
    assert lines("MODE01", text) == []


def test_a_copy_whose_frozen_part_is_left_alone_is_no_model_that_is_trained() -> None:
    text = """
import copy

model = Net()
model.layers[0].requires_grad_(False)
optimizer = torch.optim.Adam(copy.deepcopy(model).parameters())
train()
"""
    assert lines("PAR03", text) == [line_of(text, "optimizer = torch.optim.Adam(copy")]
    assert lines("PAR03", text.replace("copy.deepcopy(model)", "model")) == []


def test_training_that_forgets_train_is_no_evaluation_with_gradients() -> None:
    text = """
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(3):
    train()
    model.eval()
    for data, target in test_loader:
        F.cross_entropy(model(data), target).item()
"""
    assert [(item.line, item.severity) for item in run("MODE02", text)] == [(line_of(text, "for data"), None)]


def test_an_evaluation_that_asks_for_gradients_inside_of_the_model_is_no_training() -> None:
    text = """
class Energy(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def forward(self, x):
        guess = torch.zeros(len(x), 4, requires_grad=True)
        energy = (self.net(x) - guess).square().sum()
        return guess - torch.autograd.grad(energy, guess, create_graph=True)[0]


model = Energy()
optimizer = torch.optim.Adam(model.parameters())
test_loader = DataLoader(TensorDataset(x[64:], y[64:]), 8)
for epoch in range(2):
    model.train()
    train()
    model.eval()
    for data, target in test_loader:
        F.cross_entropy(model(data), target).item()
"""
    assert lines("DATA03", text) == []
    sorted_ = text.replace("for epoch", "loader = DataLoader(TensorDataset(x[:64], y[:64]), 16)\nfor epoch")
    assert lines("DATA03", sorted_) == [line_of(text, "for epoch")]


def test_a_loss_that_is_averaged_anew_is_still_differentiated_twice() -> None:
    text = """
for step in range(4):
    errors = F.cross_entropy(model(x), y, reduction="none")
    optimizer.zero_grad()
    errors.mean().backward(retain_graph=True)
    optimizer.step()
"""
    again = text.replace("    optimizer.step()", "    errors.mean().backward()\n    optimizer.step()")
    assert lines("LOOP03", again) != []
    assert lines("LOOP03", text) == []


def test_a_tensor_that_is_written_to_is_another_input() -> None:
    text = """
for epoch in range(3):
    train()
row = torch.zeros(1, 8)
for place in range(9):
    row[:, :4] = model(row).detach().softmax(1)
"""
    assert lines("MODE02", text) == [line_of(text, "for place")]
