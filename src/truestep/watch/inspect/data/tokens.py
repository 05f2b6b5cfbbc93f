"""Tokens: what a model was given, compared with what its loss scores.

Owns finding padding by its form (one token, or frames of zeros, only in runs at the rows' ends, of unequal
length), and by how many places the targets are shifted against the input.
"""

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from truestep.watch.evidence.facts.passes import ScoredPadding, TokenShift
from truestep.watch.script.host import on_host
from truestep.watch.script.nested_tensors import is_readable

_MAX_NUMEL = 1 << 17
_MAX_KEPT = 4
_INTEGERS = (torch.int64, torch.int32)
_EMPTY, _FIRST_FRAME = -1, 1 << 40
"""Tokens for frames of numbers: those of zeros, and the first of all others; no target is like them."""
_NO_INPUT = re.compile(r"mask|length|position")
_ANSWER = re.compile(r"label|target|^y$")


class Tokens:
    """The last tensors of whole numbers that models were given in this step."""

    def __init__(self) -> None:
        self._kept: list[Tensor] = []
        self._answers: list[Tensor] = []

    def remember(  # limits: private to this package
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Keep a copy of tokens."""
        for name, item in _named(module, args, kwargs):
            if _ANSWER.search(name):
                self._answers += [_copy(item)] if _is_batch(item) else []
            elif not _NO_INPUT.search(name) and _is_batch(item):
                self._kept.append(_copy(item))
            elif not _NO_INPUT.search(name) and (frames := frames_as_tokens(item)) is not None:
                self._kept.append(frames)
        self._kept, self._answers = self._kept[-_MAX_KEPT:], self._answers[-_MAX_KEPT:]

    def forget(self) -> None:
        """A step was made."""
        self._kept, self._answers = [], []

    def compare(
        self, target: Tensor, *, ignored: int, weight: Tensor | None
    ) -> tuple[list[TokenShift], ScoredPadding | None]:
        """Return how targets lie to the last tokens that fit them; nothing if none do."""
        for tokens, rows in self._fitting(target, ignored):
            if rows is not None:
                padding = _scored_padding(tokens, rows, ignored, weight)
                if padding and any(_is_inside(item, padding.token) for item in self._kept):
                    padding = None  # a token that elsewhere stands for something
                return _shifts(tokens, rows, ignored), padding
        return [], None

    def _fitting(self, target: Tensor, ignored: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Return tokens, and the target in rows as tokens are; the likeliest first."""
        for tokens in (*reversed(self._kept), *reversed(self._answers)):  # positions may come before samples
            num, turned = tokens.shape[1], tokens.T
            rows = target.reshape(-1, num).T if target.numel() % num == 0 else None
            if rows is not None and _is_shifted(rows, turned, ignored):
                yield turned, rows
        for tokens in reversed(self._kept):
            yield tokens, _as_rows(target, tokens)
        for tokens in reversed(self._answers):
            rows = _as_rows(target, tokens)
            if rows is not None and _is_shifted(rows, tokens, ignored):
                yield tokens, rows


def _named(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    code = getattr(module.forward, "__code__", None)
    names = code.co_varnames[1 : code.co_argcount] if code is not None else ()
    padded = (*names, *map(str, range(len(names), len(args))))
    for name, value in (*zip(padded, args, strict=False), *kwargs.items()):
        if is_readable(value):
            yield name, value
        elif isinstance(value, dict):
            yield from ((str(name), item) for name, item in value.items() if is_readable(item))


def frames_as_tokens(frames: Tensor) -> Tensor | None:
    """Return one token for all frames of zeros, as padding is, and one of its own for each other frame."""
    if frames.dim() != 3 or not frames.is_floating_point() or not 0 < frames.numel() <= _MAX_NUMEL:
        return None
    if type(frames) is not Tensor or frames.is_meta or min(frames.shape[:2]) < 2:
        return None
    frames = on_host(frames)
    is_zero = (frames.detach() == 0).all(dim=-1)
    if not bool(is_zero[:, -1].any()):
        return None
    own = torch.arange(_FIRST_FRAME, _FIRST_FRAME + is_zero.numel()).reshape(is_zero.shape)
    return torch.where(is_zero, _EMPTY, own)


def _is_batch(item: Tensor) -> bool:
    is_small = item.dim() == 2 and min(item.shape) > 1 and item.numel() <= _MAX_NUMEL
    return is_small and item.dtype in _INTEGERS and not item.is_meta


def _copy(item: Tensor) -> Tensor:
    return item.clone() if item.is_cpu else on_host(item)


def _as_rows(target: Tensor, tokens: Tensor) -> Tensor | None:
    """Return targets in rows as tokens are; None if they do not belong together."""
    num, length = tokens.shape
    per_row = target.numel() // num
    if per_row * num != target.numel() or per_row not in (length - 1, length) or per_row < 2:
        return None
    return target.reshape(num, per_row)


def _is_shifted(rows: Tensor, tokens: Tensor, ignored: int) -> bool:
    """Whether targets are the tokens one place on, as what a decoder is given; whatever their names are."""
    if rows.shape[1] not in (tokens.shape[1] - 1, tokens.shape[1]) or rows.shape[1] < 2:
        return False
    ahead = tokens[:, 1 : 1 + rows.shape[1]]
    part = rows[:, : ahead.shape[1]]
    is_scored = part != ignored
    return bool(is_scored.any()) and bool((part == ahead)[is_scored].all())


def _shifts(tokens: Tensor, rows: Tensor, ignored: int) -> list[TokenShift]:
    """Return, for each shift, which share of the scored targets are the tokens so many places on."""
    found = []
    for shift in (0, 1, 2):
        ahead = tokens[:, shift : shift + rows.shape[1]]
        part = rows[:, : ahead.shape[1]]
        is_scored = part != ignored
        num = int(is_scored.sum())
        found.append(TokenShift(float((part == ahead)[is_scored].float().mean()) if num else 0.0, num))
    return found


def end_runs(tokens: Tensor) -> tuple[int, Tensor] | None:
    """Return a token that is found only in a run at the rows' ends, and the runs' lengths."""
    token = int(tokens[:, -1].mode().values)
    is_it = tokens == token
    runs = is_it.flip(1).long().cumprod(1).sum(1)
    if int(runs.sum()) != int(is_it.sum()) or int((runs > 1).sum()) < 2:
        return None
    return (token, runs) if int(runs.min()) < int(runs.max()) < tokens.shape[1] else None


def _is_inside(tokens: Tensor, token: int) -> bool:
    if not bool((tokens == token).any()):
        return False
    runs = (end_runs(tokens), end_runs(tokens.T))
    return not any(found is not None and found[0] == token for found in runs)


def _scored_padding(
    tokens: Tensor, rows: Tensor, ignored: int, weight: Tensor | None
) -> ScoredPadding | None:
    """Return what is scored where the model was given padding, if it is one target and nothing else."""
    runs = end_runs(tokens)
    if runs is None:
        return None
    token, lengths = runs
    if bool((rows[:, -1] == ignored).all()):
        rows = rows[:, :-1]  # nothing comes after the last token, which some models say by ignoring it
    is_padding = (tokens == token)[:, : rows.shape[1]]
    there = rows[is_padding]
    label = int(there[0]) if there.numel() else ignored
    if label == ignored or bool((there != label).any()):
        return None
    if weight is not None and not float(weight[label]):
        return None
    return ScoredPadding(
        token=token,
        label=label,
        num_padding=there.numel(),
        num_scored=int((rows != ignored).sum()),
        shortest=int(lengths.min()),
        longest=int(lengths.max()),
    )
