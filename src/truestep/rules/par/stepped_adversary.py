"""The generator's optimizer also steps the discriminator.

## What it finds
Two optimizers that take turns, one of which holds all parameters of the other's network. The network's own
loss asks for high scores in one call and low ones in another. The other loss goes through the network to
train what made its input, asks for one of both only, and its step changes the network too.

## Why it matters
Each step of the generator also teaches the discriminator to accept what is generated. It undoes a part of
what the discriminator learns from its own loss. Training still runs, and converges to something worse.

## How to fix
Give each optimizer only the parameters that it trains: `Adam(gan.generator.parameters())`, not
`Adam(gan.parameters())`.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.analysis.optimizers import find_optimizer, where_made
from truestep.watch.evidence.facts.optimizing import AdversaryStepped, OptimizerStep

RULE = Meta(
    code="PAR21",
    severity="warning",
    needs=(AdversaryStepped, OptimizerStep),
    fix="Give each optimizer only the parameters of the network that it trains.",
)
_LEAST_ROUNDS = 2


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find optimizers that hold the network which their loss is to be judged by."""
    for moment in evidence.of(AdversaryStepped):
        facts = moment.facts
        if facts.num_opposed < max(_LEAST_ROUNDS, facts.num_rounds):
            continue
        small = find_optimizer(evidence, facts.small)
        line = f" at line {small.made_at.line}" if small is not None and small.made_at.line else ""
        yield Finding.at(
            moment,
            "this optimizer also steps the network that its loss is judged by",
            step=1,
            evidence=f"it holds {facts.num_others} parameters and all {facts.num_shared} of the "
            f"optimizer{line}. In {facts.num_opposed} of {facts.num_rounds} rounds looked at, the "
            "network's own loss asked for high scores of some inputs and low scores of others, and this "
            f"optimizer's loss asked for one of both for all inputs; its step "
            f"applied that to {facts.num_moved} parameters of the network",
            **where_made(evidence, facts.big),
        )


BUGGY = """
import torch
from torch import nn

torch.manual_seed(0)
generator, critic = nn.Linear(4, 2), nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
both = nn.ModuleList([generator, critic])
of_critic = torch.optim.SGD(critic.parameters(), lr=0.05)
of_generator = torch.optim.SGD(both.parameters(), lr=0.05)  # expect: PAR21
for step in range(8):
    made = generator(torch.randn(8, 4)).detach()
    real = nn.functional.softplus(-critic(torch.randn(8, 2))).mean()
    loss = real + nn.functional.softplus(critic(made)).mean()
    of_critic.zero_grad()
    loss.backward()
    of_critic.step()
    loss = nn.functional.softplus(-critic(generator(torch.randn(8, 4)))).mean()
    of_generator.zero_grad()
    loss.backward()
    of_generator.step()
"""

FIXED = BUGGY.replace("SGD(both.", "SGD(generator.").replace("  # expect: PAR21", "")

CLEAN = """
import torch
from torch import nn

torch.manual_seed(0)
body, head = nn.Linear(4, 8), nn.Linear(8, 1)
of_all = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.05)
of_head = torch.optim.SGD(head.parameters(), lr=0.01)
for step in range(8):  # the head learns twice as much, from the same labels
    for optimizer in (of_all, of_head):
        x = torch.randn(16, 4)
        found = torch.tanh(body(x))
        scores = head(found if optimizer is of_all else found.detach())
        loss = nn.functional.binary_cross_entropy_with_logits(scores, (x[:, :1] > 0).float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
