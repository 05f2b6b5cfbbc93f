"""Mistakes written in several ways, and correct scripts that come close to them."""

import pytest

from tests.gathering import expected, run_text
from truestep.rules import find_rules

RULES = {rule.meta.code: rule for rule in find_rules()}
START = (
    "import copy\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\ntorch.manual_seed(0)\n"
)


def lines_found(code: str, text: str) -> set[int | None]:
    """Return the lines at which a rule reports a script that is run."""
    found = run_text(START + text)
    assert found.code == 0, found.output
    assert found.evidence.first.troubles == []
    return {finding.line for finding in RULES[code].check(found.evidence)}


def assert_found(code: str, text: str) -> None:
    assert lines_found(code, text) == expected(START + text)[code]


AVERAGED = """
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
target, first = copy.deepcopy(model), copy.deepcopy(model)
{setup}
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for step in range(5):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for old, new, start in zip(target.parameters(), model.parameters(), first.parameters()):
            {update}
    {after}
"""


def averaged(*, setup: str = "", update: str = "pass", after: str = "") -> str:
    return AVERAGED.format(setup=setup, update=update, after=after)


LOADED = """
state, tau = target.state_dict(), 0.005
    for name, value in model.state_dict().items():
        state[name] = tau * state[name] + (1 - tau) * value  # expect: PAR23
    target.load_state_dict(state)
"""
INVERTED = {
    "lerp": averaged(update="old.lerp_(new, 0.99)  # expect: PAR23"),
    "difference": averaged(update="old.sub_(0.999 * (old - new))  # expect: PAR23"),
    "data": averaged(
        setup="tau = 0.005", update="old.data = new.data * (1 - tau) + tau * old.data  # expect: PAR23"
    ),
    "copied": averaged(
        setup="tau = 0.005", update="old.data.copy_(tau * old.data + (1.0 - tau) * new.data)  # expect: PAR23"
    ),
    "loaded": averaged(after=LOADED.strip()),
    "lists": averaged(
        after="torch._foreach_mul_([*target.parameters()], 0.01)\n    "
        "torch._foreach_add_([*target.parameters()], [*model.parameters()], alpha=0.99)  # expect: PAR23"
    ).replace("    torch._foreach", "    with torch.no_grad(): torch._foreach"),
    "torch": averaged(
        setup="average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.001))",
        after="average.update_parameters(model)  # expect: PAR23",
    ),
    "function": averaged(
        setup="average = AveragedModel(model, avg_fn=lambda a, p, n: 0.1 * a + 0.9 * p)  # expect: PAR23",
        after="average.update_parameters(model)",
    ),
}


@pytest.mark.parametrize("name", INVERTED)
def test_an_inverted_average_is_found(name: str) -> None:
    assert_found("PAR23", INVERTED[name])


