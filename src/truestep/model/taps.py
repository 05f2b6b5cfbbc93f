"""Taps: read activations and gradients of any module while they happen, and leave no hook behind.

Owns the hooks, when they are taken off, and what was read.
"""

import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from truestep.errors import UsageError
from truestep.model.names import What, nearest, select
from truestep.model.nests import tensors_in
from truestep.model.readings import Kind, Reading, as_table, as_text, choose
from truestep.model.statistics import Statistics, statistics_later

if TYPE_CHECKING:
    from rich.table import Table

_MAX_WAITING = 256
"""How many calls without a graph are remembered for each module, in case checkpointing repeats them."""


def tap(
    model: nn.Module | None = None,
    what: What = "*",
    *,
    gradients: bool = True,
    inputs: bool = False,
    parameters: bool = False,
    values: bool = False,
    keep: int | None = None,
    on: Callable[[Reading], object] | None = None,
) -> "Taps":
    """Read what leaves the modules that `what` stands for, and the gradients that come back to it.

    `what` is a name pattern, a type of module, or a list of these; "*" is all but the model itself,
    which is "". Use it in `with`: at its end, or when the object is no longer used, the hooks are gone.
    Statistics are kept of every pass; with `values=True` also copies, of the last pass. `keep` sets how many
    passes are kept.
    `inputs` reads what goes in too, `parameters` the gradient that each backward pass brings to the modules'
    own parameters (in this process, before processes are averaged). `on` is called with each reading at once;
    an error that it raises ends the pass. Without a model only what is given to `add` is read.

    Training gives the same bits with and without. What activation checkpointing computes again is no second
    call. A model that is compiled already has no modules to read: compile it afterwards, and each tap breaks
    the graph.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> with tap(model, nn.ReLU) as taps:
    ...     model(torch.ones(4, 2)).sum().backward()
    >>> taps.output("1").shape, taps.gradient("1").statistics.mean
    ((4, 3), 1.0)
    """
    if keep is not None and keep < 0:
        raise UsageError(f"keep is {keep}. Pass how many passes to keep: 0, 1, ... or None for all.")
    chosen = select(model, what) if model is not None else {}
    for name, whole in _inside_compiled(model, chosen):
        raise UsageError(
            f"{name or 'the model'!r} is part of {whole or 'a model'!r}, which is compiled: its modules do "
            "not run one by one, and hooks on them are passed by. Tap the model first and compile it inside "
            "the `with`, or tap and call the model that was given to torch.compile."
        )
    if keep is None and values:
        keep = 1
    taps = Taps(has_gradients=gradients, has_values=values, keep=keep, on=on)
    taps._place(model, chosen, has_inputs=inputs, has_parameters=parameters)
    return taps


