"""Training data are sorted by label and never shuffled.

## What it finds
A training loader that returns samples in their stored order, where equal labels are next to each other. Most
batches contain a single class although the data have several, far more often than in a random order.

## Why it matters
A batch of one class pulls the model towards always predicting that class, and the next block towards another.
The gradient does not estimate that of the whole data, batch statistics describe one class, and the model
forgets within an epoch what it learned first.

## How to fix
Pass `shuffle=True` to the training loader, or a sampler that mixes the classes. If you slice batches
yourself, index them with `order = torch.randperm(len(x))`, drawn in each epoch.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from truestep.rules import Evidence, Finding, Meta, Source
from truestep.rules.kit.edits import Edit, call_at, last_argument, replace_node, text_of
from truestep.rules.kit.loaders import ObservedLoader, find_loaders
from truestep.watch.evidence.facts.loading import Labels
from truestep.watch.evidence.facts.passes import BackwardPass

RULE = Meta(
    code="DATA04",
    severity="warning",
    is_observed=lambda evidence: any(map(_labels, _trained(evidence))),
    needs=(BackwardPass,),
    fix="Pass shuffle=True to this DataLoader.",
)
_LEAST_BATCHES, _LEAST_IN_BATCH = 4, 4
_MOST_EXPECTED, _LEAST_ALIKE = 0.3, 0.6
_MOST_CHANGES = 0.25
_MAX_BEFORE_SHUFFLE = 2
"""Arguments of a DataLoader that stand before `shuffle`."""
_RECURRENT = ("lstm", "gru", "rnn")


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find blocks of equal labels in an order that nothing shuffles."""
    is_recurrent = any(word in item.name for item in evidence.operations for word in _RECURRENT)
    for loader in _trained(evidence):
        labels = _labels(loader)
        if not loader.facts.is_ordered or len(labels) < _LEAST_BATCHES:
            continue
        blocks = _Blocks(labels)
        is_stream = is_recurrent and not blocks.is_sorted  # what follows in time belongs together
        if blocks.num_kinds > 1 and not is_stream and blocks.are_unlikely():
            yield Finding.at(
                loader.made or loader.epochs[0],
                "training data are sorted by label and never shuffled: batches contain one class",
                evidence=f"{blocks.num_alike} of {len(labels)} batches contain a single class of "
                f"{blocks.num_kinds}; by chance {blocks.expected_alike:.1f} would. The label changes "
                f"{blocks.num_changes} times in the epoch instead of {blocks.expected_changes:.0f}",
            )


def _trained(evidence: Evidence) -> list[ObservedLoader]:
    return [loader for loader in find_loaders(evidence) if loader.is_training]


def _labels(loader: ObservedLoader) -> list[Labels]:
    """Return the labels of the epoch of which most were read: the first may be a look at one batch."""
    return max((page.labels for page in loader.samples), key=len, default=[])


class _Blocks:
    """How labels lie, against how they would in a random order."""

    def __init__(self, labels: list[Labels]) -> None:
        counts: Counter[int] = Counter()
        sizes = []
        self.num_alike = self.num_changes = 0
        for batch in labels:
            counts.update(batch.counts)
            sizes.append(sum(batch.counts.values()))
            self.num_alike += len(batch.counts) == 1
        self.num_kinds = len(counts)
        self.num_changes = sum(batch.num_changes for batch in labels)
        self.num_changes += sum(one.last != two.first for one, two in pairwise(labels))
        total = sum(sizes)
        shares = [count / total for count in counts.values()]
        self.expected_alike = sum(sum(share**size for share in shares) for size in sizes)
        self.expected_changes = (total - 1) * (1 - sum(share**2 for share in shares))
        self.size = total / len(sizes)
        self.num_batches = len(sizes)

    @property
    def is_sorted(self) -> bool:
        """Whether each class comes in one block."""
        return self.num_changes == self.num_kinds - 1

    def are_unlikely(self) -> bool:
        """Whether no random order looks like this."""
        return (
            self.size >= _LEAST_IN_BATCH
            and self.num_alike >= _LEAST_ALIKE * self.num_batches
            and self.expected_alike <= _MOST_EXPECTED * self.num_batches
            and self.num_changes <= _MOST_CHANGES * self.expected_changes
        )


def make_edits(source: Source, finding: Finding) -> list[Edit]:
    """Shuffle in the loader that is made there."""
    call = call_at(source, finding.line, name="DataLoader")
    if call is None or any(item.arg in (None, "sampler", "batch_sampler") for item in call.keywords):
        return []
    for item in call.keywords:
        if item.arg == "shuffle":
            return replace_node(source, item.value, text="True")
    if len(call.args) > _MAX_BEFORE_SHUFFLE or not call.args:
        return []
    last = last_argument(call)
    return replace_node(source, last, text=f"{text_of(source, last)}, shuffle=True")