FOLLOWED = {
    "copied": averaged(update="old.lerp_(new, 1.0)"),
    "slowly": averaged(update="old.lerp_(new, 0.005)"),
    "warms up": averaged(update="old.lerp_(new, 1 - min(0.999, (step + 1) / 1000))"),
    "constant in the first epoch": averaged(
        setup="epoch = 0", update="old.lerp_(new, 1 - 0.999 * (epoch + 1) / 30)"
    ),
    "pulled to the start": averaged(update="new.copy_(0.95 * new + 0.05 * start)"),
    "evaluated between": averaged(update="old.copy_(0.05 * start + 0.95 * new)"),
    "series": averaged(
        setup="x0, level = torch.randn(9, 4), torch.zeros(4)", after="level = 0.05 * level + 0.95 * x0[step]"
    ),
    "mean of all": averaged(setup="average = AveragedModel(model)", after="average.update_parameters(model)"),
    "by torch": averaged(
        setup="average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))",
        after="average.update_parameters(model)",
    ),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_an_average_that_follows_slowly_is_spared(name: str) -> None:
    assert lines_found("PAR23", FOLLOWED[name]) == set()


ATTENTION = """
class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(20, 16), nn.Linear(16, 3)
        self.query, self.key, self.value = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)
        self.heads, self.pool = nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(16, 1)

    def forward(self, tokens):
        x, mask = self.embed(tokens), tokens != 0
        q, k, v = self.query(x), self.key(x), self.value(x)
        scores = q @ k.transpose(1, 2) / 4
        {lines}
        return self.out(y.mean(1))

model = Attention()
optimizer = torch.optim.Adam(model.parameters())
for step in range(4):
    tokens, labels = torch.randint(1, 20, (16, 10)), torch.randint(0, 3, (16,))
    for row in range(16):
        tokens[row, 5 + row % 5 :] = 0
    loss = F.cross_entropy(model(tokens), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
WEAK = {
    "filled with 0": "y = scores.masked_fill(~mask[:, None], 0).softmax(-1) @ v  # expect: PROBE15",
    "filled with a tiny number": "scores.masked_fill_(~mask[:, None], 1e-9)  # expect: PROBE15\n"
    "        y = F.dropout(scores.softmax(-1), 0.1) @ v",
    "chosen": "y = torch.where(mask[:, None], scores, 0.0).softmax(-1) @ v  # expect: PROBE15",
    "chosen from zeros": "scores = torch.where(~mask[:, None], torch.zeros_like(scores), scores)"
    "  # expect: PROBE15\n        y = F.softmax(scores / 2, dim=-1).matmul(v)",
    "neighbours": "near = torch.eye(10).roll(1, 0) + torch.eye(10) == 0\n"
    "        y = scores.masked_fill(near, 0).softmax(-1) @ v  # expect: PROBE15",
    "in place": "scores *= mask[:, None]  # expect: PROBE15\n        y = scores.softmax(-1) @ v",
    "added": "scores = scores + mask.float()[:, None]  # expect: PROBE15\n        y = scores.softmax(-1) @ v",
    "added without its factor": "scores = scores - (~mask).float()[:, None]  # expect: PROBE15\n"
    "        y = scores.softmax(-1) @ v",
    "later positions": "scores = scores * torch.ones(10, 10).tril()  # expect: PROBE15\n"
    "        y = torch.einsum('bij,bjd->bid', scores.softmax(2), v)",
    "by torch": "y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None].float())"
    "  # expect: PROBE15",
    "by a layer": "y = self.heads(x, x, x, attn_mask=torch.ones(10, 10).tril())[0]  # expect: PROBE15",
    "pooling": "scores = self.pool(x).squeeze(-1) * mask  # expect: PROBE15\n"
    "        y = (scores.softmax(1)[..., None] * x).sum(1, keepdim=True)",
}


@pytest.mark.parametrize("name", WEAK)
def test_a_weak_mask_is_found(name: str) -> None:
    assert_found("PROBE15", ATTENTION.format(lines=WEAK[name]))


STRONG = {
    "minus infinity": "y = scores.masked_fill(~mask[:, None], float('-inf')).softmax(-1) @ v",
    "large number": "y = (scores + (1 - mask.float()[:, None]) * -1e4).softmax(-1) @ v",
    "both kinds": "y = (scores * mask[:, None]).masked_fill(~mask[:, None], -1e9).softmax(-1) @ v",
    "queries": "y = (scores * mask[:, :, None]).softmax(-1) @ v",
    "weights": "y = scores.masked_fill(~mask[:, None], 0).softmax(-1)\n"
    "        y = F.normalize(F.dropout(y, 0.1) * mask[:, None], p=1, dim=-1) @ v",
    "weights in place": "y = (scores * mask[:, None]).softmax(-1).masked_fill(~mask[:, None], 0) @ v",
    "values": "y = (scores * mask[:, None]).softmax(-1) @ (v * mask[..., None])",
    "not finite": "y = scores.masked_fill(scores.isnan() | (scores > 0.5), 0).softmax(-1) @ v",
    "largest": "least = scores.topk(3).values[..., -1:]\n"
    "        y = torch.where(scores < least, 0.0, scores).softmax(-1) @ v",
    "bonus": "same = tokens[:, None] % 2 == tokens[:, :, None] % 2\n"
    "        y = (scores + same).softmax(-1) @ v",
    "distance": "y = (scores - 0.1 * torch.arange(10.0).expand(10, 10)).softmax(-1) @ v",
    "dropped scores": "y = F.dropout(scores, 0.5).softmax(-1) @ v",
    "by torch": "y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None])",
    "by a layer": "y = self.heads(x, x, x, key_padding_mask=~mask)[0]",
}


@pytest.mark.parametrize("name", STRONG)
def test_a_mask_that_works_is_spared(name: str) -> None:
    assert lines_found("PROBE15", ATTENTION.format(lines=STRONG[name])) == set()


TABLES = """
import numpy as np
from torch.utils.data import DataLoader, Dataset, TensorDataset, random_split
def standardize(table, axis=0):
    return (table - table.mean(axis)) / table.std(axis)

class Rows(Dataset):
    def __init__(self, rows, goals):
        self.rows, self.goals = standardize(rows), goals

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index], self.goals[index]

