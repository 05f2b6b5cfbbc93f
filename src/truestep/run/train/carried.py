"""State that one lane leaves to the next: with it, results depend on which process computes which lanes.

Owns what is looked at around a lane: buffers, parameters that nothing trains, attributes of modules, and what
else is tracked. BatchNorm's statistics are `norms`'.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from truestep.base.bits import digest, tensors_in, witness
from truestep.errors import UsageError
from truestep.run.checkpoint import pack
from truestep.run.train.gradients import local

_FIRST_LOOKS = 4
_NO_TENSOR = ""
_MANY_ELEMENTS = 1 << 20
_ADVICE = (
    "Its value then depends on which lanes a process runs. Run on one process, or change it after "
    "`for batch in step:`, once per step, from values that all processes share."
)


class _Bits(NamedTuple):
    form: tuple[Any, ...]
    value: str


class CarriedState:
    """Refuses state that lanes change, by name. Only for several processes: on one it does no harm.

    Buffers other than BatchNorm's, and parameters that nothing trains, are looked at in every lane; all else
    in the first four, and then in each lane whose number is a power of two. An attribute of a module (a
    float, a tensor, a tuple of them) is refused where one lane changes it and the next one reads what was
    left; one that is only overwritten passes. Whole numbers pass too, as counters, and so do attributes in
    lists, dicts and objects of the script, and variables outside of modules: what depends on those is not
    found. Neither are attributes of a compiled model.
    """

    def __init__(self, tracked: Mapping[str, Any]) -> None:
        optimizers = [item for item in tracked.values() if isinstance(item, Optimizer)]
        trained = {id(item) for one in optimizers for group in one.param_groups for item in group["params"]}
        modules = [item for item in tracked.values() if isinstance(item, nn.Module)]
        named = [(path, part) for module in modules for path, part in module.named_modules()]
        self._tensors = _Tensors(named, trained)
        self._others = {
            name: item for name, item in tracked.items() if not isinstance(item, nn.Module | Optimizer)
        }
        self._attributes = _Attributes(named)
        self._num_lanes = 0
        self._is_look = False
        self._before: dict[str, Any] = {}

    def begin(self, *, is_look: bool = False) -> None:
        """Remember what a lane may change; `is_look` looks at all of it, whatever the lane's number is."""
        self._num_lanes = number = self._num_lanes + 1
        self._is_look = is_look or number <= _FIRST_LOOKS or not number & (number - 1)
        self._tensors.begin(is_look=self._is_look)
        self._attributes.begin(is_look=self._is_look)
        if self._is_look:
            self._before = self._states()

    def check(self) -> None:
        """Refuse what changed since `begin`."""
        read = self._attributes.end(is_look=self._is_look)
        changed = self._tensors.end(is_look=self._is_look)
        if read:
            raise UsageError(
                f"a lane changes the {read[0]}, and the next lane reads what it left. {_ADVICE} If nothing "
                f"that is trained on depends on it, keep it outside of the module."
            )
        if self._is_look:
            before, self._before = self._before, {}
            changed += [name for name, bits in self._states().items() if bits != before.get(name, bits)]
        if changed:
            raise UsageError(f"the {changed[0]} changes inside a lane. {_ADVICE}")

    def _states(self) -> dict[str, Any]:
        found = state_hashes({name: item.state_dict() for name, item in self._others.items()})
        return {f"tracked state {key}": value for key, value in found.items()}


class _Tensors:
    """Finds tensors of modules whose values a lane changes.

    A buffer that forward makes for the first time (a cache of positions) passes; so does one that is written
    with the bits it had. All bits are compared where there is a look: some kernels, and writes to `.data`, do
    not raise torch's count of writes. In other lanes that count shows which forward begins to write.
    """

    def __init__(self, named: list[tuple[str, nn.Module]], trained: set[int]) -> None:
        self._places = [
            (f"{kind} {_named(path, key, part)}{more}", tensors, key)
            for path, part in named
            for kind, tensors, more in (
                ("buffer", {} if isinstance(part, _BatchNorm) else part._buffers, ""),
                ("parameter", part._parameters, ", which no tracked optimizer updates,"),
            )
            for key, tensor in tensors.items()
            if id(tensor) not in trained and not (kind == "parameter" and tensor is None)
        ]
        self._seen: list[tuple[torch.Tensor | None, int]] = [(None, 0)] * len(self._places)
        self._bits: list[str | None] = [_NO_TENSOR] * len(self._places)
        """As a lane begins; None where they are not known."""
        self._written: set[int] = set()
        """Those that forward writes: their bits are compared in every lane."""

    def begin(self, *, is_look: bool) -> None:
        """Remember the bits of those that forward writes; of all where there is a look."""
        for index in self._moved(is_look=is_look):
            self._bits[index] = self._digest(index) if is_look or index in self._written else None

    def end(self, *, is_look: bool) -> list[str]:
        """Return the names of those that have changed since `begin`."""
        changed, moved = [], self._moved(is_look=False)
        for index in range(len(self._places)) if is_look else moved:
            before, self._bits[index] = self._bits[index], self._digest(index)
            if before not in (_NO_TENSOR, self._bits[index]):
                changed.append(self._places[index][0])
        self._written.update(moved)
        return changed

    def _moved(self, *, is_look: bool) -> list[int]:
        """Return which were written or replaced since the last time, or all."""
        moved = []
        for index, (_, tensors, key) in enumerate(self._places):
            tensor = tensors.get(key)
            now = 0 if tensor is None or tensor.is_inference() else tensor._version
            former, version = self._seen[index]
            if is_look or tensor is not former or now != version:
                self._seen[index] = tensor, now
                moved.append(index)
        return moved

    def _digest(self, index: int) -> str:
        tensor = self._seen[index][0]
        return _NO_TENSOR if tensor is None else _bits(tensor)


