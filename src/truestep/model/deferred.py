"""Models built on the meta device: their tensors get memory and values here, one module at a time.

Owns which module fills which tensor, under which seed, and that none is left without values. Leaves to the
caller what is kept of a full tensor: all of it, or this process's part.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from truestep.base import rng
from truestep.errors import UsageError

VERSION = 1
"""Part of the recipe: raise it when the same seed would fill a model with other values."""

Init: TypeAlias = Callable[[nn.Module], object]
Keep: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Given what stands in the model now, its values not set, and the full tensor: what is to stand there."""

_RESETS = ("reset_parameters", "_reset_parameters")
"""torch's own convention; its attention and nn.Transformer have the second spelling."""


class Place(NamedTuple):
    """Where a tensor stands in a model."""

    name: str
    """Of the module."""
    module: nn.Module
    key: str

    def __str__(self) -> str:
        return f"{self.name}.{self.key}".removeprefix(".")

    def get(self) -> Tensor:
        """Return what stands there now."""
        found = self.module._parameters.get(self.key)
        tensor = found if found is not None else self.module._buffers[self.key]
        assert tensor is not None
        return tensor

    def put(self, value: Tensor) -> None:
        """Let a tensor stand there. By attribute: recurrent layers keep a second list of their weights."""
        setattr(self.module, self.key, value)


class Blank(NamedTuple):
    """A tensor without values, and all places where it stands: the module of the first one fills it."""

    like: Tensor
    places: list[Place]

    def make(self) -> Tensor:
        """Return memory for it on the CPU, marked as not filled."""
        full = _empty_like(self.like)
        marker = _marker(full.dtype)
        if marker is not None:
            full.fill_(marker)
        return _as(self.like, full)

    def put(self, value: Tensor) -> None:
        """Let a tensor stand in all its places: tied weights stay tied."""
        for place in self.places:
            place.put(value)


class Filler(NamedTuple):
    """A module whose initialisation runs, and where it finds tensors that it is not to change."""

    name: str
    module: nn.Module
    borrowed: list[tuple[Place, Blank | None]]
    """With the blank that stands there, or None for a tensor that had values from the beginning."""


@dataclass(frozen=True, kw_only=True)
class Portion:
    """What is made in full at one time: one module's tensors, with those below it that it fills too."""

    blanks: list[Blank]
    fillers: list[Filler]
    """In the order in which they run: children before parents."""