raw = torch.randn(400, 4) * torch.tensor([1.0, 5.0, 0.1, 20.0]) + 3
goal = raw[:, :1] - raw[:, 1:2] / 5
raw_train, raw_val, y_train, y_val = raw[:300], raw[300:], goal[:300], goal[300:]
model = nn.Linear(4, 1)
{data}
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(2):
    model.train()
    for x, y in {train}:
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for x, y in {val}:
            print((model(x) - y).square().mean())
"""
LOADERS = {"train": "DataLoader(train, 32, shuffle=True)", "val": "DataLoader(val, 40)"}
SLICES = {"train": "zip(x_train.split(32), y_train.split(32))", "val": "[(x_val, y_val)]"}
DRAWN = {
    "train": "[(x_train[rows], y_train[rows]) for rows in torch.randperm(300).split(50)]",
    "val": "zip(x_val.split(25), y_val.split(25))",
}


def tables(data: str, *, loops: dict[str, str]) -> str:
    return TABLES.format(data=data, **loops)


SETS = "train, val = TensorDataset(x_train, y_train), TensorDataset(x_val, y_val)"
REFITTED = {
    "slices": tables(
        "x_train = standardize(raw_train)\nx_val = standardize(raw_val)  # expect: DATA22", loops=SLICES
    ),
    "drawn rows": tables(
        "x_train = (raw_train - raw_train.mean(dim=0)) / (raw_train.std(dim=0) + 1e-8)\n"
        "x_test = (raw_val - raw_val.mean(dim=0)) / (raw_val.std(dim=0) + 1e-8)  # expect: DATA22\n"
        "x_val = x_test",
        loops=DRAWN,
    ),
    "own dataset": tables(
        "train = Rows(raw_train, y_train)\nval = Rows(raw_val, y_val)  # expect: DATA22", loops=LOADERS
    ),
    "numpy": tables(
        "x_train, x_val = torch.from_numpy(standardize(raw_train.numpy())), None\n"
        "x_val = torch.from_numpy(standardize(raw_val.numpy()))  # expect: DATA22\n" + SETS,
        loops=LOADERS,
    ),
    "pairs": tables(
        "x_train = standardize(raw_train)\nx_val = standardize(raw_val)  # expect: DATA22\n"
        "train, val = list(zip(x_train, y_train)), list(zip(x_val, y_val))",
        loops=LOADERS,
    ),
    "pictures": tables(
        "model = nn.Sequential(nn.Flatten(), nn.Linear(48, 1))\n"
        "x_train = 5 + torch.rand(300, 3, 4, 4)\nx_val = 5 + torch.rand(100, 3, 4, 4)\n"
        "axes = (0, 2, 3)\n"
        "x_train = (x_train - x_train.mean(axes, keepdim=True)) / x_train.std(axes, keepdim=True)\n"
        "x_val = (x_val - x_val.mean(axes, keepdim=True)) / x_val.std(axes, keepdim=True)"
        "  # expect: DATA22\n" + SETS,
        loops=LOADERS,
    ),
}


@pytest.mark.parametrize("name", REFITTED)
def test_refitted_preparation_is_found(name: str) -> None:
    assert_found("DATA22", REFITTED[name])


FITTED_ONCE = {
    "constants of training": tables(
        "m, s = raw_train.mean(0), raw_train.std(0)\n"
        "x_train, x_val = (raw_train - m) / s, (raw_val - m) / s\n" + SETS,
        loops=LOADERS,
    ),
    "before a split at random": tables(
        "train, val = random_split(TensorDataset(standardize(raw), goal), [300, 100])", loops=LOADERS
    ),
    "before a split by slices": tables(
        "x = standardize(raw)\nx_train, x_val = x[:300], x[300:]", loops=SLICES
    ),
    "training set again": tables("x_train = x_val = standardize(raw_train)\ny_val = y_train", loops=SLICES),
    "copy of the training set": tables(
        "x_train = standardize(raw_train)\nx_val, y_val = x_train.clone(), y_train", loops=SLICES
    ),
    "parts": tables(
        "x_train = torch.cat([standardize(part) for part in raw_train.split(100)])\n"
        "x_val = standardize(raw_val)\n" + SETS,
        loops=LOADERS,
    ),
    "samples": tables(
        "model = nn.Linear(16, 1)\nx_train, x_val = torch.randn(300, 16), torch.randn(100, 16)\n"
        "x_train = (x_train - x_train.mean(1, keepdim=True)) / x_train.std(1, keepdim=True)\n"
        "x_val = (x_val - x_val.mean(1, keepdim=True)) / x_val.std(1, keepdim=True)\n" + SETS,
        loops=LOADERS,
    ),
    "balanced codes": tables(
        "x_train = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 4).repeat(20, 1)[:320]\n"
        "y_train = x_train.prod(1, keepdim=True)\nx_val, y_val = x_train[:32].clone(), y_train[:32]",
        loops=SLICES,
    ),
    "batches": tables(
        "model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))\nx_train, x_val = raw_train, raw_val",
        loops=SLICES,
    ),
}


@pytest.mark.parametrize("name", FITTED_ONCE)
def test_preparation_that_is_fitted_once_is_spared(name: str) -> None:
    assert lines_found("DATA22", FITTED_ONCE[name]) == set()


DRAWING = """
from torch.utils.data import DataLoader, TensorDataset
class Noise(nn.Module):
    def forward(self, x):
        {noise}
        return x

