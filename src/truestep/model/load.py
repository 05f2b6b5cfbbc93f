"""Load: weights from a file into a model that is there already, with a report of every tensor.

Owns which tensor goes where: prefixes, renaming, shapes. Reading files is `weights`'.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from truestep.bits import digest
from truestep.errors import UsageError
from truestep.model.names import matching, nearest
from truestep.model.summary import place_of, stored_bytes
from truestep.model.tables import scaled, shortened
from truestep.model.weights import find_states, read_weights

Source = str | os.PathLike[str] | Mapping[str, Any]
_USUAL_KEYS = ("state_dict", "model_state_dict", "model")
_COUNTER = "num_batches_tracked"
_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """What happened to every tensor, of the file and of the model."""

    source: str
    model: str
    loaded: tuple[str, ...]
    """Names in the model, of tied weights all."""
    renamed: Mapping[str, str]
    """Where a name in the file is another one than in the model."""
    how: tuple[str, ...]
    """What was found without being asked for: the place in the file, a prefix."""
    other_shapes: Mapping[str, str]
    """Names in the model whose tensor in the file does not fit, with both shapes; not loaded."""
    unused: tuple[str, ...]
    """Names in the file that the model does not have."""
    left: tuple[str, ...]
    """Names in the model that got nothing: they are as they were, at random if the model is new."""
    resized: Mapping[str, str]
    converted: Mapping[str, int]
    """Changes of dtype ("float32 to bfloat16"), with the number of tensors."""
    size_bytes: int
    digest: str
    """Of the loaded tensors as they are in the model now."""

    def __str__(self) -> str:
        total = len(self.loaded) + len(self.left)
        size = scaled(self.size_bytes, "B")
        lines = [
            f"loaded     {len(self.loaded)} of {total} tensors of {self.model}, {size}, from {self.source}",
            *(f"found      {text}" for text in self.how),
            *_listed("renamed", [f"{old} to {new}" for old, new in self.renamed.items()]),
            *_listed("resized", [f"{name}: {text}" for name, text in self.resized.items()]),
            *_listed("shape", [f"{name} is {text}" for name, text in self.other_shapes.items()]),
            *([f"unused     {shortened(self.unused)}"] if self.unused else []),
            *([f"left       {shortened(self.left)}: as before loading"] if self.left else []),
            *_listed("converted", [f"{what}: {count} tensors" for what, count in self.converted.items()]),
        ]
        return "\n".join([*lines, f"digest     {self.digest}"])


def _listed(title: str, items: list[str]) -> Iterator[str]:
    for item in items[:_SHOWN]:
        yield f"{title:<10} {item}"
    if len(items) > _SHOWN:
        yield f"{title:<10} {len(items) - _SHOWN} more"


def load(
    model: nn.Module,
    source: Source,
    *,
    rename: Mapping[str, str] | None = None,
    allow_missing: str | Iterable[str] = (),
    partial: bool = False,
    resize: str | Iterable[str] = (),
    key: str | None = None,
) -> Loaded:
    """Load weights into a model, on its device and in its dtype, and return what happened to each tensor.

    `source` is a .safetensors, .pt, .pth, .bin, .ckpt or .tar file, the index.json of one in parts, a folder
    with one of these, or a state_dict. Files are read as tensors; one that would run code is refused. A
    nested state_dict is found automatically (`key` names it, if there are several), as are prefixes such as
    "module.".

    Unless every tensor finds its place it is an error with the report, and nothing is loaded.
    `allow_missing="fc.*"` lets the model keep its own, `partial=True` anything.
    `rename={"old.*": "new.*"}` renames those of the file. `resize="wte.*"` loads the rows that both have.

    >>> saved = {"module." + name: value for name, value in nn.Linear(2, 1).state_dict().items()}
    >>> loaded = load(nn.Linear(2, 1), saved)
    >>> loaded.loaded, loaded.how
    (('weight', 'bias'), ("the prefix 'module.' was taken off",))
    """
    target: dict[str, Any] = dict(model.state_dict(keep_vars=True))
    _refuse_meta(target)
    content, label = _content(source)
    plan = _best_plan(content, target, rename=rename or {}, key=key)
    plan.fit(_chosen(resize, target, option="resize"))
    kept = _chosen(allow_missing, target, option="allow_missing")
    plan.refuse_untying()
    if not plan.pairs:
        raise UsageError(_no_match(plan, label))
    if not partial:
        # torch, too, takes files from before BatchNorm counted its batches.
        kept.update(name for name in target if name.rpartition(".")[2] == _COUNTER)
        made = {name for name, _ in model.named_buffers() if name not in target}
        needless = {given for given, name in plan.unused.items() if name in made}
        _refuse_leftovers(plan.report(label, model), kept, needless=needless)
    plan.carry_out(model)
    return plan.report(label, model, is_done=True)


def _content(source: Source) -> tuple[Any, str]:
    if isinstance(source, Mapping):
        return source, "a state_dict"
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        return read_weights(path), path.name
    raise UsageError(
        f"weights are loaded from a path or a state_dict, got {type(source).__name__}. "
        "Of a model, pass model.state_dict()."
    )


def _refuse_meta(target: Mapping[str, Any]) -> None:
    for name, value in target.items():
        if isinstance(value, Tensor) and value.device.type == "meta":
            raise UsageError(
                f"{name} is on the meta device and has no memory. Call model.to_empty(device=...) first."
            )


def _chosen(patterns: str | Iterable[str], target: Mapping[str, Any], *, option: str) -> set[str]:
    found: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        names = matching(target, pattern)
        if not names:
            near = ", ".join(nearest(target, pattern)) or shortened(target)
            raise UsageError(f"{option}={pattern!r} is not a tensor of the model. It has {near}.")
        found.update(names)
    return found


@dataclass(kw_only=True)
class _Plan:
    """Which tensor of the file goes to which name of the model."""

    state: Mapping[str, Any]
    target: Mapping[str, Any]
    pairs: dict[str, str]
    """The name in the file, by the name in the model."""
    unused: dict[str, str]
    """Names in the file, with what they would be called in the model."""
    how: list[str]
    other_shapes: dict[str, str] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    """How many rows both have, of those that were asked to be resized."""

    def fits(self, name: str) -> bool:
        mine, given = self.target[name], self.state[self.pairs[name]]
        return getattr(mine, "shape", None) == getattr(given, "shape", None)

    def score(self) -> int:
        return sum(self.fits(name) for name in self.pairs)

    def fit(self, resizable: set[str]) -> None:
        """Take out the pairs of other shapes, except those to resize."""
        for name in [name for name in self.pairs if not self.fits(name)]:
            mine, given = self.target[name], self.state[self.pairs[name]]
            shapes = f"{_form(given)} in the file and {_form(mine)} in the model"
            if name not in resizable or not (isinstance(given, Tensor) and isinstance(mine, Tensor)):
                self.other_shapes[name] = shapes
                del self.pairs[name]
            elif mine.shape[1:] != given.shape[1:] or not (mine.dim() and given.dim()):
                raise UsageError(
                    f"{name} cannot be resized: it is {shapes}. Only the number of rows may differ."
                )
            else:
                self.rows[name] = min(len(mine), len(given))

    def refuse_untying(self) -> None:
        """A tied weight takes one value; torch would silently keep the last one that it is given."""
        first: dict[tuple[Any, ...], str] = {}
        for name, given in self.pairs.items():
            if not isinstance(self.target[name], Tensor):
                continue
            other = first.setdefault(place_of(self.target[name]), name)
            if not torch.equal(self.state[given], self.state[self.pairs[other]]):
                raise UsageError(
                    f"{other} and {name} are one weight in the model, and two different ones in the file. "
                    f"Untie them in the model, or load a state_dict without {self.pairs[other]} or {given}."
                )

    def left(self) -> list[str]:
        reached = {
            place_of(self.target[name]) for name in self.pairs if isinstance(self.target[name], Tensor)
        }
        return [
            name
            for name, value in self.target.items()
            if name not in self.pairs and not (isinstance(value, Tensor) and place_of(value) in reached)
        ]

    def carry_out(self, model: nn.Module) -> None:
        state = {name: self._value(name) for name in self.pairs}
        # Through the model's own method: it knows of extra state, of hooks and of parts on several devices.
        model.load_state_dict(state, strict=False)

    def _value(self, name: str) -> Any:
        given = self.state[self.pairs[name]]
        if name not in self.rows:
            return given
        whole = self.target[name].detach().clone()
        whole[: self.rows[name]] = given[: self.rows[name]].to(whole)
        return whole

    def report(self, source: str, model: nn.Module, *, is_done: bool = False) -> Loaded:
        left = self.left()
        tensors = {
            name: value
            for name, value in self.target.items()
            if isinstance(value, Tensor) and name not in left
        }
        memory = {place_of(value): stored_bytes(value) for value in tensors.values()}
        dtypes = Counter(
            f"{_short(self.state[given])} to {_short(self.target[name])}"
            for name, given in self.pairs.items()
            if isinstance(self.target[name], Tensor) and self.state[given].dtype != self.target[name].dtype
        )
        return Loaded(
            source=source,
            model=type(model).__name__,
            loaded=tuple(name for name in self.target if name not in left),
            renamed={given: name for name, given in self.pairs.items() if given != name},
            how=tuple(self.how),
            other_shapes=dict(self.other_shapes),
            unused=tuple(self.unused),
            left=tuple(left),
            resized={
                name: f"{rows} rows of the file's {len(self.state[self.pairs[name]])}, "
                f"the model has {len(self.target[name])}"
                for name, rows in self.rows.items()
            },
            converted=dict(dtypes),
            size_bytes=sum(memory.values()),
            digest=digest(sorted(tensors.items())) if is_done else "",
        )


def _form(value: Any) -> str:
    return str(list(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def _short(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _refuse_leftovers(report: Loaded, kept: set[str], *, needless: set[str]) -> None:
    """Raise unless all is covered; `needless` are the file's for buffers that the model makes itself."""
    missing = [name for name in report.left if name not in kept]
    unused = [name for name in report.unused if name not in needless]
    if not missing and not unused:
        return
    wrong = [f"{len(missing)} of the model's tensors get nothing"] if missing else []
    wrong += [f"{len(unused)} of the file's have no place"] if unused else []
    near = nearest(unused, missing[0]) if missing else []
    hints = [f"Is {near[0]} in the file meant for {missing[0]}? Then pass rename."] if near else []
    hints += ["Pass allow_missing=[patterns] for what the model should keep."] if missing else []
    hints += ["Pass partial=True to load what fits."]
    body = str(report).replace("loaded    ", "would load", 1).rpartition("\n")[0]
    raise UsageError("\n".join([f"{' and '.join(wrong)}. Nothing was loaded.", body, *hints]))


