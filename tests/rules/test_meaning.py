"""Scripts that run and learn the wrong thing, and correct ones that look like them: one rule each."""

from typing import Any

import pytest

from tests.gathering import expected, run_text
from truestep.rules import find_rules

pytestmark = pytest.mark.slow  # the examples of the rules run in the fast tier
RULES = {rule.meta.code: rule for rule in find_rules()}
START = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\ntorch.manual_seed(0)\n"


def lines_found(code: str, text: str) -> set[int | None]:
    """Return the lines at which a rule reports a script that is run."""
    found = run_text(START + text)
    assert found.code == 0, found.output
    assert found.evidence.first.troubles == []
    return {finding.line for finding in RULES[code].check(found.evidence)}


LEARN = """
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    {batch}
    loss = {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def learn(batch: str, loss: str) -> str:
    """Return a loop of a few steps."""
    return LEARN.format(batch=batch, loss=loss)


def both(code: str, name: str, text: str, **more: Any) -> Any:
    return pytest.param(code, text, id=f"{code}-{name}", **more)


STATES = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x, state):
        return self.out(self.rnn(x, state)[0][:, -1])

model = Model()
"""
LENGTHS = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(4, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return self.out(self.rnn(packed)[1][-1])

model = Model()
"""
TABLE = """
from torch.utils.data import DataLoader, TensorDataset
table = torch.randn(160, 5)
{data}
loader = DataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)
model = nn.Linear(x.shape[1], 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    for inputs, targets in loader:
        loss = F.mse_loss(model(inputs).squeeze(1), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
FOLDED = """
import random
x = torch.randn(96, 5)
y = [int(row.sum() > 0) for row in x]
model = nn.Linear(5, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
order = list(range(96))
for epoch in range(3):
    random.shuffle({shuffled})
    for start in range(0, 96, 32):
        batch = order[start : start + 32]
        loss = F.cross_entropy(model(x[batch]), torch.tensor(y)[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


ARRAYS = """
import numpy as np
from torch.utils.data import DataLoader, Dataset

class Images(Dataset):
    def __init__(self):
        self.images = np.random.default_rng(0).random((32, 4, 4)).astype(np.float32)
    def __len__(self):
        return 32
    def __getitem__(self, index):
        image = self.images[index]
        {work}
        return torch.from_numpy(image).flatten(), image.sum()

model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(Images(), batch_size=8)
for x, y in [item for epoch in range({epochs}) for item in loader]:
    loss = F.mse_loss(model(x).squeeze(1), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


PADDED_BATCH = "tokens, y = torch.randint(1, 20, (16, 10)).masked_fill(~keep, 0), torch.randint(0, 2, (16,))"


WEIGHTED = """
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler
y = (torch.arange(240) % 6 == 0).long()
x = torch.randn(240, 4) + y[:, None]
counts = y.bincount().float()
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sampler = {sampler}
for inputs, labels in DataLoader(TensorDataset(x, y), 60, sampler=sampler, shuffle=sampler is None):
    loss = {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
BY_FREQUENCY = "F.cross_entropy(model(inputs), labels, weight={weight})"
WITHOUT_WEIGHTS = "F.cross_entropy(model(inputs), labels)"


CLASS_TOKEN = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(20, 16), nn.Linear(16, 2)
        self.token = nn.Parameter(torch.zeros(1, 1, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

    def forward(self, tokens):
        mask = torch.cat([torch.zeros(len(tokens), 1, dtype=torch.bool), tokens {is_hidden} 0], 1)
        x = torch.cat([self.token.expand(len(tokens), -1, -1), self.embed(tokens)], 1)
        return self.out(self.encoder(x, src_key_padding_mask=mask)[:, 0])  {expect}

model = Model()
"""
CLASS_TOKEN_LOOP = learn(
    "tokens = torch.randint(1, 20, (16, 10)) * (torch.arange(10) < torch.arange(16)[:, None] % 5 + 5)",
    "F.cross_entropy(model(tokens), torch.randint(0, 2, (16,)))",
)
RECURRENT = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.out = nn.GRU(4, 16, batch_first=True), nn.Linear(16, 1)

    def forward(self, x):
        return self.out({inner}[:, -1])

model = Model()
with torch.no_grad():
    for weight in model.rnn.parameters():
        weight.mul_(40)
"""
RECURRENT_LOOP = learn("x = torch.randn(16, 8, 4)", "F.mse_loss(model(x), x.sum((1, 2))[:, None])").replace(
    "range(4)", "range(12)"
)

SPARED = [
    both(
        "DATA09",
        "numbers-within-the-batch",
        """
x = torch.randn(96, 5)
model = nn.Sequential(nn.Linear(5, 8), nn.Dropout(0.1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(3):
    for batch in x[torch.randperm(96)].split(32):
        z = model(batch)
        loss = F.cross_entropy(z @ z.T, torch.arange(32))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
""",
    ),
    both(
        "DATA12",
        "inverse-frequencies",
        WEIGHTED.format(sampler="None", loss=BY_FREQUENCY.format(weight="len(y) / (2 * counts)")),
    ),
    both(
        "DATA12",
        "a-weight-for-each-sample",
        WEIGHTED.format(sampler="WeightedRandomSampler((1 / counts)[y], 240)", loss=WITHOUT_WEIGHTS),
    ),
    both("DATA11", "read-once", ARRAYS.format(work="image *= 0.5", epochs=1)),
    both("DATA11", "array-is-copied", ARRAYS.format(work="image = image - 0.5; image /= 0.3", epochs=2)),
    both("DATA09", "one-order-for-both", FOLDED.format(shuffled="order")),
    both("DATA09", "shuffled-by-the-loader", TABLE.format(data="x, y = table[:, :-1], table[:, -1]")),
    both("DATA10", "without-the-target", TABLE.format(data="x, y = table[:, :-1], table[:, -1]")),
    both(
        "DATA10", "few-values", TABLE.format(data="x, y = table.round(), table[:, -1].round().clamp(-1, 1)")
    ),
    both(
        "PROBE09",
        "state-of-each-sample",
        STATES
        + learn(
            "x, h, y = torch.randn(16, 5, 4), torch.randn(1, 16, 8), torch.randint(0, 2, (16,))",
            "F.cross_entropy(model(x, h), y)",
        ),
    ),
    both(
        "PROBE09",
        "sorted-by-length",
        LENGTHS
        + learn(
            "x, y, n = torch.randn(16, 20, 4), torch.randint(0, 2, (16,)), torch.arange(20, 4, -1)",
            "F.cross_entropy(model(x, n), y)",
        ),
    ),
    both("PROBE10", "token-of-the-model", CLASS_TOKEN.format(is_hidden="==", expect="") + CLASS_TOKEN_LOOP),
    both("PROBE06", "gates-at-their-ends", RECURRENT.format(inner="self.rnn(x)[0]") + RECURRENT_LOOP),
]


@pytest.mark.parametrize(("code", "text"), SPARED)
def test_a_correct_script_that_looks_wrong_is_not_reported(code: str, text: str) -> None:
    assert lines_found(code, text) == set()


FOUND = [
    both(
        "DATA12",
        "weights-of-a-loss",
        WEIGHTED.format(
            sampler="None",
            loss=BY_FREQUENCY.format(weight="counts / counts.sum()") + "  # expect: DATA12",
        ),
    ),
    both(
        "PROBE10",
        "attention-by-hand",
        """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(20, 8), nn.Linear(8, 2)

    def forward(self, tokens):
        x = self.embed(tokens)
        scores = (x @ x.transpose(1, 2)).masked_fill((tokens != 0)[:, None], float("-inf"))
        weights = scores.softmax(-1)  # expect: PROBE10
        return self.out((weights @ x)[:, 0])

model = Model()
keep = torch.arange(10)[None] < (torch.arange(16) % 5 + 4)[:, None]
"""
        + learn(PADDED_BATCH, "F.cross_entropy(model(tokens), y)"),
    ),
    both("DATA11", "array-of-the-dataset", ARRAYS.format(work="image *= 0.5  # expect: DATA11", epochs=2)),
    both("DATA09", "labels-alone-are-shuffled", FOLDED.format(shuffled="y)  # expect: DATA09\n    (0")),
    both(
        "DATA10",
        "column-of-the-target",
        TABLE.format(data="x, y = table, table[:, -1]").replace("targets)", "targets)  # expect: DATA10"),
    ),
    both(
        "PROBE10",
        "token-of-the-model",
        CLASS_TOKEN.format(is_hidden="!=", expect="# expect: PROBE10") + CLASS_TOKEN_LOOP,
    ),
]


@pytest.mark.parametrize(("code", "text"), FOUND)
def test_a_mistake_in_another_form_is_found_at_its_line(code: str, text: str) -> None:
    assert lines_found(code, text) == expected(START + text)[code]
