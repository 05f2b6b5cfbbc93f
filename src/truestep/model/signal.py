"""The signal through a model: how large activations and gradients are, layer by layer, in one step.

Owns the measurement and the verdict. What to do about it is up to `initialise`, normalisation and depth.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from truestep import rng
from truestep.errors import UsageError
from truestep.model.nests import tensors_in
from truestep.model.once import Batch, called, copied
from truestep.model.tables import printed, table
from truestep.picture import COLOURS, FAINT, INK, PAPER, Picture

if TYPE_CHECKING:
    from rich.table import Table

Verdict: TypeAlias = Literal["fine", "vanishing", "exploding"]

MOST_CHANGE = 1e4
"""How many times smaller or larger the signal may get. Common models at their usual initialisation stay below
500 (an LSTM read at its last step), and those that do not train are beyond a million: the tests measure both.
"""
_MOST_LABELS = 40
"""With more layers, a picture shows plain depths instead of names."""


@dataclass(frozen=True, kw_only=True)
class LayerSignal:
    """One run of a layer that has weights: standard deviations of its output and of the gradient there.

    Where all values are equal, their size stands in for the deviation.
    """

    name: str
    kind: str
    activation_std: float
    gradient_std: float | None
    """None where no gradient arrives: behind a detach, or where nothing before it learns."""
    dead: float | None
    """The fraction of units that the ReLU behind it gives 0 for the whole batch; None without a ReLU."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Signal:
    """What `check_signal` measured: the layers in the order they ran, and the verdict."""

    layers: tuple[LayerSignal, ...]
    verdict: Verdict
    begins: str | None
    """The layer where the signal leaves the range: going forward for activations, backward for gradients."""
    reason: str

    def __rich__(self) -> "Table":
        rows = [
            (
                layer.name,
                layer.kind,
                f"{layer.activation_std:.2g}",
                "none" if layer.gradient_std is None else f"{layer.gradient_std:.2g}",
                "" if layer.dead is None else f"{layer.dead:.0%}",
            )
            for layer in self.layers
        ]
        return table(("layer", "type", " activation std", " gradient std", " dead ReLUs"), rows)

    def __str__(self) -> str:
        return f"{printed(self.__rich__())}\n{self.verdict}: {self.reason}"

    __repr__ = __str__  # for notebooks

    def picture(self) -> Picture:
        """Return both standard deviations over depth, on a logarithmic axis."""
        return _picture(self)


def check_signal(model: nn.Module, batch: Batch, *, loss: Callable[[Any], Tensor] | None = None) -> Signal:
    """Run the model forward and backward once, and report whether activations or gradients vanish or explode.

    `batch` is a tensor, a tuple of arguments, or a mapping of named ones. `loss` makes a number of what the
    model returns; without it the output's own `.loss` is taken, or the output times noise of deviation 1. A
    copy of the model runs, in the model's own mode: weights, statistics, gradients and torch's generator stay
    unmodified.

    Gradients may be small in a side branch (queries and keys of attention). The verdict asks whether the
    signal gets through at all, so it looks at the largest one at or before each layer.

    >>> model = nn.Sequential(*[nn.Linear(32, 32) for _ in range(30)])
    >>> for layer in model:
    ...     _ = nn.init.normal_(layer.weight, std=0.01)
    >>> check_signal(model, torch.ones(4, 32)).verdict
    'vanishing'
    """
    with rng.kept_generators(), torch.enable_grad():
        probe = _Probe(copied(model))
        with probe:
            output = called(probe.model, batch)
        _scalar(output, loss).backward()
        layers = tuple(note.as_layer() for note in probe.notes)
    if not layers:
        raise UsageError(
            f"no layer with weights ran in {type(model).__name__}, so there is nothing to measure."
        )
    verdict, begins, reason = _describe(layers)
    return Signal(layers=layers, verdict=verdict, begins=begins, reason=reason)


@dataclass
class _Note:
    """What is known of one run of a layer so far."""

    name: str
    kind: str
    activation_std: float
    gradient_std: float | None = None
    dead: list[float] = field(default_factory=list)

    def as_layer(self) -> LayerSignal:
        return LayerSignal(
            name=self.name,
            kind=self.kind,
            activation_std=self.activation_std,
            gradient_std=self.gradient_std,
            dead=max(self.dead, default=None),
        )