def _no_match(plan: _Plan, label: str) -> str:
    if plan.other_shapes:
        name, shapes = next(iter(plan.other_shapes.items()))
        return (
            f"no tensor of {label} fits: {name} is {shapes}. Make the model with the sizes it was saved with."
        )
    return (
        f"no tensor of {label} has a name of the model: the file has {shortened(list(plan.state), most=3)}; "
        f"the model has {shortened(list(plan.target), most=3)}. Pass rename={{'old.*': 'new.*'}}."
    )


def _best_plan(
    content: Any, target: Mapping[str, Any], *, rename: Mapping[str, str], key: str | None
) -> _Plan:
    states = dict(find_states(content))
    if key is not None:
        states = {name: state for name, state in states.items() if name == key}
    if not states:
        keys = [str(item) for item in content] if isinstance(content, Mapping) else [type(content).__name__]
        at = f" under {key!r}" if key is not None else ""
        raise UsageError(
            f"there are no tensors by name{at}. It holds {shortened([str(item) for item in keys])}."
        )
    plans: dict[str, _Plan] = {}
    failures: list[UsageError] = []
    for name, state in sorted(states.items(), key=lambda item: -len(item[1])):
        try:
            plans[name] = _plan(state, target, rename)
        except UsageError as error:  # rename is meant for one of the states only
            failures.append(error)
    if not plans:
        raise failures[0]
    best = max(plan.score() for plan in plans.values())
    names = [name for name, plan in plans.items() if plan.score() == best]
    usual = [name for name in ("", *_USUAL_KEYS) if name in names]
    if best and len(names) > 1 and not usual:
        raise UsageError(
            f"there are several states that fit: {', '.join(names)}. Pass key={names[0]!r} or another."
        )
    chosen = usual[0] if usual else names[0]
    if chosen:
        others = [name for name in names if name != chosen]
        also = f"; {shortened(others)} would fit too, pass key for it" if others and best else ""
        plans[chosen].how.insert(0, f"the weights are under {chosen!r}{also}")
    return plans[chosen]


