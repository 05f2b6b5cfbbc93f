"""Correct scripts that look like a mistake in a term of the loss, and mistakes written in other forms."""

import pytest

from tests.gathering import expected, run_text
from truestep.rules import find_rules

pytestmark = pytest.mark.slow  # the examples of the rules run in the fast tier
RULES = {rule.meta.code: rule for rule in find_rules()}
START = (
    "import math\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\ntorch.manual_seed(0)\n"
)

WEIGHTED = """
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
alpha = torch.zeros((), requires_grad=True)
weights = torch.tensor([0.2, 0.5, 2.0])
for step in range(4):
    x = torch.randn(32, 6)
    label = x[:, :3].argmax(1)
    trust = torch.rand(32)
    out = model(x)
    {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
CODED = """
encoder, decoder = nn.Linear(16, 8), nn.Linear(4, 16)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
for step in range(4):
    x = torch.rand(32, 16)
    mean, spread = encoder(x).chunk(2, dim=1)
    {draw}
    kl = {kl}
    loss = (decoder(z) - x).square().sum(1).mean() + 0.1 * kl
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
AS_LOGARITHM = "-0.5 * torch.sum(1 + spread - mean**2 - spread.exp()) / 32"
VIEWS = """
encoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 6))
optimizer = torch.optim.Adam(encoder.parameters(), lr=1e-3)
teacher = torch.randn(8, 6)
for step in range(4):
    x = torch.randn(12, 8)
    kind = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
    first, second = x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)
    {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
BY_HAND = """
    a, b = F.normalize(encoder(first), dim=1), F.normalize(encoder(second), dim=1)
    z = torch.cat([a, b])
    near = torch.exp((a * b).sum(1) / 0.5).repeat(2)
    table = torch.exp(torch.einsum("id,jd->ij", z, z) / 0.5)
    loss = -torch.log(near / {total}).mean()"""
BY_KIND = """
    z = F.normalize(encoder(first), dim=1)
    scores = z @ z.T / 0.5
    scores = scores - scores.max(1, keepdim=True).values.detach()
    others = 1 - torch.eye(12)
    same = (kind[:, None] == kind).float() * others
    log = scores - {total}.log()
    loss = -((same * log).sum(1) / same.sum(1).clamp(min=1)).mean()"""
COUNTS = """
model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(4):
    x = torch.randn(32, 6)
    count = torch.poisson(x[:, 0].exp())
    is_first = (x[:, 0] > 0).float()
    raw, more = model(x).unbind(1)
    {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
BELLMAN = """
import copy
model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
actor, other = nn.Linear(4, 3), copy.deepcopy(model)
optimizer = torch.optim.Adam([*model.parameters(), *actor.parameters()], lr=1e-3)
for step in range(4):
    state, after = torch.randn(32, 4), torch.randn(32, 4)
    choice = torch.distributions.Categorical(logits=actor(state))
    action = choice.sample()
    reward, done = (action == 1).float(), (torch.rand(32) < 0.1).float()
    value = model(state).squeeze(-1)
    {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
TWO_STEPS = """
model, actor = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1)), nn.Linear(4, 2)
of_model = torch.optim.Adam(model.parameters(), lr=1e-3)
of_actor = torch.optim.Adam(actor.parameters(), lr=1e-3)
for step in range(4):
    state, reward = torch.randn(32, 4), torch.randn(32)
    choice = torch.distributions.Normal(actor(state), 0.5)
    action = choice.sample()
    value = model(state).squeeze(-1)
    of_actor.zero_grad()
    of_model.zero_grad()
    error = reward + 0.9 * model(torch.randn(32, 4)).squeeze(-1).detach() - value
    {loss}
    of_actor.step()
    {zero}
    error.square().mean().backward()
    of_model.step()
