"""The digest chain: for each step of an optimizer, digests of what went in and what came out.

Owns what is hashed at which moment. Written at once, so that a kill loses nothing that was reached.
"""

import hashlib
import json
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from truestep.watch.digests.fold import fold, fold_nest
from truestep.watch.digests.keeping import find_kept, find_stored
from truestep.watch.digests.reach import IN_SET, Found, Kept, memory_of
from truestep.watch.digests.sketch import sketch
from truestep.watch.evidence.kinds import UNREAD
from truestep.watch.hooks.seeds import states
from truestep.watch.script import module_tree
from truestep.watch.script.loop_bounds import expected_steps
from truestep.watch.script.nested_tensors import Leaf, no_user_overrides, walk
from truestep.watch.script.refs import Ref
from truestep.watch.script.tape import Tape

Named = list[tuple[str, Leaf]]
_LARGE = 1 << 18
"""Elements from which on a kept tensor is read again if torch has counted a change, or in turn."""
_SKETCHED = ("gradients", "weights")
_MAX_READ = 1 << 24
"""How many elements of such tensors are read in a step though torch has counted no change."""


class Chain:
    """Gathers the digests of a step; each `close_update` writes one line."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._wanted = frozenset(tape.plan.digests)
        self._names: dict[int, tuple[str, weakref.ref[Tensor]]] = {}
        self._models: dict[int, nn.Module] = {}
        self._known: set[int] = set()
        self._parts: dict[str, Any] = {}
        self._met: set[int] = set()
        self._before: dict[int, str | list[Tensor]] = {}
        self._fold: Callable[[Any], str] = _fold_unnamed if tape.plan.portable else fold
        self._chain = ""
        self._variables: set[str] = set()
        self._at_end: dict[str, str] = {}
        self._is_reported = False
        self._large: dict[int, tuple[weakref.ref[Tensor], Any, str]] = {}
        if "kept" in self._wanted:
            tape.listen(counted=self._count, ending=self._end, closing=self._close)

    def take_batch(self, batch: Any) -> None:
        """A loader has handed out a batch."""
        if "batch" in self._wanted:
            self._parts.setdefault("batch", []).append(self._try(fold_nest, batch))

    def take_inputs(self, module: nn.Module, inputs: Any) -> None:
        """An outermost module is about to be called."""
        number = self._tape.number("model", module)
        if number not in self._known:
            self._known.add(number)
            try:
                self._meet(module, number)
            except Exception as error:  # noqa: BLE001 - a module of the user's may list anything; written down
                self._report(error)
        self._models[number] = module
        if "inputs" in self._wanted:
            self._parts.setdefault("inputs", []).append(self._try(fold_nest, inputs))

    def take_losses(self, losses: tuple[Any, ...]) -> None:
        """A backward pass begins at these."""
        if "loss" not in self._wanted:
            return
        for loss in losses:
            if isinstance(loss, Tensor):
                self._parts.setdefault("loss", []).append([_value(loss), self._try(fold, [("", loss)])])

    def take_before(self, optimizer: Optimizer, number: int, *, has_closure: bool) -> None:
        """An optimizer is about to make a step: the first time, keep how its parameters are before it."""
        if number in self._met or "weights" not in self._wanted:
            return
        self._met.add(number)
        named = self._parameters(optimizer)
        if not has_closure:
            self._before[number] = self._try(self._fold, named)
        elif not any(nn.parameter.is_lazy(item) for _, item in named):
            # The closure calls the model, and with the model come the names that the digest is made with.
            self._before[number] = [item.detach().clone() for _, item in named]

    def take_gradients(self, optimizer: Optimizer) -> None:
        """An optimizer is about to use its gradients, or has just used them if a closure makes them."""
        self._take("gradients", lambda: [(name, item.grad) for name, item in self._parameters(optimizer)])

    def close_update(self, optimizer: Optimizer, number: int, *, site: int) -> None:
        """A step has been made."""
        self._take("weights", lambda: self._parameters(optimizer))
        self._take("state", lambda: self._state(optimizer))
        self._take("buffers", self._buffers)
        if (
            "buffers" in self._wanted
        ):  # by model: a resumed run may not have called all of them before its step
            self._parts["buffers"] = {
                str(number): self._try(self._fold, self._buffers_of(number)) for number in self._models
            }
        if "generators" in self._wanted:
            self._parts["generators"] = generator_digests()
        if "kept" in self._wanted:
            called: dict[str, Any] = {f"model {place}": model for place, model in self._models.items()}
            called[f"optimizer {number}"] = optimizer
            self._take_kept(called)
        self._parts["settings"] = self._try(fold, settings_of(optimizer))
        self._chain = _digest_text(self._chain + json.dumps(self._parts))
        others: dict[str, Any] = {}
        if number in self._before:
            others["before"] = self._fold_before(optimizer, number)
        step = self._tape.num_steps
        self._tape.write(
            "update", step=step, optimizer=number, site=site, **self._parts, **others, chain=self._chain
        )
        self._parts = {}
        self._models.clear()

    def digests_of_stored(self, gather: Callable[[], Any]) -> dict[str, str] | None:
        """Return digests of what is about to be saved, by name."""
        if "kept" not in self._wanted:
            return None
        try:
            return self._digests_of(find_stored(gather()))
        except Exception as error:  # noqa: BLE001 - an object of the user's may be anything; written down
            self._report(error)
            return None

    def _alive_optimizers(self) -> dict[int, Optimizer]:
        kept = list(self._tape.things("optimizer").values())
        found = {number: item() if isinstance(item, weakref.ref) else item for number, item in kept}
        return {number: item for number, item in found.items() if item is not None}

    def _find_kept(self, *, turn: int | None, others: dict[str, Any] | None = None) -> Found:
        """Return what the script keeps; of long containers, what the turn brings."""
        try:
            return find_kept(self._tape.sites, others=others or {}, turn=turn)
        except Exception as error:  # noqa: BLE001 - as above
            self._report(error)
            return {}

    def _without_owned(self, found: Found) -> Found:
        """Leave out what optimizers own, also by another name: that is compared with each of their steps.

        A `state_dict()` shares the memory of the weights, one that was loaded from a file does not.
        """
        owned: set[object] = set()
        with torch._C.DisableTorchFunctionSubclass():
            for optimizer in self._alive_optimizers().values():
                owned |= {memory_of(item) for _, item in self._parameters(optimizer)}
                owned |= {memory_of(item) for _, item in self._state(optimizer) if isinstance(item, Tensor)}
            left = {
                name: [item for item in items if memory_of(item) not in owned]
                for name, items in found.items()
            }
        return {name: items for name, items in left.items() if items}

    def _take_kept(self, others: dict[str, Any]) -> None:
        found = self._find_kept(turn=self._tape.num_steps, others=others)
        self._variables = {name.partition(".")[0] for name in found}
        kept = self._without_owned(found)
        self._parts["kept"] = self._digests_of(kept, due=self._due(kept))

    def _digests_of(self, found: Found, *, due: set[int] | None = None) -> dict[str, str]:
        """Return a digest for each name. Of large tensors those that are due are read, or all."""
        with torch._C.DisableTorchFunctionSubclass():  # a class of the user's must not notice
            return {name: self._try(self._joint_digest, (name, items, due)) for name, items in found.items()}

    def _due(self, found: Found) -> set[int]:
        """Return the large tensors that are read again though torch has counted no change: some each time."""
        with torch._C.DisableTorchFunctionSubclass():
            large = {id(item): _numel(item) for items in found.values() for item in items}
        due: set[int] = set()
        num_elements = 0
        self._large = {key: known for key, known in self._large.items() if key in large}
        for key in self._large:  # unread for the longest time first
            num_elements += large[key]
            if due and num_elements > _MAX_READ:
                break
            due.add(key)
        return due

    def _joint_digest(self, given: tuple[str, list[Kept], set[int] | None]) -> str:
        name, items, due = given
        digests = [self._digest_of(item, is_due=due is None or id(item) in due) for item in items]
        if len(digests) == 1:
            return digests[0]
        return _digest_text(sorted(digests) if IN_SET in name else digests)

    def _digest_of(self, item: Kept, *, is_due: bool) -> str:
        if not isinstance(item, Tensor):
            return fold([("", f"{item.dtype}{item.shape}"), ("", item.tobytes())])
        if _numel(item) < _LARGE or item.is_inference():
            return fold([("", item)])
        known, now = self._large.get(id(item)), (item._version, item.shape)
        if is_due or known is None or known[0]() is not item or known[1] != now:
            self._large.pop(id(item), None)  # to the end of those that wait for their turn
            known = self._large[id(item)] = (Ref(item), now, fold([("", item)]))
        return known[2]

    def _digests_at_end(self) -> dict[str, str]:
        """Return digests of what the script kept in its last step and still has, every tensor read again."""
        found = self._find_kept(turn=None).items()
        digests = self._digests_of(
            {name: it for name, it in found if name.partition(".")[0] in self._variables}
        )
        for number, optimizer in self._alive_optimizers().items():
            parts_at_end = (
                ("weights", self._parameters),
                ("state", self._state),
                ("settings", settings_of),  # a scheduler has changed them since the step
            )
            for part, gather in parts_at_end:
                digests[f"optimizer {number}: {part}"] = self._try(_fold_all, (gather, optimizer))
        return digests

    def _count(self) -> None:
        """A step was made: if it is the last that is wanted, write how many there would be."""
        if self._tape.is_over and not self._is_reported:
            self._is_reported = True
            self._tape.write("expected", total=expected_steps(self._tape.sites))

    def _end(self) -> None:
        """The script is about to be ended: functions still have their variables."""
        self._at_end = self._digests_at_end()

    def _close(self) -> None:
        """The script is over: write what was found at its end, and what its modules still hold."""
        self._tape.write("kept", digests={**self._at_end, **self._digests_at_end()})

    def _fold_before(self, optimizer: Optimizer, number: int) -> str:
        before = self._before.pop(number)
        if isinstance(before, str):
            return before
        names = [name for name, _ in self._parameters(optimizer)]
        return self._try(self._fold, list(zip(names, before, strict=False)))

    def _take(self, part: str, gather: Callable[[], Any]) -> None:
        if part not in self._wanted:
            return
        try:
            named = gather()
        except Exception as error:  # noqa: BLE001 - an optimizer of the user's may keep anything; written down
            self._parts[part] = self._report(error)
            return
        self._parts[part] = self._try(self._fold, named)
        if self._tape.plan.portable and part in _SKETCHED:
            self._parts.setdefault("sketch", {})[part] = sketch(named)

    def _try(self, digest: Callable[[Any], str], value: Any) -> str:
        """Return a digest; a kind of tensor that cannot be read must not end the script, and is told."""
        try:
            return digest(value)
        except Exception as error:  # noqa: BLE001 - written down
            return self._report(error)

    def _report(self, error: Exception) -> str:
        self._tape.note_trouble(UNREAD, error)
        return f"unreadable: {type(error).__name__}"

    def _meet(self, module: nn.Module, number: int) -> None:
        """Remember the names of the parameters."""
        for name, item in module_tree.named_parameters(module):
            if self._name_of(item) is None:
                self._names[id(item)] = (name if not number else f"{number}.{name}", Ref(item))

    def _parameters(self, optimizer: Optimizer) -> list[tuple[str, Tensor]]:
        return [
            (self._name_of(item) or f"group {place}.{index}", item)
            for place, group in enumerate(optimizer.param_groups)
            for index, item in enumerate(group["params"])
        ]

    def _state(self, optimizer: Optimizer) -> Named:
        return list(_walk_state(optimizer, self._parameters(optimizer)))

    def _name_of(self, item: Tensor) -> str | None:
        """Return a parameter's name. Another one that is gone may have had its id."""
        name, kept = self._names.get(id(item), (None, None))
        return name if kept is not None and kept() is item else None

    def _buffers(self) -> Named:
        return [item for number in self._models for item in self._buffers_of(number)]

    def _buffers_of(self, number: int) -> Named:
        return [(f"{number}.{name}", item) for name, item in module_tree.named_buffers(self._models[number])]


