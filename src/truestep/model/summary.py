"""Summary: what a model is made of, module by module: parameters, bytes, shared weights, shapes, FLOPs.

Owns the counting of parameters. The pass that shapes and FLOPs come from is `trial`'s.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from truestep.errors import UsageError
from truestep.model.names import nearest
from truestep.model.tables import columns, scaled, shortened
from truestep.model.trial import Shape, Trial, run_trial


class Shared(NamedTuple):
    """A weight under a second name: one parameter, or (not `is_same`) two in the same memory."""

    name: str
    first: str
    is_same: bool

    def __str__(self) -> str:
        if self.is_same:
            return f"{self.name} is {self.first}"
        return f"{self.name} lies in the memory of {self.first}, but is another parameter"


@dataclass(frozen=True, kw_only=True)
class ModuleSummary:
    """One module: numbers in all include the modules below it, each tensor once."""

    name: str
    kind: str
    parameters: int
    own_parameters: int
    trainable: int
    buffers: int
    size_bytes: int
    same_as: str | None
    """The first name of a module that is reached by several."""
    outputs: tuple[Shape, ...] | None
    """The shapes of the tensors it returned in the last call; None if it was not called."""
    flops: int | None
    """Forward; None if nothing was run, or if nothing it does is counted."""
    backward_flops: int | None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a model is made of; `summary["encoder.layer.0"]` gives one module, `at_depth(2)` fewer rows."""

    modules: tuple[ModuleSummary, ...]
    parameters: int
    trainable: int
    buffers: int
    size_bytes: int
    shared: tuple[Shared, ...]
    flops: int | None
    backward_flops: int | None
    not_counted: Mapping[str, int]
    """Operations of the pass forward that are in no FLOP count, and how often they ran."""

    def __getitem__(self, name: str) -> ModuleSummary:
        for module in self.modules:
            if module.name == name:
                return module
        near = nearest((module.name for module in self.modules), name)
        raise UsageError(
            f"the summary has no module {name!r}. " + (f"The nearest are {', '.join(near)}." if near else "")
        )

    def at_depth(self, depth: int) -> "Summary":
        """Return the summary with the rows down to a depth only: 0 is the model, 1 its children."""
        kept = [row for row in self.modules if (row.name.count(".") + 1 if row.name else 0) <= depth]
        return replace(self, modules=tuple(kept))

    def __str__(self) -> str:
        table = [_cells(row) for row in self.modules]
        hidden = {
            "trainable": self.trainable == self.parameters,
            "output": self.flops is None,
            "FLOPs": self.flops is None,
            "backward": self.backward_flops is None,
        }
        shown = [title for title in table[0] if not hidden.get(title)]
        cells = [shown, *([row[title] for title in shown] for row in table)]
        return "\n".join([columns(cells, left=2), "", *self._totals()])

    def _totals(self) -> Iterator[str]:
        frozen = self.parameters - self.trainable
        yield f"parameters  {self.parameters:,}, trainable {self.trainable:,}, frozen {frozen:,}"
        yield f"memory      {scaled(self.size_bytes, 'B')}, with {self.buffers:,} numbers in buffers"
        for shared in self.shared:
            yield f"shared      {shared}"
        if self.flops is not None:
            back = self.backward_flops
            yield f"FLOPs       {self.flops:,} forward" + (f", {back:,} backward" if back is not None else "")
        if self.not_counted:
            names = [f"{name} x{count}" for name, count in self.not_counted.items()]
            yield f"not counted {shortened(names, most=8)}"


def summary(model: nn.Module, *inputs: Any, backward: bool = False, **batch: Any) -> Summary:
    """Return what a model is made of; with inputs, also output shapes and FLOPs, from running it once.

    `summary(model)` runs nothing. `summary(model, x)` and `summary(model, **batch)` call the model as you do.
    It runs in eval mode, without gradients, and leaves modes, buffers, gradients, generators and the inputs
    as they were. A multiplication and an addition are two FLOPs; only matrix products, convolutions,
    attention and LSTMs are counted, and what else ran is listed. `backward=True` also counts the gradients of
    the trainable parameters.

    >>> print(summary(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))))
    module   type        parameters  own   size
    (model)  Sequential          58    0  232 B
    0        Linear              40   40  160 B
    1        ReLU                 0    0    0 B
    2        Linear              18   18   72 B
    <BLANKLINE>
    parameters  58, trainable 58, frozen 0
    memory      232 B, with 0 numbers in buffers
    """
    _refuse_lazy(model)
    if backward and not (inputs or batch):
        raise UsageError("backward=True needs a batch to run. Pass inputs: summary(model, x, backward=True).")
    trial = run_trial(model, inputs, batch=batch, backward=backward) if inputs or batch else None
    first_names: dict[int, str] = {}
    rows = [
        _row(name, module, first=first_names.setdefault(id(module), name), trial=trial)
        for name, module in model.named_modules(remove_duplicate=False)
    ]
    whole = rows[0]
    not_counted = trial.uncounted.get(None, Counter()) if trial else Counter()
    return Summary(
        modules=tuple(rows),
        parameters=whole.parameters,
        trainable=whole.trainable,
        buffers=whole.buffers,
        size_bytes=whole.size_bytes,
        shared=tuple(_shared(model)),
        flops=trial.flops[None] if trial else None,
        backward_flops=trial.backward_flops[None] if trial and backward else None,
        not_counted=dict(not_counted.most_common()),
    )


