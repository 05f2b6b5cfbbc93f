"""Packing token sequences: rows of one length, each made of whole sequences of another dataset.

Owns which sequences share a row, and what a row says about them. Leaves the order of rows to the loader.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from truestep.base import rng
from truestep.errors import UsageError
from truestep.run.data.part import read_many
from truestep.run.data.permutation import Indices, Permutation

VERSION = 1
"""Part of the content's name: raise it when the same lengths and seed would give other rows."""

Row = dict[str, torch.Tensor]

_WINDOW = 1 << 16
_READ_AT_ONCE = 1024
_LONGEST = np.iinfo(np.int32).max
_OWN = ("segments", "positions")
_ONLY_FIELD = "tokens"


class Packed:
    """Rows of exactly `length` tokens, made of whole sequences of a dataset: a dataset itself.

    An item of the dataset is one sequence of numbers, or a dictionary of equally long ones. A row has the
    same fields (`tokens` for a bare sequence), each followed by `pad`, and two more: `segments` counts the
    sequences of the row from 1 and is 0 in the padding; `positions` begins at 0 in each sequence.

    Which sequences share a row depends on their lengths, `length` and the seed alone. Without `lengths`
    (one number for each sequence) the whole dataset is read once to measure them. Empty sequences are left
    out. One that is longer than `length` is an error, or with `cut=True` becomes several.

    >>> packed = Packed([[5, 6, 7], [8], [9, 9]], length=4, seed=7)
    >>> packed[0]["tokens"].tolist(), packed[0]["segments"].tolist(), packed[0]["positions"].tolist()
    ([5, 6, 7, 8], [1, 1, 1, 2], [0, 1, 2, 0])
    """

    def __init__(
        self,
        dataset: Any,
        *,
        length: int,
        seed: int,
        lengths: npt.ArrayLike | None = None,
        cut: bool = False,
        pad: float | Mapping[str, float] = 0,
    ) -> None:
        _check_arguments(dataset, length)
        self.dataset = dataset
        self.length = length
        self._pad = pad
        _check_fields(dataset)
        self.lengths = _checked(_measure(dataset) if lengths is None else lengths, len(dataset))
        self._pieces = _cut(self.lengths, length, may_cut=cut)
        self._members, self._bounds = compose(self._pieces, seed=seed)
        base = getattr(dataset, "content_id", "unnamed")
        hashed = hashlib.blake2b(self.lengths.astype("<i4").tobytes(), digest_size=8).hexdigest()
        self.content_id = f"{base}/packed {length} seed {seed} pad {pad} lengths {hashed} version {VERSION}"

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def __getitem__(self, place: int) -> Row:
        return self.__getitems__([place])[0]

    def __getitems__(self, places: list[int]) -> list[Row]:
        places = [range(len(self))[place] for place in places]
        spans = [slice(self._bounds[place], self._bounds[place + 1]) for place in places]
        members = np.concatenate([self._members[span] for span in spans])
        sequences, starts, sizes = self._pieces.locate(members)
        items = read_many(self.dataset, sequences.tolist())
        parts = [
            self._part(item, sequence, start)
            for item, sequence, start in zip(items, sequences.tolist(), starts.tolist(), strict=True)
        ]
        rows, stop = [], 0
        for span in spans:
            start, stop = stop, stop + span.stop - span.start
            rows.append(self._row(parts[start:stop], sizes[start:stop]))
        return rows

    @property
    def waste(self) -> float:
        """The share of all tokens in the rows that is padding."""
        return 1.0 - int(self.lengths.sum(dtype=np.int64)) / (len(self) * self.length)

    def _part(self, item: Any, sequence: int, start: int) -> Row:
        expected = int(self.lengths[sequence])
        part = {}
        for name, values in _fields(item).items():
            if len(values) != expected:
                raise UsageError(
                    f"sequence {sequence} has {len(values)} tokens in {name!r}, its row was composed for"
                    f" {expected}. All fields of a sequence need one length, the same each time it is read."
                )
            part[name] = _tensor(values[start : start + self.length], name, sequence)
        return part

    def _row(self, parts: list[Row], sizes: Indices) -> Row:
        row = {name: self._joined(name, parts) for name in parts[0]}
        segments, positions = np.zeros((2, self.length), dtype=np.int64)
        ends = sizes.cumsum()
        filled = int(ends[-1])
        segments[:filled] = np.repeat(np.arange(1, len(sizes) + 1), sizes)
        positions[:filled] = np.arange(filled) - np.repeat(ends - sizes, sizes)
        return row | {"segments": torch.from_numpy(segments), "positions": torch.from_numpy(positions)}

    def _joined(self, name: str, parts: list[Row]) -> torch.Tensor:
        if any(part.keys() != parts[0].keys() for part in parts):
            raise UsageError(
                f"sequences of one row have other fields: {sorted({str(sorted(part)) for part in parts})}."
                " Give every item of the dataset the same ones."
            )
        values = torch.cat([part[name] for part in parts])
        row = values.new_full((self.length,), self._pad_of(name))
        row[: len(values)] = values
        return row

    def _pad_of(self, name: str) -> float:
        if not isinstance(self._pad, Mapping):
            return self._pad
        if name not in self._pad:
            raise UsageError(f"pad has no entry for the field {name!r}, only for {[*self._pad]}. Add one.")
        return self._pad[name]


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """Sequences as they go into rows: whole, or cut; `first` says at which piece each sequence begins."""

    lengths: npt.NDArray[np.int32]
    longest: int
    first: Indices | None

    def __len__(self) -> int:
        return len(self.lengths) if self.first is None else int(self.first[-1])

    def locate(self, pieces: Indices) -> tuple[Indices, Indices, Indices]:
        """Return each piece's sequence, where in it the piece begins, and how many tokens it has."""
        if self.first is None:
            sequences, starts = pieces, np.zeros_like(pieces)
        else:
            sequences = np.searchsorted(self.first, pieces, side="right") - 1
            starts = (pieces - self.first[sequences]) * self.longest
        return sequences, starts, np.minimum(self.lengths[sequences] - starts, self.longest)


