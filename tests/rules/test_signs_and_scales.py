"""Correct scripts that look like a mistake of signs, scales, schedules or splits: one rule each."""

import pytest

from tests.gathering import expected, run_text
from truestep.rules import find_rules

pytestmark = pytest.mark.slow  # the examples of the rules run in the fast tier
RULES = {rule.meta.code: rule for rule in find_rules()}
START = (
    "import copy\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\ntorch.manual_seed(0)\n"
)

VAE = """
encoder, decoder = nn.Linear(16, 8), nn.Linear(4, 16)
optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
for step in range(4):
    x = torch.rand(32, 16)
    mean, logvar = encoder(x).chunk(2, dim=1)
    restored = decoder(mean + torch.randn_like(mean) * (0.5 * logvar).exp())
    kl = -0.5 * (1 + logvar - mean.pow(2) - logvar.exp())
    loss = {loss}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
POLICY = """
from torch.distributions import Categorical
policy = nn.Linear(4, 3)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2{more})
for rollout in range(4):
    state = torch.randn(32, 4)
    with torch.no_grad():
        choice = Categorical(logits=policy(state))
        action = choice.sample()
        old = choice.log_prob(action)
    gain = (action == state[:, :3].argmax(1)).float()
    gain = gain - gain.mean()
    for epoch in range({epochs}):
        choice = Categorical(logits=policy(state))
        new = choice.log_prob(action)
        loss = {loss}
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
CLIPPED = "-torch.min({ratio} * gain, {ratio}.clamp(0.8, 1.2) * gain).mean()"
PIXELS = """
pixels = torch.randint(0, 256, (192, 1, 8, 8)).float()
labels = (pixels.mean((1, 2, 3)) > 127).long()
train, test = {train}, {test}
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for rows in torch.randperm(128).split(16):
    loss = F.cross_entropy(model(train[rows]), labels[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    print((model(test).argmax(1) == labels[128:]).float().mean())
"""
AVERAGE = """
model = nn.Linear(4, 1)
average = copy.deepcopy(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    x = torch.randn(16, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        {update}
print(average(x).mean())
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
    case("LOSS13", "weighted", VAE.format(loss="F.mse_loss(restored, x) + 1e-3 * kl.sum()")),
    case("LOSS13", "both-by-sample", VAE.format(loss="F.mse_loss(restored, x) * 16 + kl.sum() / len(x)")),
    case(
        "LOSS13",
        "weight-in-a-tensor",
        VAE.format(loss="F.mse_loss(restored, x) + torch.tensor(0.01) * kl.sum()"),
    ),
    case(
        "LOSS13",
        "likelihood-with-its-own-variance",
        VAE.format(
            loss="F.mse_loss(restored, x) + ((x[:, :4] - mean).pow(2) * (-logvar).exp() + logvar).sum()"
        ),
    ),
    case(
        "LOSS15",
        "stored-probabilities",
        POLICY.format(more="", epochs=4, loss=CLIPPED.format(ratio="(new - old).exp()")),
    ),
    case(
        "LOSS15",
        "one-step-each",
        POLICY.format(more="", epochs=1, loss=CLIPPED.format(ratio="(new - new.detach()).exp()")),
    ),
    case(
        "LOSS15",
        "not-clipped",
        POLICY.format(more="", epochs=4, loss="-((new - new.detach()).exp() * gain).mean()"),
    ),
    case("DATA16", "same", PIXELS.format(train="pixels[:128] / 255", test="pixels[128:] / 255")),
    case(
        "DATA16",
        "two-domains",
        PIXELS.format(train="(pixels[:128] - 120) / 60", test="(pixels[128:] - 90) / 30"),
    ),
    case(
        "DATA16",
        "noisy-training",
        PIXELS.format(train="pixels[:128] / 255 + torch.randn(128, 1, 8, 8)", test="pixels[128:] / 255"),
    ),
    case(
        "DATA16",
        "beyond-the-trained-interval",
        """
model = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
x = torch.linspace(0, 1, 256).unsqueeze(1)
for step in range(6):
    loss = F.mse_loss(model(x), (6 * x).sin())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.no_grad():
    print(model(torch.linspace(0, 2, 256).unsqueeze(1)).mean())
""",
    ),
    case(
        "PAR13",
        "averaged",
        AVERAGE.format(
            update="""
        for a, m in zip(average.parameters(), model.parameters()):
            a.mul_(0.9).add_(m, alpha=0.1)"""
        ),
    ),
    case(
        "PAR13",
        "decay-by-hand",
        AVERAGE.format(update="[p.mul_(0.999).add_(p, alpha=-1e-4) for p in model.parameters()]"),
    ),
    case(
        "PAR13",
        "rows-of-one-table",
        AVERAGE.format(update="rows = torch.ones(2, 3) if step == 0 else rows; rows[0].lerp_(rows[1], 0.1)"),
    ),
]


@pytest.mark.parametrize(("code", "text"), SPARED)
def test_a_correct_script_that_looks_wrong_is_not_reported(code: str, text: str) -> None:
    assert lines_found(code, text) == set()


FOUND = [
    case(
        "DATA16",
        "signed",
        PIXELS.format(train="pixels[:128] / 127.5 - 1", test="pixels[128:] / 255")
        .replace("    print((model(test)", "    print((model(test)")
        .replace(".mean())", ".mean())  # expect: DATA16"),
    ),
    case(
        "PAR13",
        "lerp",
        AVERAGE.replace("copy.deepcopy(model)", "model  # expect: PAR13").format(
            update="""
        for a, m in zip(average.parameters(), model.parameters()):
            a.lerp_(m, 0.1)"""
        ),
    ),
]


@pytest.mark.parametrize(("code", "text"), FOUND)
def test_a_mistake_in_another_form_is_found_at_its_line(code: str, text: str) -> None:
    assert lines_found(code, text) == expected(START + text)[code]
