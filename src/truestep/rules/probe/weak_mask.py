"""Masked positions still get attention: the mask is too weak for the softmax after it.

## What it finds
Scores that are multiplied by a mask of 0 and 1, filled with a number near 0, or added to a mask of 0 and 1
before a softmax, while the softmax gives the masked positions weight like others. Masks that are applied to
the weights or values after the softmax as well are not reported.

## Why it matters
A score of 0 is an average score and not a small one. Padding and later positions stay in the weighted sum:
the output depends on how far a batch was padded, or sees what it shall predict.

## How to fix
Fill masked scores with `float("-inf")` before the softmax: `scores.masked_fill(~mask, float("-inf"))`. Give a
mask that is added 0 at visible positions and `-inf` at all others, or pass it as a boolean mask.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.analysis.flow import LINEAR, OperationGraph, place_of
from truestep.watch import Operation
from truestep.watch.evidence.facts.passes import MaskMeasured
from truestep.watch.evidence.operation import In

RULE = Meta(
    code="PROBE15",
    severity="error",
    needs=(MaskMeasured,),
    fix='Fill masked scores with float("-inf") before the softmax, for example with masked_fill.',
)
_LEAST_STEPS, _LEAST_ROWS = 2, 2
_WEAK, _LOWEST, _HIGHEST = 0.2, -5.0, 1.0
_MAX_WALK = 300
_FILLS = ("masked_fill", "where", "index_put", "masked_scatter", "index_fill")
_DRAWS = ("bernoulli", "rand", "dropout", "uniform")
_NUMERIC = ("isnan", "isinf", "isfinite")
_SOFTMAX = ("aten._softmax.default", "aten._safe_softmax.default")
_PASSING = ("mul.", "div.", "mul_.", "div_.", "native_dropout", "clone", "_to_copy")

_Weak = tuple[Operation, Operation, MaskMeasured]
"""What applied a mask, the softmax after it, and what was measured."""


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find masks after which masked positions get weight."""
    flow = evidence.flow
    found: dict[tuple[str | None, int | None], dict[int, _Weak]] = {}
    for moment in evidence.of(MaskMeasured):
        facts = moment.facts
        masking, softmax = flow.at(facts.masking_index), flow.at(facts.operation_index)
        if masking is None or softmax is None or not _is_weak(facts) or not masking.line:
            continue
        is_plain = facts.is_run or (facts.how == "filled" and not _is_own(flow, masking, softmax))
        if is_plain and not _is_masked_again(flow, softmax):
            place = (masking.file, masking.line)
            found.setdefault(place, {}).setdefault(masking.step, (masking, softmax, facts))
    for steps in found.values():
        if len(steps) < _LEAST_STEPS:
            continue
        masking, softmax, facts = steps[min(steps)]
        yield Finding.at(
            masking,
            f"masked positions still get {facts.share:.0%} of the attention: {_reason(facts)}",
            count=len(steps),
            evidence=f"in {facts.num_rows} rows of the softmax {place_of(softmax, masking.file)}, "
            f"{facts.covered:.0%} of the positions are masked and get {facts.share:.0%} of the weight; "
            "expected 0%",
        )


def _is_weak(facts: MaskMeasured) -> bool:
    is_small = facts.how == "multiplied" or _LOWEST <= facts.value <= _HIGHEST
    return is_small and facts.num_rows >= _LEAST_ROWS and facts.share >= _WEAK * facts.covered


def _reason(facts: MaskMeasured) -> str:
    if facts.how == "multiplied":
        return "the mask makes their scores 0"
    return f"their scores are {'changed by' if facts.how == 'added' else 'filled with'} {facts.value:g}"


def _is_own(flow: OperationGraph, masking: Operation, softmax: Operation) -> bool:
    """Whether a mask comes from the scores themselves, is drawn, or marks values that are not finite."""
    for given in masking.ins:
        if given.has_grad or not given.shape:
            continue
        made = flow.before(given, limit=_MAX_WALK)
        if any(any(word in item.name for word in _NUMERIC) for item in made):
            return True
        if any(one.has_grad for item in made for one in item.ins if item.step == masking.step):
            return True
        if any(item.is_random and item.phase == softmax.phase == "forward" for item in made):
            return True
    return False


def _is_masked_again(flow: OperationGraph, softmax: Operation) -> bool:
    """Whether the weights, or the values that they are for, are masked after the softmax."""
    if softmax.name not in _SOFTMAX:
        return False
    queue, seen = [softmax], {softmax.index}
    while queue and len(seen) < _MAX_WALK:
        item = queue.pop()
        for user in flow.users(item):
            if user.index in seen or user.step != softmax.step:
                continue
            seen.add(user.index)
            if any(fill in user.name for fill in _FILLS):
                return True
            others = [given for given in user.ins if given.producer != item.index]
            is_product = user.name.startswith("aten.mul")
            if is_product and any(_is_mask(flow, one) for one in others):
                return True
            values = [one for one in others if one.has_grad and (is_product or user.name in LINEAR)]
            if any(_is_from_mask(flow, one) for one in values):
                return True
            if any(user.name.startswith(f"aten.{name}") for name in _PASSING):
                queue.append(user)
    return False


def _is_mask(flow: OperationGraph, given: In) -> bool:
    """Whether a factor is neither trained nor a draw of dropout."""
    if given.has_grad or not given.shape:
        return False
    made = flow.before(given, limit=8)
    return not any(word in item.name for item in made for word in _DRAWS if item.phase == "forward")


def _is_from_mask(flow: OperationGraph, given: In) -> bool:
    """Whether values were masked since the last layer."""
    for item in flow.before(given, _until_layer, limit=_MAX_WALK):
        if any(fill in item.name for fill in _FILLS):
            return True
        if item.name.startswith("aten.mul") and any(_is_mask(flow, one) for one in item.ins):
            return True
    return False


def _until_layer(item: Operation) -> tuple[In, ...]:
    return () if item.name in LINEAR else item.ins


BUGGY = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(20, 16), nn.Linear(16, 3)
        self.query, self.key = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, tokens):
        x, mask = self.embed(tokens), (tokens != 0).float()
        scores = self.query(x) @ self.key(x).transpose(1, 2) / 4
        scores = scores * mask[:, None]  # expect: PROBE15
        return self.out((scores.softmax(-1) @ x)[:, 0])


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

CLEAN = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(20, 16), nn.Linear(16, 3)
        self.query, self.key = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, tokens):
        x, mask = self.embed(tokens), (tokens != 0).float()
        scores = self.query(x) @ self.key(x).transpose(1, 2) / 4
        weights = (scores * mask[:, None]).softmax(-1) * mask[:, None]
        weights = weights / weights.sum(-1, keepdim=True)
        return self.out((weights @ x)[:, 0])


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

FIXED = BUGGY.replace(
    "scores = scores * mask[:, None]  # expect: PROBE15",
    'scores = scores.masked_fill(mask[:, None] == 0, float("-inf"))',
)
