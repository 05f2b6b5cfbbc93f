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

from truestep.watch import parts
from truestep.watch.digests import fold, fold_nest
from truestep.watch.keeping import Kept, find_kept, find_stored
from truestep.watch.leaves import Leaf, among_ourselves, walk
from truestep.watch.refs import Ref
from truestep.watch.seeds import states
from truestep.watch.tape import Tape

Named = list[tuple[str, Leaf]]
_LARGE = 1 << 18
"""Elements from which on a tensor's digest is taken again only if torch has counted a change."""


class Chain:
    """Gathers the digests of a step; each `close_update` writes one line."""

    def __init__(self, tape: Tape) -> None:
        tape.chain = self
        self._tape = tape
        self._wanted = frozenset(tape.plan.digests)
        self._names: dict[int, tuple[str, weakref.ref[Tensor]]] = {}
        self._models: dict[int, nn.Module] = {}
        self._known: set[int] = set()
        self._parts: dict[str, Any] = {}
        self._named: dict[str, dict[str, str]] = {}
        self._met: set[int] = set()
        self._before: dict[int, str | list[Tensor]] = {}
        self._chain = ""
        self._kept: dict[str, str] = {}
        self._large: dict[int, tuple[weakref.ref[Tensor], Any, str]] = {}
        if "kept" in self._wanted:
            tape.listeners["closing"].append(self._close)

    def take_batch(self, batch: Any) -> None:
        """A loader has handed out a batch."""
        if "batch" in self._wanted:
            self._parts.setdefault("batch", []).append(self._try(fold_nest, batch))

    def take_inputs(self, module: nn.Module, inputs: Any) -> None:
        """An outermost module is about to be called; the first time its weights are written too."""
        number = self._tape.number("model", module)
        if number not in self._known:
            self._known.add(number)
            try:
                self._meet(module, number)
            except Exception as error:  # noqa: BLE001 - a module of the user's may list anything; written down
                self._tell(error)
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
            self._before[number] = self._try(fold, named)
        elif not any(nn.parameter.is_lazy(item) for _, item in named):
            # The closure calls the model, and with the model come the names that the digest is made with.
            self._before[number] = [item.detach().clone() for _, item in named]

    def take_gradients(self, optimizer: Optimizer) -> None:
        """An optimizer is about to use its gradients, or has just used them if a closure makes them."""
        self._take("gradients", lambda: [(name, item.grad) for name, item in self._parameters(optimizer)])

    def close_update(self, optimizer: Optimizer, number: int, *, site: int) -> None:
        """A step has been made."""
        self._take("weights", lambda: self._parameters(optimizer))
        self._take("state", lambda: _state_of(optimizer, self._parameters(optimizer)))
        self._take("buffers", self._buffers)
        if "generators" in self._wanted:
            self._parts["generators"] = {name: _digest_text(state) for name, state in states().items()}
        if "kept" in self._wanted:
            self._parts["kept"] = self._kept = self._digests_of(self._find_kept())
        settings = [
            (f"{place}.{key}", leaf)
            for place, group in enumerate(optimizer.param_groups)
            for key, leaf in walk({key: value for key, value in group.items() if key != "params"})
        ]
        self._parts["settings"] = self._try(fold, settings)
        self._chain = _digest_text(self._chain + json.dumps(self._parts))
        others: dict[str, Any] = {"parameters": self._named} if self._named else {}
        if number in self._before:
            others["before"] = self._fold_before(optimizer, number)
        step = self._tape.num_steps
        self._tape.write(
            "update", step=step, optimizer=number, site=site, **self._parts, **others, chain=self._chain
        )
        self._parts, self._named = {}, {}
        self._models.clear()

    def digests_of_stored(self, stored: Any) -> dict[str, str] | None:
        """Return digests of what is about to be saved, by name."""
        if "kept" not in self._wanted:
            return None
        try:
            return self._digests_of(find_stored(stored))
        except Exception as error:  # noqa: BLE001 - an object of the user's may be anything; written down
            self._tell(error)
            return None

    def _find_kept(self) -> dict[str, Kept]:
        optimizers = [kept for _, kept in self._tape.things("optimizer").values()]
        alive = [item() if isinstance(item, weakref.ref) else item for item in optimizers]
        owned = {
            id(item)
            for one in alive
            if one is not None
            for group in one.param_groups
            for item in group["params"]
        }
        try:
            return find_kept(self._tape.sites, skip=owned)
        except Exception as error:  # noqa: BLE001 - as above
            self._tell(error)
            return {}

    def _digests_of(self, found: dict[str, Kept]) -> dict[str, str]:
        with torch._C.DisableTorchFunctionSubclass():  # a class of the user's must not notice
            return {name: self._try(self._digest_of, item) for name, item in found.items()}

    def _digest_of(self, item: Kept) -> str:
        if not isinstance(item, Tensor):
            return fold([("", f"{item.dtype}{item.shape}"), ("", item.tobytes())])
        if item.numel() < _LARGE or item.is_inference():
            return fold([("", item)])
        known, now = self._large.get(id(item)), (item._version, item.shape)
        if known is None or known[0]() is not item or known[1] != now:
            known = self._large[id(item)] = (Ref(item), now, fold([("", item)]))
        return known[2]

    def _close(self) -> None:
        """The script is over: write what its modules still hold of what it kept, every tensor read again."""
        self._large.clear()
        found = {name: item for name, item in self._find_kept().items() if name in self._kept}
        self._tape.write("kept", digests=self._digests_of(found))

    def _fold_before(self, optimizer: Optimizer, number: int) -> str:
        before = self._before.pop(number)
        if isinstance(before, str):
            return before
        names = [name for name, _ in self._parameters(optimizer)]
        return self._try(fold, list(zip(names, before, strict=False)))

    def _take(self, part: str, gather: Callable[[], Any]) -> None:
        if part not in self._wanted:
            return
        try:
            named = gather()
        except Exception as error:  # noqa: BLE001 - an optimizer of the user's may keep anything; written down
            self._parts[part] = self._tell(error)
            return
        self._parts[part] = self._try(fold, named)
        if self._tape.num_steps in self._tape.plan.parameters:
            self._named[part] = {name: self._try(fold, [(name, leaf)]) for name, leaf in named}

    def _try(self, digest: Callable[[Any], str], value: Any) -> str:
        """Return a digest; a kind of tensor that cannot be read must not end the script, and is told."""
        try:
            return digest(value)
        except Exception as error:  # noqa: BLE001 - written down
            return self._tell(error)

    def _tell(self, error: Exception) -> str:
        self._tape.note_trouble("a digest", error)
        return f"unreadable: {type(error).__name__}"

    def _meet(self, module: nn.Module, number: int) -> None:
        """Remember the names of the parameters, and how they were before the first step."""
        named = [*parts.named_parameters(module), *parts.named_buffers(module)]
        for name, item in parts.named_parameters(module):
            if self._name_of(item) is None:
                self._names[id(item)] = (name if not number else f"{number}.{name}", Ref(item))
        lazy = any(nn.parameter.is_lazy(item) for _, item in named)
        if "weights" in self._wanted and not lazy:
            wanted = named if self._tape.plan.parameters else []
            each = {name: self._try(fold, [(name, leaf)]) for name, leaf in wanted}
            weights, site = self._try(fold, named), self._tape.sites.here()
            self._tape.write("model", model=number, site=site, weights=weights, parameters=each)

    def _parameters(self, optimizer: Optimizer) -> list[tuple[str, Tensor]]:
        return [
            (self._name_of(item) or f"group {place}.{index}", item)
            for place, group in enumerate(optimizer.param_groups)
            for index, item in enumerate(group["params"])
        ]

    def _name_of(self, item: Tensor) -> str | None:
        """Return a parameter's name. Another one that is gone may have had its id."""
        name, kept = self._names.get(id(item), (None, None))
        return name if kept is not None and kept() is item else None

    def _buffers(self) -> Named:
        return [
            (f"{number}.{name}", item)
            for number, module in self._models.items()
            for name, item in parts.named_buffers(module)
        ]


def _value(loss: Tensor) -> str | None:
    """Return a loss to the last bit; None for one that is no single number, or has none, as on `meta`."""
    try:
        with among_ourselves():
            return float(loss.detach().item()).hex()
    except Exception:  # noqa: BLE001 - its digest says the same, or is written down
        return None


def _state_of(optimizer: Optimizer, parameters: list[tuple[str, Tensor]]) -> Named:
    return list(_walk_state(optimizer, parameters))


def _walk_state(optimizer: Optimizer, parameters: list[tuple[str, Tensor]]) -> Iterator[tuple[str, Leaf]]:
    for name, item in parameters:
        # Asked with `in`: the state makes an entry for whatever is asked for otherwise.
        if item in optimizer.state:
            entry = optimizer.state[item]
            for key in sorted(entry, key=str):
                yield from walk(entry[key], f"{name}.{key}")


def _digest_text(value: Any) -> str:
    raw = value if isinstance(value, bytes) else repr(value).encode()
    return hashlib.sha256(raw).hexdigest()[:16]