class Writes(TorchDispatchMode):
    """Notes which memory operations write to."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.memory: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        names = [item.name for item in func._schema.arguments]
        given = dict(zip(names, args, strict=False)) | (kwargs or {})
        for item in func._schema.arguments:
            if item.alias_info is not None and item.alias_info.is_write:
                value = given.get(item.name)
                written = value if isinstance(value, list | tuple) else [value]
                self.memory |= {_memory(tensor) for tensor in written if isinstance(tensor, Tensor)}
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True, kw_only=True)
class Deferred:
    """A model without values, and who fills what."""

    portions: list[Portion]
    init: Init | None

    def __str__(self) -> str:
        """How it is filled, in the few words that the recipe keeps."""
        name = getattr(self.init, "__qualname__", type(self.init).__name__)
        return f"meta {VERSION}: reset_parameters" + (f", then {name}" if self.init is not None else "")

    def fill(self, *, seed: int, number: int, keep: Keep) -> None:
        """Give every tensor its values: the same for one seed and number, whatever is kept of them.

        `number` tells the models of one run apart. Afterwards the global generators stand where they stood.
        """
        with rng.kept_generators():
            for portion in self.portions:
                _fill(portion, partial(_run, portion, seed=seed, number=number, init=self.init), keep)


def plan(model: nn.Module, *, init: Init | None = None) -> Deferred:
    """Look at a model, or what of it is on the meta device; do so before it is sharded.

    A module fills its own tensors by `reset_parameters()`, then by `init(module)`. Both are tried first,
    with nothing computed, to see whether a module also fills tensors below it: those are made together. A
    tensor that nobody fills is refused.
    """
    blanks = _blanks(model)
    names = {module: name for name, module in model.named_modules()}
    reach = _reaches(model, init, blanks)
    order = {module: index for index, module in enumerate(_children_first(model))}
    owned: dict[nn.Module, list[Blank]] = {}
    for blank in blanks.values():
        owned.setdefault(blank.places[0].module, []).append(blank)
    portions = []
    for group in _groups(names, reach, blanks):
        modules = sorted(group, key=order.__getitem__)
        own = [blank for module in modules for blank in owned.get(module, [])]
        if own:
            _check_reached(own, set().union(*(reach[module] for module in modules)), init)
            fillers = [
                Filler(names[module], module, _borrowed(module, reach[module], own, blanks))
                for module in modules
                if reach[module]
            ]
            portions.append(Portion(blanks=own, fillers=fillers))
    return Deferred(portions=portions, init=init)


def _fill(portion: Portion, run: Callable[[], set[int]], keep: Keep) -> None:
    """Fill one portion; when this returns, nothing holds its full tensors any more."""
    former = [blank.places[0].get().detach() for blank in portion.blanks]
    made = [blank.make() for blank in portion.blanks]
    memory = [_memory(tensor) for tensor in made]
    for blank, tensor in zip(portion.blanks, made, strict=True):
        blank.put(tensor)
    written = run()
    for blank, tensor, key, current in zip(portion.blanks, made, memory, former, strict=True):
        full = blank.places[0].get()
        is_written = full is not tensor or _memory(full) != key or key in written
        _check_filled(blank, full.detach(), is_written=is_written)
        value = _as(blank.like, keep(current, full.detach()))
        for name, noted in vars(blank.like).items():  # what somebody wrote on the parameter
            setattr(value, name, noted)
        blank.put(value)


def _run(portion: Portion, *, seed: int, number: int, init: Init | None) -> set[int]:
    """Let the modules of a portion initialise themselves; return the memory that was written to."""
    writes = Writes()
    for name, module, borrowed in portion.fillers:
        rng.Seeds(seed, f"initialise {name}").set(number)
        lent = [
            (place, _as(place.get(), place.get().detach().clone()) if blank is None else blank.make())
            for place, blank in borrowed
        ]
        with _standing_in(lent), torch.no_grad(), torch.device("cpu"), writes:
            for act in _acts(module, init):
                act()
    return writes.memory


def _blanks(model: nn.Module) -> dict[int, Blank]:
    """Return the tensors without values by their memory; two of the same memory are one, tied."""
    blanks: dict[int, Blank] = {}
    for name, module in model.named_modules():
        for place in _places(name, module):
            tensor = place.get()
            if not tensor.is_meta:
                continue
            blank = blanks.setdefault(_memory(tensor), Blank(tensor, []))
            if blank.like is not tensor:
                raise UsageError(
                    f"{place} and {blank.places[0]} share memory, but are two tensors: on the meta device "
                    f"that cannot be kept. Let both names stand for one parameter."
                )
            blank.places.append(place)
    return blanks


def _places(name: str, module: nn.Module) -> Iterator[Place]:
    """Yield where tensors stand in a module itself, not in those below it."""
    for key, tensor in (*module._parameters.items(), *module._buffers.items()):
        if tensor is not None:
            yield Place(name, module, key)


def _acts(module: nn.Module, init: Init | None) -> list[Callable[[], object]]:
    """Return what initialises a module, in order: torch's convention first, as when it is constructed."""
    found = [getattr(module, name) for name in _RESETS if callable(getattr(module, name, None))]
    return [*found[:1], *([] if init is None else [partial(init, module)])]


def _reaches(model: nn.Module, init: Init | None, blanks: Mapping[int, Blank]) -> dict[nn.Module, set[int]]:
    """Return for each module which blanks its initialisation fills, found out without computing anything."""
    places = [place for name, module in model.named_modules() for place in _places(name, module)]
    # Not on the meta device itself: some of torch's functions do nothing there.
    pretence = FakeTensorMode(allow_non_fake_inputs=True)
    with pretence:
        doubles = {id(place.get()): _as(place.get(), _empty_like(place.get())) for place in places}
    keys = {_memory(doubles[id(blank.like)]): key for key, blank in blanks.items()}
    reaches = {}
    with _standing_in([(place, doubles[id(place.get())]) for place in places]), rng.kept_generators():
        for module in model.modules():
            written = _try(module, init, pretence)
            reaches[module] = {keys[memory] for memory in written if memory in keys}
    return reaches


def _try(module: nn.Module, init: Init | None, pretence: FakeTensorMode) -> set[int]:
    """Let a module initialise tensors that only pretend; return the memory that would be written to."""
    acts = _acts(module, init)
    if not acts:
        return set()
    places = [place for part in module.modules() for place in _places("", part)]
    before = [(place, place.get(), place.get().data) for place in places]
    writes = Writes()
    try:
        with pretence, torch.no_grad(), torch.device("cpu"), writes:
            for act in acts:
                act()
    except Exception:  # noqa: BLE001 - somebody else's code, which needs values: it may fill everything
        writes.memory |= {_memory(data) for _, _, data in before}
    for place, tensor, data in before:
        if place.get() is not tensor or _memory(tensor) != _memory(data):  # another one was put there
            writes.memory.add(_memory(data))
            tensor.data = data
            place.put(tensor)
    return writes.memory