class _Attributes:
    """Finds attributes of modules which one lane changes and the next one reads before it sets them."""

    def __init__(self, named: list[tuple[str, nn.Module]]) -> None:
        self._parts = [(path, part) for path, part in named if part._compiled_call_impl is None]
        self._before: dict[tuple[int, str], _Bits] = {}
        self._left: dict[tuple[int, str], tuple[str, nn.Module, Any, _Bits]] = {}
        """For each attribute that the lane before changed: name, module, what was left, and its bits."""
        self._read: set[str] = set()

    def begin(self, *, is_look: bool) -> None:
        left = {
            key: item
            for key, item in self._left.items()
            if vars(item[1]).get(key[1]) is item[2] and _bits_in(item[2]) == item[3]
        }
        self._left, self._read = {}, set()
        if left:
            self._record_reads(left)
        if is_look:
            self._before = {(id(part), key): bits for _, part, key, _, bits in self._all()}

    def end(self, *, is_look: bool) -> list[str]:
        if "__getattribute__" in vars(nn.Module):
            del nn.Module.__getattribute__
        if is_look:
            for path, part, key, value, bits in self._all():
                former = self._before.get((id(part), key))
                if former is not None and former.form == bits.form and former.value != bits.value:
                    name = f"attribute {_named(path, key, part)}"
                    self._left[id(part), key] = name, part, value, bits
            self._before = {}
        return sorted(self._read)

    def _all(self) -> Iterator[tuple[str, nn.Module, str, Any, _Bits]]:
        for path, part in self._parts:
            for key, value in vars(part).items():
                if isinstance(value, float | complex | tuple | torch.Tensor | numpy.ndarray | numpy.generic):
                    bits = _bits_in(value)
                    if bits.form:
                        yield path, part, key, value, bits

    def _record_reads(self, left: Mapping[tuple[int, str], Any]) -> None:
        """Note reads of what the lane before left, until the lane ends."""
        read = self._read

        def get(part: nn.Module, name: str) -> Any:
            value = object.__getattribute__(part, name)
            item = left.get((id(part), name))
            if item is not None and item[2] is value:
                read.add(item[0])
            return value

        nn.Module.__getattribute__ = get  # type: ignore[method-assign, assignment]


def state_hashes(states: Mapping[str, Any]) -> dict[str, Any]:
    """Return a hash of every tensor that all processes hold alike, and all the rest of each state.

    >>> sorted(state_hashes({"meter": {"rate": 0.1, "mean": torch.zeros(2)}}))
    ['meter', 'meter.mean']
    """
    found: dict[str, Any] = {}
    for name, state in states.items():
        packed = pack(state)
        found |= {
            f"{name}.{path}": witness([tensor])
            for path, tensor in packed.tensors.items()
            if path not in packed.parts
        }
        found[name] = witness_of_text(str(packed.structure))
    return found


def witness_of_text(text: str) -> int:
    """Return 63 bits for a text."""
    return int(digest([(text, torch.empty(0))])[:15], 16)


def _named(path: str, key: str, part: nn.Module) -> str:
    return f"{f'{path}.{key}'.lstrip('.')} of {type(part).__name__}"


def _bits_in(value: Any) -> _Bits:
    """Return the bits of all numbers in a value that are no counters."""
    found = [
        tensor
        for _, tensor in tensors_in(value)
        if not tensor.is_meta and (tensor.numel() > 1 or tensor.is_floating_point() or tensor.is_complex())
    ]
    return _Bits(tuple((tuple(item.shape), item.dtype) for item in found), "".join(map(_bits, found)))


def _bits(tensor: torch.Tensor) -> str:
    own = local(tensor.detach())
    return digest([("", own)]) if own.numel() < _MANY_ELEMENTS else str(witness([own]))