def _plan(state: Mapping[str, Any], target: Mapping[str, Any], rename: Mapping[str, str]) -> _Plan:
    """Return the way of matching names that loads most; of equals, the one that changes least."""
    names = _renamed([str(name) for name in state], rename)
    options = [_matched(state, target, names, change=None, how="")]
    for change, how in _changes(list(names.values()), list(target)):
        options.append(_matched(state, target, names, change=change, how=how))
    return max(options, key=_Plan.score)


def _renamed(names: list[str], rename: Mapping[str, str]) -> dict[str, str]:
    result = {name: name for name in names}
    for old, new in rename.items():
        if old.count("*") < new.count("*"):
            raise UsageError(
                f"rename has {old!r}: {new!r}, which puts back more * than it takes. Use as many."
            )
        pattern = re.compile("(.*)".join(re.escape(part) for part in old.split("*")))
        hits = {name: match for name in names if (match := pattern.fullmatch(name))}
        if not hits:
            near = ", ".join(nearest(names, old)) or shortened(names)
            raise UsageError(f"rename has {old!r}, which is not a name in the file. It has {near}.")
        for name, match in hits.items():
            parts = iter(match.groups())
            result[name] = re.sub(r"\*", lambda _: next(parts), new)  # noqa: B023 - used at once
    return result