"""


def lines_found(code: str, text: str) -> set[int | None]:
    """Return the lines at which a rule reports a script that is run."""
    found = run_text(START + text)
    assert found.code == 0, found.output
    assert found.evidence.first.troubles == []
    return {finding.line for finding in RULES[code].check(found.evidence)}


def case(code: str, name: str, text: str) -> object:
    return pytest.param(code, text, id=f"{code}-{name}")


SPARED = [
    case(
        "LOSS20",
        "one-loss-for-each-sample",
        WEIGHTED.format(loss='loss = (F.cross_entropy(out, label, reduction="none") * trust).mean()'),
    ),
    case(
        "LOSS20",
        "equal-weights",
        WEIGHTED.format(loss="loss = (F.cross_entropy(out, label) * torch.ones(32)).mean()"),
    ),
    case(
        "LOSS20",
        "only-printed",
        WEIGHTED.format(loss="loss = F.cross_entropy(out, label); print((loss * trust).mean().item())"),
    ),
    case(
        "LOSS20",
        "a-mask-of-what-the-loss-leaves-out",
        WEIGHTED.format(
            loss="label[::4] = -100; mask = (label != -100).float(); "
            "loss = (F.cross_entropy(out, label) * mask).sum() / mask.sum()"
        ),
    ),
    case(
        "LOSS20",
        "learned-temperature",
        WEIGHTED.format(
            loss="loss = F.cross_entropy(out, label) "
            "- (alpha.exp() * (out.logsumexp(1).detach() - 1)).mean() + alpha.square()"
        ),
    ),
    case(
        "LOSS20",
        "scale-of-signs",
        WEIGHTED.format(
            loss="signs = out.abs().mean() * out.detach().sign(); loss = F.cross_entropy(signs + out, label)"
        ),
    ),
    case(
        "LOSS20",
        "terms-with-weights",
        WEIGHTED.format(
            loss="terms = torch.stack([F.cross_entropy(out, label), out.abs().mean(), out.square().mean()]); "
            "loss = (terms * weights).sum()"
        ),
    ),
    case(
        "LOSS21",
        "half-of-the-logarithm",
        CODED.format(
            draw="z = torch.distributions.Normal(mean, (spread / 2).exp()).rsample()", kl=AS_LOGARITHM
        ),
    ),
    case(
        "LOSS21",
        "root-of-the-variance",
        CODED.format(
            draw="v = F.softplus(spread); z = mean + v.sqrt() * torch.randn_like(mean)",
            kl="0.5 * (v + mean.square() - 1 - v.log()).sum(1).mean()",
        ),
    ),
    case(
        "LOSS21",
        "logarithm-of-the-deviation",
        CODED.format(
            draw="z = mean + torch.randn_like(mean) * spread.exp()",
            kl="(0.5 * (mean**2 + (2 * spread).exp() - 1) - spread).sum(1).mean()",
        ),
    ),
    case(
        "LOSS21",
        "noise-of-another-part",
        CODED.format(
            draw="h = encoder(x); mean, spread, more, other = h.chunk(4, 1)\n"
            "    z = torch.cat([mean, more + torch.randn_like(more) * other.exp()], 1)",
            kl=AS_LOGARITHM,
        ),
    ),
    case(
        "LOSS22",
        "masked-by-hand",
        VIEWS.format(loss=BY_HAND.format(total="(table * (1 - torch.eye(24))).sum(1)")),
    ),
    case(
        "LOSS22",
        "own-similarity-subtracted",
        VIEWS.format(loss=BY_HAND.format(total="(table.sum(1) - torch.tensor(2.0).exp().item())")),
    ),
    case(
        "LOSS22",
        "masked-by-kind",
        VIEWS.format(loss=BY_KIND.format(total="(scores.exp() * others).sum(1, keepdim=True)")),
    ),
    case(
        "LOSS22",
        "two-views-of-one-pass",
        VIEWS.format(
            loss="a, b = F.normalize(encoder(torch.cat([first, second])), dim=1).chunk(2)\n"
            "    loss = F.cross_entropy(a @ b.T / 0.1, torch.arange(12))"
        ),
    ),
    case(
        "LOSS22",
        "rows-without-their-own-place",
        VIEWS.format(
            loss="z = F.normalize(encoder(torch.cat([first, second])), dim=1); mask = ~torch.eye(24).bool()\n"
            "    logits = (z @ z.T)[mask].view(24, 23) / 0.1\n"
            "    partner = torch.cat([torch.arange(11, 23), torch.arange(12)])\n"
            "    loss = F.cross_entropy(logits, partner)"
        ),
    ),
    case(
        "LOSS22",
        "relations-of-a-teacher",
        VIEWS.format(
            loss="z, t = F.normalize(encoder(x), dim=1), F.normalize(x @ teacher, dim=1)\n"
            "    loss = F.kl_div((z @ z.T).log_softmax(1), (t @ t.T).softmax(1))\n"
            "    loss = loss - ((t @ t.T).softmax(1) * (z @ z.T).log_softmax(1)).sum(1).mean()"
        ),
    ),
    case(
        "LOSS22",
        "weights-of-a-table",
        """