def _value(loss: Tensor) -> str | None:
    """Return a loss to the last bit; None for one that is no single number, or has none, as on `meta`."""
    try:
        with no_user_overrides():
            return float(loss.detach().item()).hex()
    except Exception:  # noqa: BLE001 - its digest says the same, or is written down
        return None


def _fold_unnamed(named: Named) -> str:
    """Return a digest that depends neither on names nor on the order of tensors."""
    return _digest_text(sorted(fold([("", leaf)]) for _, leaf in named))


def _fold_all(given: tuple[Callable[[Optimizer], Any], Optimizer]) -> str:
    gather, optimizer = given
    return fold(gather(optimizer))


def generator_digests() -> dict[str, str]:
    """Return a digest of the state of each global generator in use."""
    return {name: _digest_text(state) for name, state in states().items()}


def _numel(item: Kept) -> int:
    return item.numel() if isinstance(item, Tensor) else item.size


def _walk_state(optimizer: Optimizer, parameters: list[tuple[str, Tensor]]) -> Iterator[tuple[str, Leaf]]:
    for name, item in parameters:
        # Asked with `in`: the state makes an entry for whatever is asked for otherwise.
        if item in optimizer.state:
            entry = optimizer.state[item]
            entries = entry if isinstance(entry, dict) else {"": entry}  # an optimizer of the user's
            for key in sorted(entries, key=str):
                yield from walk(entries[key], f"{name}.{key}")


def _digest_text(value: Any) -> str:
    raw = value if isinstance(value, bytes) else repr(value).encode()
    return hashlib.sha256(raw).hexdigest()[:16]


def settings_of(optimizer: Optimizer) -> list[tuple[str, Any]]:
    """Return what is set for each group. What is off is left out: another torch may not know the name."""
    found = []
    for place, group in enumerate(optimizer.param_groups):
        told = {key: group[key] for key in sorted(group, key=str) if key != "params"}
        on = {key: value for key, value in told.items() if value is not None and value is not False}
        found += [(f"{place}.{key}", leaf) for key, leaf in walk(on)]
    return found
