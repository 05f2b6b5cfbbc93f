"""In which order a loader draws. The one place that reads a loader's samplers."""

from typing import Any

from torch.utils.data import BatchSampler


def order_of(loader: Any) -> Any:
    """Return what decides the order of a loader's samples: a sampler, or a batch sampler of another class.

    Where `batch_sampler=` is given, `loader.sampler` is torch's default, which draws nothing.
    """
    return orders_of(loader)[0]


def orders_of(loader: Any) -> tuple[Any, ...]:
    """Return the same, and after it the sampler that a batch sampler of another class has inside."""
    batches = getattr(loader, "batch_sampler", None)
    if batches is None:
        return (getattr(loader, "sampler", None),)
    inner = getattr(batches, "__dict__", {}).get("sampler")  # asks no property of the user's
    if type(batches) is BatchSampler:  # it groups what its sampler draws
        return (inner,)
    return (batches,) if inner is None else (batches, inner)