def _cut(lengths: npt.NDArray[np.int32], longest: int, *, may_cut: bool) -> Pieces:
    too_long = np.flatnonzero(lengths > longest)
    if too_long.size and not may_cut:
        raise UsageError(
            f"sequence {too_long[0]} has {lengths[too_long[0]]} tokens, more than length={longest};"
            f" {too_long.size} of {len(lengths)} sequences do. Pass cut=True to cut them into pieces,"
            " a larger length, or a dataset without them."
        )
    if not too_long.size and lengths.all():
        return Pieces(lengths=lengths, longest=longest, first=None)
    first = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(-(-lengths // longest), out=first[1:])
    return Pieces(lengths=lengths, longest=longest, first=first)


def compose(pieces: Pieces, *, seed: int, window: int = _WINDOW) -> tuple[npt.NDArray[Any], Indices]:
    """Return the pieces of all rows one after another, and where each row begins, with the end.

    Pieces are taken in an order of their own, a window at a time; within it the longest comes first, each
    into the row with the least room that it fits in.
    """
    # bits: rows depend on the lengths and this seed; a change below is a new VERSION.
    order = Permutation(len(pieces), seed=rng.derive(seed, "packed"), epoch=0)
    members = np.empty(len(pieces), dtype=np.int32 if len(pieces) <= _LONGEST else np.int64)
    counts = []
    for start in range(0, len(pieces), window):
        taken = order(np.arange(start, min(len(pieces), start + window)))
        sizes = pieces.locate(taken)[2]
        by_size = np.argsort(-sizes, kind="stable")
        values, repeats = np.unique(sizes, return_counts=True)
        rows = np.array(_fit(values[::-1].tolist(), repeats[::-1].tolist(), pieces.longest))
        members[start : start + len(taken)] = taken[by_size[np.argsort(rows, kind="stable")]]
        counts.append(np.bincount(rows))
    bounds = np.concatenate([[0], *counts]).cumsum()
    return members, bounds


def _fit(sizes: list[int], repeats: list[int], longest: int) -> list[int]:
    """Return the row of each piece, best fit; sizes come in falling order, each so many times.

    All pieces of one size are placed together. `rooms` has a bit for each room that some row has left: the
    lowest one that is high enough is the best fit, without a search through the rows.
    """
    placed: list[int] = []
    rows_with: list[list[int]] = [[] for _ in range(longest + 1)]
    rooms = num_rows = 0
    for size, repeat in zip(sizes, repeats, strict=True):
        left_over = repeat
        while left_over:
            fitting = rooms >> size
            if not fitting:
                num_new = -(-left_over // (longest // size))
                rows_with[longest] += range(num_rows, num_rows + num_new)
                num_rows += num_new
                rooms |= 1 << longest
                continue
            room = size + (fitting & -fitting).bit_length() - 1
            num_each = min(room // size, left_over)
            num_taken = min(len(rows_with[room]), left_over // num_each)
            taken = rows_with[room][-num_taken:]
            del rows_with[room][-num_taken:]
            if not rows_with[room]:
                rooms ^= 1 << room
            placed += taken * num_each
            left_over -= num_taken * num_each
            rest = room - num_each * size
            if rest:
                rows_with[rest] += taken
                rooms |= 1 << rest
    return placed


def _measure(dataset: Any) -> list[int]:
    lengths: list[int] = []
    for start in range(0, len(dataset), _READ_AT_ONCE):
        items = read_many(dataset, [*range(start, min(len(dataset), start + _READ_AT_ONCE))])
        lengths += [len(next(iter(_fields(item).values()))) for item in items]
    return lengths


def _checked(lengths: npt.ArrayLike, num_sequences: int) -> npt.NDArray[np.int32]:
    array = np.asarray(lengths)
    if array.shape != (num_sequences,) or array.dtype.kind not in "iu":
        raise UsageError(
            f"lengths must be one whole number for each of the {num_sequences} sequences, got an array of"
            f" shape {array.shape} and dtype {array.dtype}. Pass the number of tokens of each item."
        )
    if not 0 <= int(array.min()) <= int(array.max()) <= _LONGEST:
        raise UsageError(
            f"lengths must be from 0 to {_LONGEST}, got {array.min()} to {array.max()}. Count them again."
        )
    if not array.any():
        raise UsageError(f"all {num_sequences} sequences are empty. Pass a dataset with at least one token.")
    return array.astype(np.int32)


def _fields(item: Any) -> Mapping[str, Any]:
    return item if isinstance(item, Mapping) else {_ONLY_FIELD: item}


def _tensor(values: Any, name: str, sequence: int) -> torch.Tensor:
    try:
        # Arrays are copied: torch warns of those that cannot be written, as those of a file are.
        tensor = (
            torch.from_numpy(np.array(values)) if isinstance(values, np.ndarray) else torch.as_tensor(values)
        )
    except (TypeError, ValueError, RuntimeError):
        tensor = None
    if tensor is None or tensor.dim() != 1:
        raise UsageError(
            f"field {name!r} of sequence {sequence} is not a sequence of numbers: got "
            f"{type(values).__name__}, "
            "expected a list, an array or a tensor of one dimension. Leave such fields out."
        )
    is_whole = not (tensor.is_floating_point() or tensor.dtype is torch.bool)
    return tensor.long() if is_whole else tensor


def _check_fields(dataset: Any) -> None:
    """Look at one item, so that what cannot be packed is told here and not in a worker."""
    for name, values in _fields(dataset[0]).items():
        if name in _OWN:
            raise UsageError(f"the field {name!r} of a row is written by Packed. Give yours another name.")
        _tensor(values, name, 0)


def _check_arguments(dataset: Any, length: object) -> None:
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise UsageError(
            f"Packed needs a dataset with __len__ and __getitem__, got {type(dataset).__name__}."
            " Rows of a stream cannot be composed before it is read."
        )
    if hasattr(dataset, "epoch_order"):
        raise UsageError(
            f"Packed would scatter each row over all files of {type(dataset).__name__}, which is read file"
            " after file. Pack the sequences first, and write rows into the files."
        )
    if len(dataset) == 0:
        raise UsageError(f"the dataset {type(dataset).__name__} is empty. Pass one with at least one sample.")
    if not isinstance(length, int) or length < 1:
        raise UsageError(f"length must be a whole number from 1 on, got {length!r}. Pass that of a row.")