class _Probe(TorchDispatchMode):
    """Notes every run of a layer with weights, and the ReLUs that run after it, wherever they are called."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.model = model
        self.notes: list[_Note] = []
        for name, module in model.named_modules():
            if any(parameter.ndim >= 2 for parameter in module.parameters(recurse=False)):
                module.register_forward_hook(self._hook(name))

    def _hook(self, name: str) -> Callable[[nn.Module, Any, Any], None]:
        runs = itertools.count(1)

        def note(module: nn.Module, _inputs: Any, output: Any) -> None:
            tensor = _first_tensor(output)
            if tensor is None:
                return
            run = next(runs)
            noted = _Note(f"{name} (run {run})" if run > 1 else name, type(module).__name__, _std(tensor))
            self.notes.append(noted)
            if tensor.requires_grad:
                tensor.register_hook(lambda gradient: setattr(noted, "gradient_std", _std(gradient)))

        return note

    def __torch_dispatch__(  # limits: torch calls it
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if self.notes and func in (torch.ops.aten.relu.default, torch.ops.aten.relu_.default):
            unit = 1 if output.ndim >= 4 else output.ndim - 1  # channels of images; else the last dimension
            is_alive = output.detach().movedim(unit, 0).flatten(1).gt(0).any(dim=1)
            self.notes[-1].dead.append(1.0 - float(is_alive.double().mean()))
        return output


def _scalar(output: Any, loss: Callable[[Any], Tensor] | None) -> Tensor:
    if loss is not None:
        return loss(output)
    own = getattr(output, "loss", None)
    if isinstance(own, Tensor):
        return own
    tensor = _first_tensor(output)
    if tensor is None or not tensor.requires_grad:
        raise UsageError(
            f"no gradient can flow into what the model returned ({type(output).__name__}). "
            "Pass loss=, a function from what the model returns to a number."
        )
    noise = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(0)).to(tensor)
    return (tensor * noise).sum()


def _first_tensor(output: Any) -> Tensor | None:
    return next((tensor for _, tensor in tensors_in(output) if tensor.is_floating_point()), None)


def _std(tensor: Tensor) -> float:
    values = tensor.detach().double()
    # One number, or equal ones (the gradient of a sum), do not vary and are a signal all the same.
    return float(values.std(correction=0)) or float(values.abs().max())


def _describe(layers: Sequence[LayerSignal]) -> tuple[Verdict, str | None, str]:
    forward = [(layer.name, layer.activation_std) for layer in layers]
    backward = [
        (layer.name, layer.gradient_std) for layer in reversed(layers) if layer.gradient_std is not None
    ]
    ranges = []
    for what, values in (("activations", forward), ("gradients", backward)):
        found = _leaves_range(values)
        if found is not None:
            verdict, name, start, value = found
            return verdict, name, f"{what} go from {start:.1e} to {value:.1e} at {name}"
        if values:
            ranges.append(
                f"{what} lie between {min(v for _, v in values):.1e} and {max(v for _, v in values):.1e}"
            )
    return "fine", None, ", ".join(ranges)


def _leaves_range(values: Sequence[tuple[str, float]]) -> tuple[Verdict, str, float, float] | None:
    """Return where the values, in the order the signal runs, are far from the first for good."""
    start = next((value for _, value in values if value != 0), 0.0)
    # What is still to come: small values in a side branch do not matter where larger ones follow.
    largest_ahead = list(itertools.accumulate((value for _, value in reversed(values)), max))[::-1]
    for (name, value), ahead in zip(values, largest_ahead, strict=True):
        if not math.isfinite(value) or value > start * MOST_CHANGE:
            return "exploding", name, start, value
        if ahead < start / MOST_CHANGE or ahead == 0:
            return "vanishing", name, start, value
    return None


def _picture(signal: Signal) -> Picture:
    names = [layer.name for layer in signal.layers]
    longest = max(map(len, names)) if len(names) <= _MOST_LABELS else 3
    picture = Picture(width=min(12.0, 4.5 + 0.22 * len(names)), height=3.8 + 0.07 * longest)
    with picture.drawing() as figure:
        axes = figure.add_subplot()
        lines = (
            ("activations", COLOURS[0], [layer.activation_std for layer in signal.layers]),
            ("gradients", COLOURS[1], [layer.gradient_std for layer in signal.layers]),
        )
        for label, colour, values in lines:
            shown = [value if value and math.isfinite(value) else math.nan for value in values]
            depths = range(1, len(names) + 1)
            axes.plot(depths, shown, color=colour, marker="o", markersize=4, linewidth=1.8, label=label)
        axes.set_yscale("log")
        if signal.begins is not None:
            _mark(axes, signal, at=names.index(signal.begins) + 1)
        axes.set_xlabel("layer, in the order they ran")
        if len(names) <= _MOST_LABELS:
            axes.set_xticks(range(1, len(names) + 1), names, rotation=90 if longest > 4 else 0, fontsize=8)
        axes.set_ylabel("standard deviation")
        axes.set_title(f"Signal through the layers: {signal.verdict}", loc="left", pad=26)
        axes.legend(frameon=False, ncols=2, loc="lower left", bbox_to_anchor=(-0.01, 1.0), borderpad=0)
        axes.grid(axis="y", color=FAINT, linewidth=0.6)
    return picture


def _mark(axes: Any, signal: Signal, *, at: int) -> None:
    """Draw where the signal leaves the range, with an arrow the way it runs: gradients run to the left."""
    is_backward = signal.reason.startswith("gradients")
    axes.axvline(at, color=INK, linewidth=1, linestyle=(0, (4, 3)))
    axes.annotate(
        f"\u2190 {signal.verdict} from this layer"
        if is_backward
        else f"{signal.verdict} from this layer \u2192",
        (at, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(-5 if is_backward else 5, -12),
        textcoords="offset points",
        horizontalalignment="right" if is_backward else "left",
        backgroundcolor=PAPER,
        fontsize=9,
    )