def _groups(
    names: Mapping[nn.Module, str], reach: Mapping[nn.Module, set[int]], blanks: Mapping[int, Blank]
) -> list[set[nn.Module]]:
    """Put together the modules that fill the same tensors, directly or by way of others."""
    group_of = {module: {module} for module in names}
    for module, name in names.items():
        for key in sorted(reach[module]):
            _check_below(name, module, blanks[key])
            # One that only shares a tied tensor does not count: the first place's module fills it.
            if all(place.module is not module for place in blanks[key].places):
                joined = group_of[module] | group_of[blanks[key].places[0].module]
                group_of |= dict.fromkeys(joined, joined)
    return list({id(group): group for group in group_of.values()}.values())


def _check_below(name: str, module: nn.Module, blank: Blank) -> None:
    below = set(module.modules())
    if not any(place.module in below for place in blank.places):
        raise UsageError(
            f"the initialisation of {name or 'the model'} fills {blank.places[0]}, which is not below it. "
            f"Let each module fill its own tensors and those below it."
        )


def _children_first(module: nn.Module) -> Iterator[nn.Module]:
    for child in module.children():
        yield from _children_first(child)
    yield module


def _borrowed(
    module: nn.Module, reach: set[int], own: list[Blank], blanks: Mapping[int, Blank]
) -> list[tuple[Place, Blank | None]]:
    """Return where tensors stand that have values already, or that another module fills: tied ones."""
    firsts = {(place.module, place.key) for blank in own for place in blank.places[:1]}
    borrowed: list[tuple[Place, Blank | None]] = []
    for place in (place for part in module.modules() for place in _places("", part)):
        blank = blanks.get(_memory(place.get()))
        is_filled = blank is not None and _memory(blank.like) in reach
        if blank is None or (is_filled and (place.module, place.key) not in firsts):
            borrowed.append((place, blank))
    return borrowed


@contextmanager
def _standing_in(pairs: list[tuple[Place, Tensor]]) -> Iterator[None]:
    """Let other tensors stand in places for a while."""
    former = [(place, place.get()) for place, _ in pairs]
    for place, tensor in pairs:
        place.put(tensor)
    try:
        yield
    finally:
        for place, tensor in former:
            place.put(tensor)


def _check_reached(blanks: list[Blank], reached: set[int], init: Init | None) -> None:
    for blank in blanks:
        if _memory(blank.like) in reached:
            continue
        place = blank.places[0]
        why = "does not fill it" if _acts(place.module, init) else "has no reset_parameters()"
        raise UsageError(
            f"{place} has no values: the model was built on the meta device, and "
            f"{type(place.module).__name__} {why}. Give it a reset_parameters() that fills all its "
            f"tensors, or pass init= to run.place, a function that fills those of a module (Hugging Face: "
            f"init=model._init_weights)."
        )


def _check_filled(blank: Blank, full: Tensor, *, is_written: bool) -> None:
    place = blank.places[0]
    if full.shape != blank.like.shape or full.dtype != blank.like.dtype:
        raise UsageError(
            f"{place} was built as {tuple(blank.like.shape)} {blank.like.dtype}, and its initialisation made "
            f"{tuple(full.shape)} {full.dtype} of it. Fill the tensor in place instead."
        )
    marker = _marker(full.dtype)
    num_unset = 0 if is_written else full.numel()
    if is_written and marker is not None:
        num_unset = int((full == marker if isinstance(marker, int) else full.isnan()).sum())
    if num_unset:
        raise UsageError(
            f"the initialisation of {type(place.module).__name__} left {num_unset:,} of {full.numel():,} "
            f"values of {place} unset, or made them NaN. Let reset_parameters() or init= fill all of it."
        )


def _marker(dtype: torch.dtype) -> float | int | None:
    """Return a value that no initialisation gives; None for types that have no such value to spare."""
    if (dtype.is_floating_point and dtype.itemsize > 1) or dtype.is_complex:
        return float("nan")
    is_signed = not dtype.is_floating_point and dtype.is_signed
    return torch.iinfo(dtype).min if is_signed else None


def _as(like: Tensor, value: Tensor) -> Tensor:
    """Return a tensor as a parameter if the other one is."""
    if not isinstance(like, nn.Parameter):
        return value
    return nn.Parameter(value, requires_grad=like.requires_grad)


def _empty_like(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")


def _memory(tensor: Tensor) -> int:
    """Return the identity of a tensor's memory, which a tensor without values has too."""
    return int(tensor.untyped_storage()._cdata)
