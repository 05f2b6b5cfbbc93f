"""Balance: what a weighted sampler makes each class weigh, beside how often the data have it.

Owns finding the labels that a sampler's weights belong to. Weights of losses are read in `losses`.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from torch.utils.data import Subset, TensorDataset, WeightedRandomSampler

from truestep.watch.evidence.facts.passes import ClassesWeighted
from truestep.watch.inspect.data.samples import is_readable
from truestep.watch.script.orders import order_of
from truestep.watch.script.tape import Tape

_MAX_SAMPLES, _MAX_CLASSES = 1 << 18, 64


def watch(tape: Tape) -> None:
    """Look at each loader with a weighted sampler when it begins its first epoch."""
    met: set[int] = set()

    def epoch(loader: Any, number: int) -> None:
        order = order_of(loader) if number not in met else None
        met.add(number)
        if type(order) is not WeightedRandomSampler or not is_readable(order.weights):
            return
        weights = order.weights.tolist()
        found = [labels for labels in _labels(loader.dataset) if len(labels) == len(weights)]
        counts = Counter(found[0] if len(found) == 1 and len(weights) <= _MAX_SAMPLES else ())
        if 1 < len(counts) <= _MAX_CLASSES:
            sums: Counter[int] = Counter()
            for label, weight in zip(found[0], weights, strict=True):
                sums[label] += weight
            means = [sums[label] / count for label, count in counts.items()]
            tape.note(ClassesWeighted("WeightedRandomSampler", means, list(counts.values())))

    tape.listen(epoch=epoch)


def _labels(dataset: Any) -> Iterator[list[int]]:
    """Yield lists of whole numbers that a dataset holds, one for each sample."""
    if type(dataset) is Subset:
        yield from ([labels[int(i)] for i in dataset.indices] for labels in _labels(dataset.dataset))
        return
    known = getattr(dataset, "__dict__", {})
    for value in dataset.tensors if isinstance(dataset, TensorDataset) else known.values():
        is_vector = isinstance(value, Tensor) and value.dim() == 1 and is_readable(value)
        labels = value.tolist() if is_vector and not value.is_floating_point() else value
        if isinstance(labels, list) and all(type(item) is int for item in labels):
            yield labels