class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.spread, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x):
        mean, spread = self.mean(x), self.spread(x)
        return self.out({latent})

x = torch.randn(240, 8)
data = TensorDataset(x, x[:, :1] * 2)
loader = DataLoader(data, batch_size=20, shuffle=True)
generator = torch.Generator()
model = nn.Sequential(nn.Linear(8, 8), Noise(), nn.Dropout(0.3), Encoder())
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(3):
    {epoch}
    model.train()
    for x, y in {loader}:
        {step}
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    {evaluation}
"""


def drawing(**parts: str) -> str:
    plain = {"noise": "", "latent": "mean", "epoch": "", "loader": "loader", "step": "", "evaluation": ""}
    return DRAWING.format(**(plain | parts))


MADE = "noisy = torch.Generator().manual_seed(3)"
EQUAL_DRAWS = {
    "each step": drawing(step="torch.manual_seed(5)  # expect: MODE07"),
    "in a layer": drawing(
        noise=f"{MADE}  # expect: MODE07\n        x = x + 0.1 * torch.randn(x.shape, generator=noisy)"
    ),
    "mask by hand": drawing(
        noise=f"{MADE}  # expect: MODE07\n        keep = torch.rand(x.shape, generator=noisy) > 0.2\n"
        "        x = torch.where(keep, x / 0.8, 0.0)"
    ),
    "latent": drawing(
        latent="mean + spread.exp() * torch.empty_like(mean).normal_(generator=generator.manual_seed(0))"
    ).replace("seed(0)))", "seed(0)))  # expect: MODE07"),
    "augmented": drawing(
        step="generator.manual_seed(0)  # expect: MODE07\n"
        "        x = x * (1 + 0.1 * torch.randn(len(x), 1, generator=generator))"
    ).replace("torch.randn(len(x), 1,", "torch.randn(len(x), 8,"),
    "each epoch": drawing(epoch="torch.manual_seed(5)  # expect: MODE07"),
    "each loader": drawing(
        epoch="generator = torch.Generator().manual_seed(1)  # expect: MODE07",
        loader="DataLoader(data, batch_size=20, shuffle=True, generator=generator)",
    ),
}


@pytest.mark.parametrize("name", EQUAL_DRAWS)
def test_equal_draws_are_found(name: str) -> None:
    assert_found("MODE07", EQUAL_DRAWS[name])


DIFFERENT_DRAWS = {
    "seed of the step": drawing(step="torch.manual_seed(len(optimizer.state) + id(x) % 1000)"),
    "seed of the epoch": drawing(epoch="torch.manual_seed(epoch)"),
    "one generator": drawing(noise="x = x + torch.randn(x.shape, generator=generator)"),
    "projection": drawing(
        noise=f"{MADE}\n        x = x @ torch.randn(8, 8, generator=noisy) + torch.randn(8, generator=noisy)"
    ),
    "sparse weights": drawing(
        step="mask = torch.rand(8, 8, generator=generator.manual_seed(2)) > 0.5\n"
        "        loss = (model[0].weight * mask).square().sum()"
    ),
    "evaluation": drawing(
        evaluation="with torch.no_grad():\n"
        "        print(model(torch.randn(30, 8, generator=generator.manual_seed(0))))"
    ),
    "several models": drawing(
        epoch="torch.manual_seed(0)\n    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), Encoder())\n"
        "    optimizer = torch.optim.Adam(model.parameters(), lr=0.01 / (epoch + 1))"
    ),
    "set back": drawing(
        epoch="torch.manual_seed(0)\n    model.load_state_dict(start)\n"
        "    optimizer.param_groups[0]['lr'] = 0.1 / (epoch + 1)"
    ).replace("for epoch", "start = copy.deepcopy(model.state_dict())\nfor epoch"),
}


@pytest.mark.parametrize("name", DIFFERENT_DRAWS)
def test_draws_that_differ_are_spared(name: str) -> None:
    assert lines_found("MODE07", DIFFERENT_DRAWS[name]) == set()


ROUNDS = """
body, heads = nn.Linear(8, 16), nn.ModuleList([nn.Linear(16, 8) for _ in range(3)])
model = nn.ModuleList([body, heads])
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
criterion = nn.MSELoss()