class Taps:
    """What was read, in the order in which it happened. Made by `tap`."""

    def __init__(
        self,
        *,
        has_gradients: bool,
        has_values: bool,
        keep: int | None,
        on: Callable[[Reading], object] | None,
    ) -> None:
        self._has_gradients = has_gradients
        self._has_values = has_values
        self._keep = keep
        self._on = on
        self._names: list[str] = []
        self._kept: dict[int, list[Reading]] = {}
        self._forward = 0
        self._is_inside = False
        self._num_calls: dict[str, int] = {}
        self._waiting: dict[str, deque[_Call]] = {}
        self._handles: list[Any] = []
        self._on_tensors: list[Any] = []
        # Not a method: the finalizer must not hold what it waits for.
        self._remove = weakref.finalize(self, _remove, self._handles, self._on_tensors)
        self._remove.atexit = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take all hooks off, also those on tensors whose backward pass is still to come."""
        self._remove()

    def clear(self) -> None:
        """Forget what was read, and keep reading."""
        self._kept.clear()

    @property
    def readings(self) -> tuple[Reading, ...]:
        """All that is kept, by forward pass, each in the order in which it happened."""
        return tuple(reading for _, kept in sorted(self._kept.items()) for reading in list(kept))

    def __iter__(self) -> Iterator[Reading]:
        return iter(self.readings)

    def __len__(self) -> int:
        return sum(len(kept) for kept in self._kept.values())

    def add(self, name: str, tensor: Tensor) -> Tensor:
        """Read any tensor, and its gradient, under a name that you choose; returns the tensor unmodified.

        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> with tap() as taps:
        ...     taps.add("square", x.square()).sum().backward()
        >>> taps.gradient("square").statistics.mean
        1.0
        """
        if self._remove.alive and not _is_traced():
            self._happened(name, [("", tensor)], [])
        return tensor

    def output(
        self, name: str, *, forward: int = -1, call: int | None = None, path: str | None = None
    ) -> Reading:
        """Return the one reading of a module's output; if there are several, choose by `call` and `path`.

        `forward` counts as in a list: -1 is the last pass that is kept.
        """
        return self._one("output", name, forward=forward, call=call, path=path)

    def input(
        self, name: str, *, forward: int = -1, call: int | None = None, path: str | None = None
    ) -> Reading:
        """Return the one reading of a module's input, chosen as for `output`."""
        return self._one("input", name, forward=forward, call=call, path=path)

    def gradient(
        self, name: str, *, forward: int = -1, call: int | None = None, path: str | None = None
    ) -> Reading:
        """Return the gradient of a module's output, or of a parameter by its name, chosen as for `output`."""
        return self._one("gradient", name, forward=forward, call=call, path=path)

    def _one(self, kind: Kind, name: str, *, forward: int, call: int | None, path: str | None) -> Reading:
        own = [reading for reading in self.readings if reading.kind == kind and reading.name == name]
        if not own:
            raise UsageError(self._missing(kind, name))
        return choose(own, forward=forward, call=call, path=path)

    def _missing(self, kind: Kind, name: str) -> str:
        begin = f"no {kind} of {name!r} was read."
        if name in self._names and kind != "input":
            if kind == "gradient" and any(reading.name == name for reading in self.readings):
                if not self._has_gradients:
                    return f"{begin} Pass gradients=True to tap."
                return f"{begin} No backward pass reached it while the tap was in place."
            return (
                f"{begin} It was not called while the tap was in place, or its model was compiled before: "
                "then hooks are passed by. Compile it after the tap is placed."
            )
        there = list(dict.fromkeys(reading.name for reading in self.readings if reading.kind == kind))
        if kind == "input" and not there:
            return f"{begin} Pass inputs=True to read what goes into modules."
        near = ", ".join(repr(item) for item in nearest(there, name) or there[:5])
        return f"{begin} The nearest that were are {near}." if near else f"{begin} Nothing was."

    def __str__(self) -> str:
        if not self._kept:
            return f"nothing was read of {len(self._names)} names: none of them was called"
        return as_text(self._kept[max(self._kept)])

    def __rich__(self) -> "Table | str":
        if not self._kept:
            return str(self)
        last = max(self._kept)
        return as_table(self._kept[last], title=f"forward pass {last}")

    # What follows happens inside the user's forward and backward passes.

    def _place(
        self,
        model: nn.Module | None,
        chosen: Mapping[str, nn.Module],
        *,
        has_inputs: bool,
        has_parameters: bool,
    ) -> None:
        ref = weakref.ref(self)
        self._names += chosen
        try:
            if model is not None:
                self._handles.append(model.register_forward_pre_hook(_quiet(_opening(ref))))
            for name, module in chosen.items():
                hook = _quiet(_reading_hook(ref, name, has_inputs=has_inputs))
                self._handles.append(module.register_forward_hook(hook, with_kwargs=True))
            if model is not None:
                self._handles.append(model.register_forward_hook(_quiet(_closing(ref))))
            if has_parameters:
                self._place_on_parameters(ref, chosen)
        except BaseException:
            self.close()
            raise

    def _place_on_parameters(
        self, ref: "weakref.ReferenceType[Taps]", chosen: Mapping[str, nn.Module]
    ) -> None:
        seen: set[int] = set()
        for name, module in chosen.items():
            for own, parameter in module.named_parameters(name, recurse=False):
                self._names.append(own)
                if parameter.requires_grad and id(parameter) not in seen:
                    seen.add(id(parameter))
                    self._handles.append(parameter.register_hook(_gradient_hook(ref, own)))

    def _open(self) -> None:
        if not _is_in_backward():
            self._begin()
            self._is_inside = True

    def _begin(self) -> None:
        if self._num_calls:
            self._forward += 1
        self._num_calls = {}
        # Hooks of tensors that are gone went with them.
        self._on_tensors[:] = [handle for handle in self._on_tensors if handle.hooks_dict_ref() is not None]

    def _happened(
        self, name: str, outputs: list[tuple[str, Tensor]], inputs: list[tuple[str, Tensor]]
    ) -> None:
        if _is_in_backward():
            self._happened_again(name, outputs)
            return
        if not self._is_inside and name in self._num_calls:
            self._begin()
        call = _Call(self._forward, self._num_calls.get(name, 0))
        self._num_calls[name] = call.index + 1
        for path, tensor in inputs:
            self._note("input", name, call=call, path=path, tensor=tensor)
        kept = [self._note("output", name, call=call, path=path, tensor=tensor) for path, tensor in outputs]
        if not self._has_gradients:
            return
        if torch.is_grad_enabled():
            self._follow(name, call, outputs)
        elif kept and not torch.is_inference_mode_enabled():
            call.gave = kept[0]._later
            self._waiting.setdefault(name, deque(maxlen=_MAX_WAITING)).append(call)

    def _happened_again(self, name: str, outputs: list[tuple[str, Tensor]]) -> None:
        """Take gradients from the graph that reentrant checkpointing builds in the backward pass.

        Its first pass has no graph. The call that is repeated is the last one that gave the same values;
        where none did (a generator that was not restored), the last one that waits.
        """
        waiting = self._waiting.get(name)
        if not waiting or not any(tensor.requires_grad for _, tensor in outputs):
            return
        again = statistics_later(outputs[0][1])()
        same = [call for call in waiting if call.gave is not None and call.gave() == again]
        call = (same or waiting)[-1]
        waiting.remove(call)
        self._follow(name, call, outputs)

    def _follow(self, name: str, call: "_Call", outputs: list[tuple[str, Tensor]]) -> None:
        ref = weakref.ref(self)
        for path, tensor in outputs:
            if tensor.requires_grad:
                self._on_tensors.append(tensor.register_hook(_gradient_hook(ref, name, call=call, path=path)))

    def _note(self, kind: Kind, name: str, *, call: "_Call | None", path: str, tensor: Tensor) -> Reading:
        forward, index = (call.forward, call.index) if call else (self._forward, 0)
        reading = Reading(
            name=name,
            kind=kind,
            forward=forward,
            call=index,
            path=path,
            shape=tuple(tensor.shape),
            dtype=tensor.dtype,
            value=tensor.detach().clone() if self._has_values else None,
            _later=statistics_later(tensor),
        )
        if self._keep is None or self._keep > self._forward - forward:
            self._kept.setdefault(forward, []).append(reading)
        while self._keep is not None and len(self._kept) > self._keep:
            del self._kept[min(self._kept)]
        if self._on is not None:
            self._on(reading)
        return reading


