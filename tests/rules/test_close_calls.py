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