def stored_bytes(tensor: Tensor) -> int:
    """Return the bytes a tensor needs as it is stored: of a quantised one, those of its parts.

    >>> import torch
    >>> stored_bytes(torch.zeros(3, 2))
    24
    """
    if hasattr(tensor, "__tensor_flatten__"):
        parts = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]
        return sum(stored_bytes(part) for part in parts if part is not None)
    return tensor.numel() * tensor.element_size()


def place_of(tensor: Tensor) -> tuple[Any, ...]:
    """Return what two tensors have in common exactly if they are the same numbers in the same memory."""
    is_plain = (
        not hasattr(tensor, "__tensor_flatten__") and tensor.device.type != "meta" and tensor.numel() > 0
    )
    if not is_plain:
        return (id(tensor),)
    return tensor.device, tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def once(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return the tensors without those that are another one of them under a second name."""
    return list({place_of(tensor): tensor for tensor in tensors}.values())


def _refuse_lazy(model: nn.Module) -> None:
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if is_lazy(tensor):
            raise UsageError(
                f"{name} has no shape yet: it belongs to a lazy module. Call the model with a batch first."
            )


def _row(name: str, module: nn.Module, *, first: str, trial: Trial | None) -> ModuleSummary:
    parameters, buffers = once(module.parameters()), once(module.buffers())
    key = id(module)
    flops, back = None, None
    if trial and key in trial.outputs:
        has_uncounted = bool(trial.uncounted.get(key))
        flops = trial.flops[key] if trial.flops[key] or not has_uncounted else None
        back = trial.backward_flops[key] if trial.backward_flops[None] and flops is not None else None
    return ModuleSummary(
        name=name,
        kind=type(module).__name__,
        parameters=sum(tensor.numel() for tensor in parameters),
        own_parameters=sum(tensor.numel() for tensor in once(module.parameters(recurse=False))),
        trainable=sum(tensor.numel() for tensor in parameters if tensor.requires_grad),
        buffers=sum(tensor.numel() for tensor in buffers),
        size_bytes=sum(map(stored_bytes, once([*parameters, *buffers]))),
        same_as=None if name == first else first,
        outputs=trial.outputs.get(key) if trial else None,
        flops=flops,
        backward_flops=back,
    )


def _shared(model: nn.Module) -> Iterator[Shared]:
    first: dict[tuple[Any, ...], tuple[str, Tensor]] = {}
    named = [
        *model.named_parameters(remove_duplicate=False),
        *model.named_buffers(remove_duplicate=False),
    ]
    for name, tensor in named:
        known, original = first.setdefault(place_of(tensor), (name, tensor))
        if known != name:
            yield Shared(name, known, original is tensor)


def _cells(row: ModuleSummary) -> dict[str, str]:
    has_run = row.outputs is not None
    return {
        "module": "  " * row.name.count(".") + (row.name or "(model)"),
        "type": row.kind if row.same_as is None else f"is {row.same_as}",
        "parameters": f"{row.parameters:,}",
        "own": f"{row.own_parameters:,}",
        "trainable": f"{row.trainable:,}",
        "size": scaled(row.size_bytes, "B"),
        "output": "not called" if row.outputs is None else _shapes(row.outputs),
        "FLOPs": "" if not has_run else "not counted" if row.flops is None else scaled(row.flops),
        "backward": "" if row.backward_flops is None else scaled(row.backward_flops),
    }


def _shapes(outputs: tuple[Shape, ...]) -> str:
    if not outputs:
        return "no tensor"
    shown = [str(list(shape)) for shape in outputs[:2]]
    return ", ".join(shown) + (f" +{len(outputs) - 2}" if len(outputs) > 2 else "")