class _Call:
    """One call of a module, for the gradients that come back to it later."""

    def __init__(self, forward: int, index: int) -> None:
        self.forward = forward
        self.index = index
        self.gave: Callable[[], Statistics] | None = None
        """Statistics of what it gave, if it was called without a graph."""


Hook = Callable[..., None]


def _opening(ref: "weakref.ReferenceType[Taps]") -> Hook:
    def opening(*_: Any) -> None:
        if (taps := ref()) is not None:
            taps._open()

    return opening


def _closing(ref: "weakref.ReferenceType[Taps]") -> Hook:
    def closing(*_: Any) -> None:
        if (taps := ref()) is not None and not _is_in_backward():
            taps._is_inside = False

    return closing


def _reading_hook(ref: "weakref.ReferenceType[Taps]", name: str, *, has_inputs: bool) -> Hook:
    def reading_hook(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        taps = ref()
        if taps is None or _is_traced():
            return
        given = [*tensors_in(args), *tensors_in(kwargs)] if has_inputs else []
        taps._happened(name, list(tensors_in(output)), given)

    return reading_hook


def _gradient_hook(
    ref: "weakref.ReferenceType[Taps]", name: str, *, call: "_Call | None" = None, path: str = ""
) -> Hook:
    def gradient_hook(gradient: Tensor) -> None:
        if (taps := ref()) is not None:
            taps._note("gradient", name, call=call, path=path, tensor=gradient)

    return gradient_hook


def _quiet(hook: Hook) -> Hook:
    """Keep a hook out of compiled code: the graph breaks there, and the hook runs as it is."""
    # Dynamo takes a second to import; who has an optimizer has imported it.
    if "torch._dynamo" in sys.modules:
        disabled: Hook = torch.compiler.disable(hook)
        return disabled

    def quiet(*given: Any) -> None:
        if torch.compiler.is_compiling():
            torch.compiler.disable(hook)(*given)
        else:
            hook(*given)

    return quiet


def _is_traced() -> bool:
    """Whether the model runs only to be written down: there is nothing to read, and nothing to add."""
    return torch._C._is_tracing() or torch.compiler.is_exporting()


def _is_in_backward() -> bool:
    """Whether this thread is inside a backward pass, where a module is only called to compute it again."""
    return torch._C._current_graph_task_id() != -1


def _remove(handles: Iterable[Any], on_tensors: Iterable[Any]) -> None:
    for handle in (*handles, *on_tensors):
        handle.remove()


def _inside_compiled(model: nn.Module | None, chosen: Mapping[str, nn.Module]) -> Iterator[tuple[str, str]]:
    """Yield the chosen modules whose hooks would not run, each with the compiled module that it is in."""
    dynamo = sys.modules.get("torch._dynamo.eval_frame")  # if it was never imported, nothing is compiled
    if model is None or dynamo is None:
        return
    # Hooks on the wrapper that `torch.compile(model)` gives do run; those of `model.compile()` do not.
    inside = [
        f"{name}._orig_mod".removeprefix(".") if isinstance(module, dynamo.OptimizedModule) else name
        for name, module in model.named_modules()
        if isinstance(module, dynamo.OptimizedModule) or module._compiled_call_impl is not None
    ]
    for name in chosen:
        for whole in inside:
            if not whole or name == whole or name.startswith(f"{whole}."):
                yield name, whole.removesuffix("_orig_mod").removesuffix(".")