def score(head, features, goal):
    error = head(features) - goal
    return error.pow(2).mean()

def total_of(features, x):
    {function}

for step in range(5):
    x = torch.randn(24, 8)
    features, loss, history = body(x).relu(), 0.0, []
    {loop}
    optimizer.zero_grad()
    {backward}
    optimizer.step()
"""


def rounds(loop: str, *, function: str = "pass", backward: str = "loss.backward()") -> str:
    return ROUNDS.format(loop=loop, function=function, backward=backward)


OVERWRITTEN = {
    "heads": rounds("for head in heads:\n        loss = criterion(head(features), x)  # expect: LOOP26"),
    "own function": rounds(
        "for number, head in enumerate(heads):\n"
        "        loss = score(head, features, x * number)  # expect: LOOP26\n"
        "        history.append(loss.item())"
    ),
    "chunks": rounds(
        "for part in x.chunk(3):\n        out = heads[0](body(part))\n"
        "        loss = ((out - part) ** 2).mean()  # expect: LOOP26",
        backward="(loss / 3).backward()",
    ),
    "returned": rounds(
        "loss = total_of(features, x)",
        function="for head in heads:\n        out = head(features)\n"
        "        result = F.l1_loss(out, x)  # expect: LOOP26\n    return result",
    ),
    "penalty after the loop": rounds(
        "for head in heads:\n        error = criterion(head(features), x)  # expect: LOOP26\n"
        "    loss = error + 0.01 * features.square().mean()"
    ),
}


@pytest.mark.parametrize("name", OVERWRITTEN)
def test_an_overwritten_loss_is_found(name: str) -> None:
    assert_found("LOOP26", OVERWRITTEN[name])


USED_ROUNDS = {
    "added": rounds("for head in heads:\n        loss = loss + criterion(head(features), x)"),
    "added in place": rounds(
        "for head in heads:\n        one = criterion(head(features), x)\n        loss += one"
    ),
    "listed": rounds(
        "for head in heads:\n        loss = criterion(head(features), x)\n        history.append(loss)\n"
        "    loss = torch.stack(history).mean()"
    ),
    "each backward": rounds(
        "optimizer.zero_grad()\n    for head in heads:\n        loss = criterion(head(features), x)\n"
        "        loss.backward(retain_graph=True)",
        backward="loss.item()",
    ).replace("    optimizer.zero_grad()\n    loss.item()", "    loss.item()"),
    "best of several": rounds(
        "best = None\n    for head in heads:\n        loss = criterion(head(features), x)\n"
        "        best = loss if best is None or loss < best else best",
        backward="best.backward()",
    ),
    "refined": rounds(
        "out = features\n    for _ in range(3):\n        out = body(heads[0](out)).relu()\n"
        "        loss = criterion(out, features.detach())\n        history.append(loss.item())"
    ),
    "until it is small": rounds(
        "for head in heads:\n        loss = criterion(head(features), x)\n        if loss < 0.1:\n"
        "            break"
    ),
    "only looked at": rounds(
        "loss = criterion(heads[0](features), x)\n    for head in heads:\n"
        "        value = criterion(head(features), x)\n        history.append(value.item())"
    ),
    "attacked": rounds(
        "for _ in range(3):\n        near = (x + 0.1).requires_grad_()\n"
        "        loss = criterion(heads[0](body(near)), x)\n"
        "        x = x + torch.autograd.grad(loss, near, retain_graph=True)[0].sign()",
        backward="criterion(heads[0](body(x)), x).backward()",
    ),
}


@pytest.mark.parametrize("name", USED_ROUNDS)
def test_a_loss_of_all_rounds_is_spared(name: str) -> None:
    assert lines_found("LOOP26", USED_ROUNDS[name]) == set()


TERMS = """
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for step in range(4):
    running, total, losses = 0.0, 0.0, []
    optimizer.zero_grad()
    for part in range(4):
        x = torch.randn(16, 8)
        loss = F.mse_loss(model(x), x[:, :4])
        {inside}
    {after}
    optimizer.step()
