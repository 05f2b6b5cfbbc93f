"""Test-time augmentation: predictions averaged over changed inputs, and what that gains.

Owns the averaging. What is a harmless change of the input is for the user to say.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from truestep.errors import UsageError
from truestep.model.scoring import Paired, call, compare_hits, evaluating, hits, parts_of, points

Transform = Callable[[Any], Any]
Average = Literal["probabilities", "logits"]


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Accuracy with and without augmentation on the same samples, and an interval for the difference."""

    paired: Paired
    num_passes: int

    @property
    def gain(self) -> float:
        """The difference of the accuracies, augmented minus plain."""
        return self.paired.gain

    @property
    def interval(self) -> tuple[float, float]:
        """The interval for the gain."""
        return self.paired.interval

    def __str__(self) -> str:
        paired, (low, high) = self.paired, self.interval
        plain, augmented = paired.accuracies
        passes = "1 pass" if self.num_passes == 1 else f"{self.num_passes} passes"
        verdict = "a gain" if low > 0 else "a loss" if high < 0 else "no gain is shown"
        return (
            f"plain      {plain:.2%} of {paired.num_samples:,} right\n"
            f"augmented  {augmented:.2%}, {passes} instead of 1\n"
            f"gain       {points(self.gain)} points, {paired.confidence:.0%} interval "
            f"{points(low)} to {points(high)}: {verdict}\n"
            f"changed    {paired.fixed} put right, {paired.broken} made wrong, p = {paired.p_value:.3g}"
        )


def augmented(
    model: nn.Module, transforms: Sequence[Transform], *, average: Average = "probabilities"
) -> Callable[[Any], Tensor]:
    """Return a function of a batch that averages the model's predictions over the transforms of it.

    A transform is a function of the whole batch; `lambda x: x` is among them only if you put it there. The
    model is called once for each, in eval mode and without gradients, and is in its own mode afterwards.
    "probabilities" averages `softmax` over the last dimension and returns probabilities, "logits" averages
    what the model returns.

    >>> import torch
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    >>> predict = augmented(model, [lambda x: x, lambda x: x.flip(-1)])
    >>> bool(torch.allclose(predict(torch.ones(3, 2, 2)).sum(1), torch.ones(3)))
    True
    """
    transforms = _checked(transforms, average)

    def predict(inputs: Any) -> Tensor:
        with evaluating(model):
            return _averaged(model, inputs, transforms=transforms, average=average)

    return predict


def measure_gain(
    model: nn.Module,
    batches: Iterable[Any],
    *,
    transforms: Sequence[Transform],
    average: Average = "probabilities",
    confidence: float = 0.95,
) -> Gain:
    """Return the accuracy with and without augmentation, and a paired interval for the gain.

    Batches are (inputs, targets), or mappings with "labels". Both are asked on the same samples, so that the
    interval comes from the samples whose answer changes, and is far narrower than two side by side. Choose
    transforms on validation data: the best of many tried on a test set gains by luck.

    >>> import torch
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    >>> batches = [(torch.ones(3, 2, 2), torch.tensor([0, 1, 1]))]
    >>> measure_gain(model, batches, transforms=[lambda x: x]).gain
    0.0
    """
    transforms = _checked(transforms, average)
    plain: list[Tensor] = []
    changed: list[Tensor] = []
    with evaluating(model):
        for batch in batches:
            inputs, targets = parts_of(batch)
            plain.append(hits(call(model, inputs), targets))
            scores = _averaged(model, inputs, transforms=transforms, average=average)
            changed.append(hits(scores, targets))
    return Gain(paired=compare_hits(plain, changed, confidence=confidence), num_passes=len(transforms))


def _averaged(model: nn.Module, inputs: Any, *, transforms: Sequence[Transform], average: Average) -> Tensor:
    total: Tensor | None = None
    for transform in transforms:
        scores = call(model, transform(inputs))
        if average == "probabilities":
            scores = scores.softmax(-1)
        if total is not None and total.shape != scores.shape:
            raise UsageError(
                f"the transforms give scores of shapes {list(total.shape)} and {list(scores.shape)}. "
                "A transform must keep the number and order of the samples."
            )
        total = scores if total is None else total + scores
    assert total is not None
    return total / len(transforms)


def _checked(transforms: Sequence[Transform], average: str) -> Sequence[Transform]:
    if not transforms or not all(callable(transform) for transform in transforms):
        raise UsageError("transforms must be functions of a batch, at least one: [lambda x: x, flip].")
    if average not in ("probabilities", "logits"):
        raise UsageError(f"average is {average!r}. Pass average='probabilities' or average='logits'.")
    return list(transforms)