Change = Callable[[str], str]


def _changes(names: list[str], wanted: list[str]) -> Iterator[tuple[Change, str]]:
    """Yield ways to change the file's names: a wrapper's or a parent's name taken off, or put before."""
    if any("_orig_mod." in name for name in names):
        yield _stripped(""), "'_orig_mod.' of a compiled model was taken off"
        yield _stripped("module."), "'module.' and '_orig_mod.' were taken off"
    for prefix in _prefixes(names, depth=3):
        yield _stripped(prefix), f"the prefix {prefix!r} was taken off"
    for prefix in _prefixes(wanted, depth=2):
        yield prefix.__add__, f"the prefix {prefix!r} was put before"


def _stripped(prefix: str) -> Change:
    return lambda name: name.replace("_orig_mod.", "").removeprefix(prefix)


def _prefixes(names: Iterable[str], *, depth: int) -> list[str]:
    found: dict[str, None] = {}
    for name in names:
        parts = name.split(".")[:-1]
        for length in range(1, min(depth, len(parts)) + 1):
            found[".".join(parts[:length]) + "."] = None
    return sorted(found, key=len)


def _matched(
    state: Mapping[str, Any],
    target: Mapping[str, Any],
    names: Mapping[str, str],
    *,
    change: Change | None,
    how: str,
) -> _Plan:
    pairs: dict[str, str] = {}
    unused: dict[str, str] = {}
    for given, name in names.items():
        # A name that fits as it is stays, so that a prefix only ever adds.
        wanted = change(name) if change and name not in target else name
        if wanted not in target:
            unused[given] = wanted
        elif wanted in pairs:
            if change is None:
                both = f"{pairs[wanted]} and {given}"
                raise UsageError(f"{both} of the file would both be {wanted} in the model. Change rename.")
            unused[given] = wanted
        else:
            pairs[wanted] = given
    return _Plan(state=state, target=target, pairs=pairs, unused=unused, how=[how] if how else [])
