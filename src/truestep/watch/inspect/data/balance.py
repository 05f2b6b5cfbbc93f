"""Balance: how often a weighted sampler draws each class, beside how often the data have it.

Owns finding the labels that a sampler's weights belong to. Weights of losses are read in `losses`.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils.data import Subset, TensorDataset, WeightedRandomSampler

from truestep.watch.evidence.facts.loading import ClassDraws, SamplesUnweighted
from truestep.watch.inspect.data.samples import is_readable
from truestep.watch.script.orders import order_of
from truestep.watch.script.tape import Tape

_MAX_SAMPLES, _MAX_CLASSES = 1 << 18, 64


def watch(tape: Tape) -> None:
    """Look at each loader with a weighted sampler when it begins its first epoch."""
    met: set[int] = set()

    def epoch(loader: Any, number: int) -> None:
        if number not in met:
            met.add(number)
            order = order_of(loader)
            if type(order) is WeightedRandomSampler and is_readable(order.weights):
                facts = _draws(loader, number) or _missing(loader, number)
                if facts is not None:
                    tape.note(facts)

    tape.listen(epoch=epoch)


def _draws(loader: Any, number: int) -> ClassDraws | None:
    weights = order_of(loader).weights.tolist()
    if len(weights) > _MAX_SAMPLES or sum(weights) <= 0:
        return None
    found = [labels for labels in _labels(loader.dataset) if len(labels) == len(weights)]
    if len(found) != 1:
        return None
    counts: Counter[int] = Counter(found[0])
    if not 2 <= len(counts) <= _MAX_CLASSES:
        return None
    drawn: Counter[int] = Counter()
    for label, weight in zip(found[0], weights, strict=True):
        drawn[label] += weight
    total = sum(weights)
    return ClassDraws(number, dict(counts), {label: weight / total for label, weight in drawn.items()})


def _missing(loader: Any, number: int) -> SamplesUnweighted | None:
    num, num_samples = len(order_of(loader).weights), _length(loader.dataset)
    return SamplesUnweighted(number, num, num_samples) if num < num_samples else None


def _length(dataset: Any) -> int:
    """Return how many samples there are, if no code of the user's has to be asked; else 0."""
    if type(dataset) is Subset:
        return len(dataset.indices)
    return len(dataset) if type(dataset) in (TensorDataset, list) else 0


def _labels(dataset: Any) -> Iterator[list[int]]:
    """Yield lists of whole numbers that a dataset holds, one for each sample."""
    if type(dataset) is Subset:
        for labels in _labels(dataset.dataset):
            yield [labels[int(index)] for index in dataset.indices]
        return
    values = (
        dataset.tensors if isinstance(dataset, TensorDataset) else getattr(dataset, "__dict__", {}).values()
    )
    for value in values:
        if isinstance(value, Tensor):
            if value.dim() == 1 and is_readable(value) and not value.is_floating_point():
                yield value.tolist()
        elif (
            isinstance(value, list)
            and len(value) <= _MAX_SAMPLES
            and all(type(item) is int for item in value)
        ):
            yield value
