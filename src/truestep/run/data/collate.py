"""Collating samples of different lengths: pad to the longest in the lane, and say what is padding.

Owns padding only; everything of a fixed size is left to torch's default collate.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate

from truestep.errors import UsageError

Field = str | int


class Padded(NamedTuple):
    """Sequences of one lane: values (samples, longest, ...), lengths (samples,), mask False where padded."""

    values: torch.Tensor
    lengths: torch.Tensor
    mask: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class PadCollate:
    """What `pad_collate` returns: a value, so that it can be sent to workers that are spawned."""

    pad_value: float | Mapping[Field, float]
    fixed: frozenset[Field]

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Return one lane's data."""
        return self._collate(samples, None)

    def _collate(self, samples: Sequence[Any], field: Field | None) -> Any:
        first = samples[0]
        if isinstance(first, torch.Tensor | numpy.ndarray):
            return self._sequences(samples, field)
        if isinstance(first, Mapping):
            return {name: self._collate([sample[name] for sample in samples], name) for name in first}
        if isinstance(first, tuple):
            columns = [self._collate(column, at) for at, column in enumerate(zip(*samples, strict=True))]
            # A list for a plain tuple: the default collate does the same.
            return type(first)(*columns) if hasattr(first, "_fields") else columns
        if isinstance(first, list):
            raise UsageError(
                f"pad_collate got a list{_in(field)}, which may mean a sequence or several fields."
                " Return a tensor for a sequence, a tuple for fields."
            )
        # Strings come back in the sequence they came in, so it is handed on as it is.
        return default_collate(cast(list[Any], samples))

    def _sequences(self, samples: Sequence[Any], field: Field | None) -> Any:
        tensors = [torch.as_tensor(sample) for sample in samples]
        if tensors[0].dim() == 0 or field in self.fixed:
            return default_collate(tensors)
        if len({tensor.shape[1:] for tensor in tensors}) > 1:
            shapes = sorted({tuple(tensor.shape) for tensor in tensors})
            raise UsageError(
                f"pad_collate pads the first dimension, got tensors{_in(field)} that differ in others:"
                f" {shapes}. Bring the other dimensions to one size in the dataset."
            )
        lengths = torch.tensor([len(tensor) for tensor in tensors])
        pad_value = self._pad_value(field)
        _check_dtypes(tensors, pad_value, _in(field))
        values = pad_sequence(tensors, batch_first=True, padding_value=pad_value)
        return Padded(values, lengths, torch.arange(values.shape[1]) < lengths[:, None])

    def _pad_value(self, field: Field | None) -> float:
        if not isinstance(self.pad_value, Mapping):
            return self.pad_value
        if field is None or field not in self.pad_value:
            raise UsageError(
                f"pad_value has no entry for the sequence{_in(field)}, only for"
                f" {sorted(self.pad_value, key=str)}."
                " Add one, or name the field in fixed= if all its tensors have one size."
            )
        return self.pad_value[field]


def _check_dtypes(tensors: Sequence[torch.Tensor], pad_value: float, where: str) -> None:
    """Torch would cast everything to the dtype of the sample that happens to come first."""
    dtypes = sorted({str(tensor.dtype) for tensor in tensors})
    if len(dtypes) > 1:
        raise UsageError(
            f"pad_collate got tensors{where} of several dtypes: {', '.join(dtypes)}."
            " Return one dtype from the dataset, for empty sequences too."
        )
    is_whole = not (tensors[0].is_floating_point() or tensors[0].is_complex())
    if is_whole and not float(pad_value).is_integer():
        raise UsageError(
            f"pad_value={pad_value}{where} does not fit sequences of {dtypes[0]}."
            " Pass a whole number, or return floats from the dataset."
        )


def _in(field: Field | None) -> str:
    return "" if field is None else f" in field {field!r}"


def pad_collate(
    *,
    pad_value: float | Mapping[Field, float] = 0,
    fixed: Collection[Field] = (),
) -> PadCollate:
    """Return a collate function that pads sequences to the longest one of the lane.

    A tensor with at least one dimension is a sequence and comes back as `Padded`, whether or not its lane
    happens to need padding. Fields (dictionary keys, tuple positions) named in `fixed`, scalars and
    strings collate as in torch. `pad_value` is one number, or one per field.

    >>> collate = pad_collate(pad_value={"ids": 0, "labels": -100})
    >>> collate(
    ...     [
    ...         {"ids": torch.tensor([5, 6]), "labels": torch.tensor([1, 2])},
    ...         {"ids": torch.tensor([7]), "labels": torch.tensor([3])},
    ...     ]
    ... )["labels"].values
    tensor([[   1,    2],
            [   3, -100]])
    """
    if isinstance(fixed, str):
        raise UsageError(f"fixed must be a collection of fields, got the string {fixed!r}. Pass [{fixed!r}].")
    return PadCollate(pad_value=pad_value, fixed=frozenset(fixed))