"""


def terms(inside: str, after: str = "pass") -> str:
    return TERMS.format(inside=inside, after=after)


REPEATED = {
    "sum of sums": terms(
        "running = running + loss\n        total = total + running  # expect: LOSS24", "total.backward()"
    ),
    "in place": terms(
        "running += loss\n        total += running  # expect: LOSS24", "(total / 4).backward()"
    ),
    "each backward": terms(
        "running = running + loss  # expect: LOSS24\n        (running / 4).backward(retain_graph=True)"
    ),
    "list": terms("losses.append(loss)\n        sum(losses).backward(retain_graph=True)  # expect: LOSS24"),
}


@pytest.mark.parametrize("name", REPEATED)
def test_a_repeated_term_is_found(name: str) -> None:
    assert_found("LOSS24", REPEATED[name])


COUNTED_ONCE = {
    "each backward": terms("(loss / 4).backward()\n        running += loss.item()"),
    "one sum": terms("running = running + loss", "(running / 4).backward()"),
    "weights": terms("total = total + (4 - part) * loss", "total.backward()"),
    "falling weights": terms("total = total + 0.8 ** part * loss", "total.backward()"),
    "two losses": terms(
        "(loss + 0.1 * model(x).square().mean()).backward(retain_graph=True)\n        loss.backward()"
    ),
    "gradients are compared": terms(
        "running = running + loss\n        torch.autograd.grad(running, model[0].weight, retain_graph=True)",
        "running.backward()",
    ),
}


@pytest.mark.parametrize("name", COUNTED_ONCE)
def test_terms_that_count_once_are_spared(name: str) -> None:
    assert lines_found("LOSS24", COUNTED_ONCE[name]) == set()