table = nn.Embedding(12, 6)
optimizer = torch.optim.Adam(table.parameters(), lr=1e-2)
for step in range(4):
    loss = F.cross_entropy(table.weight @ table.weight.T, torch.arange(12).roll(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
""",
    ),
    case("LOSS25", "logarithm-of-a-rate", COUNTS.format(loss="loss = F.poisson_nll_loss(raw, count)")),
    case(
        "LOSS25",
        "rates",
        COUNTS.format(loss="loss = F.poisson_nll_loss(raw.exp() + 1e-4, count, log_input=False)"),
    ),
    case(
        "LOSS25",
        "signs",
        COUNTS.format(
            loss="sign = 2 * is_first - 1; loss = F.soft_margin_loss(raw, sign)"
            " + F.relu(1 - sign * raw).mean()"
            " + F.margin_ranking_loss(raw, more, sign) + F.hinge_embedding_loss((raw - more).abs(), sign)"
            " + F.cosine_embedding_loss(raw[:, None] * x, more[:, None] * x, sign)"
        ),
    ),
    case(
        "LOSS25",
        "pairs-by-distance",
        COUNTS.format(
            loss="gap = (raw - more).abs(); "
            "loss = (is_first * gap.square() + (1 - is_first) * F.relu(1 - gap).square()).mean()"
        ),
    ),
    case(
        "LOSS25",
        "places-left-out",
        COUNTS.format(
            loss="is_known = is_first == 1; loss = torch.where(is_first == -1, torch.zeros_like(raw), "
            "(raw - count).square()).mean() + torch.where(is_known, raw.abs(), more.abs()).mean()"
        ),
    ),
    case(
        "LOSS25",
        "deviation-made-positive-once",
        COUNTS.format(
            loss="one, two = torch.distributions.Normal(raw, more.exp()), torch.distributions.Normal(raw, "
            "F.softplus(more)); loss = -(one.log_prob(count) + two.log_prob(count)).mean()"
        ),
    ),
    case(
        "LOSS28",
        "no-gradients",
        BELLMAN.format(
            loss="with torch.no_grad():\n        goal = reward + 0.9 * model(after).squeeze(1) * (1 - done)\n"
            "    loss = (goal - value).pow(2).mean()"
        ),
    ),
    case(
        "LOSS28",
        "another-network",
        BELLMAN.format(loss="loss = F.mse_loss(value, reward + 0.9 * other(after).squeeze(1) * (1 - done))"),
    ),
    case(
        "LOSS28",
        "detached-for-the-error-alone",
        BELLMAN.format(
            loss="later = model(after).squeeze(1); goal = reward + 0.9 * later\n"
            "    loss = (goal.detach() - value).square().mean() + 1e-3 * later.square().mean()"
        ),
    ),
    case(
        "LOSS28",
        "two-views-of-a-sample",
        BELLMAN.format(loss="loss = F.mse_loss(value, 0.9 * model(after).squeeze(1) + 0.1 * reward)"),
    ),
    case(
        "LOSS28",
        "residual-between-outputs",
        BELLMAN.format(
            loss="loss = F.mse_loss(value, model(after).squeeze(1)) + (value - reward).abs().mean()"
        ),
    ),
    case(
        "LOSS29",
        "detached",
        BELLMAN.format(
            loss="gain = reward - value\n"
            "    loss = gain.square().mean() - (choice.log_prob(action) * gain.detach()).mean()"
        ),
    ),
    case(
        "LOSS29",
        "zeroed-in-between",
        TWO_STEPS.format(
            loss="(-(choice.log_prob(action).sum(1) * error).mean()).backward(retain_graph=True)",
            zero="of_model.zero_grad()",
        ),
    ),
    case(
        "LOSS29",
        "entropy",
        BELLMAN.format(
            loss="loss = F.mse_loss(value, reward) + (choice.probs * choice.logits).sum(1).mean() "
            "- (choice.log_prob(action) * (reward - 0.5)).mean()"
        ),
    ),
    case(
        "LOSS29",
        "weights-of-the-sure",
        BELLMAN.format(
            loss="chosen = choice.log_prob(action); loss = F.mse_loss(value, reward)"
            " - ((1 - chosen.exp()) * chosen).mean()"
        ),
    ),
]

FOUND = [
    case(
        "LOSS29",
        "two-optimizers",
        TWO_STEPS.format(
            loss="gain = (error - error.mean()) / (error.std() + 1e-8)\n"
            "    loss = -(choice.log_prob(action).sum(1) * gain).mean()  # expect: LOSS29\n"
            "    loss.backward(retain_graph=True)",
            zero="",
        ),
    ),
    case(
        "LOSS29",
        "clipped-ratio",
        BELLMAN.format(
            loss="gain, new = reward - value, choice.log_prob(action)\n"
            "    ratio = (new - new.detach() + 0.01).exp()\n"
            "    loss = -torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()  # expect: LOSS29\n"
            "    loss = loss + F.smooth_l1_loss(value, reward)"
        ),
    ),
    case(
        "LOSS29",
        "one-by-one",
        BELLMAN.format(
            loss="losses, chosen = [], choice.logits.log_softmax(1)[range(32), action]\n"
            "    for one, gain, guess in zip(chosen, reward, value):\n"
            "        losses.append(-one * (gain - guess))  # expect: LOSS29\n"
            "    loss = torch.stack(losses).sum() + F.mse_loss(value, reward)"
        ),
    ),
    case(
        "LOSS28",
        "squared-error",
        BELLMAN.format(
            loss="goal = reward + 0.9 * model(after).squeeze(1) * (1 - done)  # expect: LOSS28\n"
            "    error = goal - value\n"
            "    loss = error.pow(2).mean() - (choice.log_prob(action) * error.detach()).mean()"
        ),
    ),
    case(
        "LOSS28",
        "one-transition",
        BELLMAN.format(
            loss="first, second = model(state[0]), model(after[0])\n"
            "    goal = 1.0 + 0.95 * second  # expect: LOSS28\n"
            "    loss = nn.MSELoss()(first, goal)"
        ),
    ),
    case(
        "LOSS28",
        "returns-of-several-steps",
        BELLMAN.format(
            loss="goal, goals = model(after[:1]).squeeze(), []\n"
            "    for one in reversed(reward):\n"
            "        goal = one + 0.99 * goal  # expect: LOSS28\n"
            "        goals.insert(0, goal)\n"
            "    loss = F.mse_loss(value, torch.stack(goals))"
        ),
    ),
    case(
        "LOSS25",
        "rate-for-its-logarithm",
        COUNTS.format(
            loss="rate = F.softplus(raw) + 1e-6\n"
            "    loss = nn.PoissonNLLLoss()(rate, count)  # expect: LOSS25"
        ),
    ),
    case(
        "LOSS25",
        "rate-by-hand",
        COUNTS.format(
            loss="rate = torch.exp(raw)\n    loss = (rate.exp() - count * rate).mean()  # expect: LOSS25"
        ),
    ),
    case(
        "LOSS25",
        "raw-scores-for-rates",
        COUNTS.format(loss="loss = F.poisson_nll_loss(raw, count, log_input=False)  # expect: LOSS25"),
    ),
    case(
        "LOSS25",
        "exponential-of-a-deviation",
        COUNTS.format(
            loss="deviation = F.softplus(more)\n"
            "    guess = torch.distributions.Normal(raw, deviation.exp())  # expect: LOSS25\n"
            "    loss = -guess.log_prob(count).mean()"
        ),
    ),
    *(
        case("LOSS25", name, COUNTS.format(loss=f"loss = {loss}  # expect: LOSS25"))
        for name, loss in {
            "soft-margin": "F.soft_margin_loss(raw, is_first)",
            "hinge": "torch.clamp(1 - is_first * raw, min=0).mean()",
            "hinge-embedding": "F.hinge_embedding_loss((raw - more).abs(), is_first)",
            "cosine-embedding": "nn.CosineEmbeddingLoss()(raw[:, None] * x, more[:, None] * x, is_first)",
        }.items()
    ),
    case(
        "LOSS22",
        "sum-of-exponentials",
        VIEWS.format(
            loss=BY_HAND.format(total="table.sum(dim=-1)").replace("mean()", "mean()  # expect: LOSS22")
        ),
    ),
    case(
        "LOSS22",
        "partners-by-kind",
        VIEWS.format(
            loss=BY_KIND.format(total="scores.exp().sum(1, keepdim=True)").replace(
                "log()", "log()  # expect: LOSS22"
            )
        ),
    ),
    case(
        "LOSS22",
        "cosines",
        VIEWS.format(
            loss="z = encoder(torch.cat([first, second]))\n"
            "    cosines = F.cosine_similarity(z.unsqueeze(1), z.unsqueeze(0), dim=2) / 0.5\n"
            "    near = torch.diag(cosines, 12).repeat(2)\n"
            "    loss = -(near - torch.logsumexp(cosines, dim=1)).mean()  # expect: LOSS22"
        ),
    ),
    case(
        "LOSS22",
        "its-own-target",
        VIEWS.format(
            loss="z, other = F.normalize(encoder(first), dim=1), F.normalize(encoder(second), dim=1)\n"
            "    loss = F.cross_entropy(torch.matmul(z, z.t()) / 0.1, torch.arange(12))  # expect: LOSS22"
        ),
    ),
    case(
        "LOSS21",
        "drawn-from-a-distribution",
        CODED.format(
            draw="z = torch.distributions.Normal(mean, spread.exp()).rsample()  # expect: LOSS21",
            kl=AS_LOGARITHM,
        ),
    ),
    case(
        "LOSS21",
        "a-variance-that-is-shared",
        CODED.format(
            draw="v = F.softplus(spread) + 1e-4\n"
            "    z = torch.normal(0.0, 1.0, v.shape) * v + mean  # expect: LOSS21",
            kl="0.5 * (v.sum(1) + mean.mul(mean).sum(1) - v.log().sum(1) - 4).mean()",
        ),
    ),
    case(
        "LOSS21",
        "deviation-in-the-divergence",
        CODED.format(
            draw="s = (0.5 * spread).exp()  # expect: LOSS21\n    z = mean + s * torch.randn_like(s)",
            kl="-0.5 * (1 + spread - mean.pow(2) - s).sum(1).mean()",
        ),
    ),
    case(
        "LOSS20",
        "class-weights",
        WEIGHTED.format(
            loss="loss = torch.sum(F.cross_entropy(out, label) * weights[label]) / len(x)  # expect: LOSS20"
        ),
    ),
    case(
        "LOSS20",
        "policy-gradient",
        WEIGHTED.format(
            loss="chosen = out.log_softmax(1)[torch.arange(32), label].mean()\n"
            "    loss = -chosen.mul(trust - trust.mean()).sum()  # expect: LOSS20"
        ),
    ),
    case(
        "LOSS20",
        "shares-of-sampling",
        WEIGHTED.format(
            loss="error = (out.sum(1) - x.sum(1)).pow(2).mean() + 0.1 * out.abs().mean()\n"
            "    loss = (error / trust[:, None].clamp(min=0.1)).mean()  # expect: LOSS20"
        ),
    ),
]


@pytest.mark.parametrize(("code", "text"), SPARED)
def test_a_correct_script_that_looks_like_a_mistake_is_not_flagged(code: str, text: str) -> None:
    assert lines_found(code, text) == set()


@pytest.mark.parametrize(("code", "text"), FOUND)
def test_a_mistake_in_another_form_is_found_at_its_line(code: str, text: str) -> None:
    assert lines_found(code, text) == expected(START + text)[code]
