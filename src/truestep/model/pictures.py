"""Pictures of what taps read and of weights: channels, filters, distributions and gradients over depth.

Owns what is drawn. Colours and files are left to `truestep.picture`, reading to `taps`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from truestep.errors import UsageError
from truestep.model.names import What, select
from truestep.model.readings import Kind, Reading
from truestep.model.statistics import Statistics, statistics_of
from truestep.model.taps import Taps
from truestep.picture import COLOURS, FAINT, INK, Picture

_BLUE, _ORANGE = COLOURS[:2]
_GREY = COLOURS[7]
_CELL = 0.92
"""Inches per panel of a grid, with the gap to the next."""
_GAP = 0.06
_MAX_BINS = 64
_HOW: dict[Kind, str] = {
    "output": "Call the model inside the `with`.",
    "input": "Tap with inputs=True and call the model inside the `with`.",
    "gradient": "Tap with gradients=True and do the backward pass inside the `with`.",
}


def activation_grid(
    source: Reading | Tensor,
    *,
    sample: int = 0,
    image: Tensor | None = None,
    max_channels: int = 64,
    title: str | None = None,
) -> Picture:
    """Draw the channels of a convolutional layer for one sample, all on one colour scale.

    Give a reading of a tap with `values=True`, or a tensor of shape (samples, channels, height, width) or
    (channels, height, width). `image` is drawn first, in grey (or colours), to compare with. A channel that
    is zero everywhere is marked.

    >>> picture = activation_grid(torch.rand(1, 4, 8, 8))
    """
    values = _values(source)
    maps = values[_index(sample, len(values))] if values.ndim == 4 else values
    if maps.ndim != 3:
        raise UsageError(
            f"the channels of a picture have the shape (samples, channels, height, width), got "
            f"{list(values.shape)}. Tap a convolutional layer, or reshape."
        )
    shown = maps[:max_channels]
    cells = [
        _Cell(pixels=channel, label=str(number) if channel.any() else f"{number}  zero")
        for number, channel in enumerate(shown)
    ]
    if image is not None:
        cells.insert(0, _Cell(pixels=_as_image(image, sample), label="input", is_image=True))
    if title is None:
        name = f"{source.kind} of {source.label}" if isinstance(source, Reading) else "channels"
        title = f"{name}, sample {sample}" + _of("channels", len(shown), len(maps))
    return _grid(cells, title=title)


def filters(
    source: nn.Module | Tensor | Reading,
    *,
    max_filters: int = 64,
    max_inputs: int = 16,
    title: str | None = None,
) -> Picture:
    """Draw the filters of a convolution, or of a tensor of shape (filters, inputs, height, width).

    Filters over one input channel are drawn each as a panel, over three as a coloured panel (grey is zero),
    over more as a row with a panel for each input channel. All share one scale with zero in its middle.

    >>> picture = filters(nn.Conv2d(1, 8, 3))
    """
    weight = getattr(source, "weight", None) if isinstance(source, nn.Module) else _values(source)
    if not isinstance(weight, Tensor) or weight.ndim != 4:
        found = list(weight.shape) if isinstance(weight, Tensor) else type(source).__name__
        raise UsageError(
            f"filters have the shape (filters, inputs, height, width), got {found}. "
            "Pass a two-dimensional convolution or its weight."
        )
    weight = weight.detach()
    num_filters, num_inputs = weight.shape[:2]
    if title is None:
        size = " x ".join(map(str, weight.shape[2:]))
        title = f"filters, {size}" + _of("filters", min(num_filters, max_filters), num_filters)
    shown = weight[:max_filters].cpu().float()
    bound = shown.abs().max().item() or 1.0
    if num_inputs == 1:
        cells = [_Cell(pixels=each[0], label=str(number)) for number, each in enumerate(shown)]
        return _grid(cells, title=title, bound=bound)
    if num_inputs == 3:
        coloured = (shown / (2 * bound) + 0.5).permute(0, 2, 3, 1)
        cells = [_Cell(pixels=each, label=str(number), is_image=True) for number, each in enumerate(coloured)]
        return _grid(cells, title=f"{title}; red, green, blue, grey is 0")
    num_shown = min(num_inputs, max_inputs)
    cells = [
        _Cell(pixels=plane, label=f"{number},{channel}")
        for number, each in enumerate(shown)
        for channel, plane in enumerate(each[:num_shown])
    ]
    title += _of("inputs", num_shown, num_inputs) + "; label: filter, input"
    return _grid(cells, title=title, bound=bound, num_columns=num_shown)


def histograms(
    taps: Taps | Mapping[str, Tensor],
    *,
    kind: Kind = "output",
    log: bool | None = None,
    forward: int = -1,
    title: str | None = None,
) -> Picture:
    """Draw how the values of each layer are spread, one ridge per layer, from the first at the top downwards.

    Give taps with `values=True`, or tensors by name. Values that are exactly zero are left out of the ridge
    and shown at its right end. `log` puts the logarithm of absolute values on the axis; by default, gradients
    get it, because they differ by orders of magnitude from layer to layer.

    >>> picture = histograms({"first": torch.randn(100), "second": torch.randn(100)})
    """
    if isinstance(taps, Taps):
        chosen = _in_depth_order(taps, kind, forward)
        tensors = {reading.label: _values(reading) for reading in chosen}
    else:
        tensors = {name: tensor.detach() for name, tensor in taps.items()}
    if not tensors:
        raise UsageError(
            "there is no tensor to draw. Pass taps that have read something, or tensors by name."
        )
    if log is None:
        log = kind == "gradient"
    ridges = [_ridge(name, tensor, is_log=log) for name, tensor in tensors.items()]
    if title is None:
        title = f"{kind}s by layer"
    return _ridge_plot(ridges, title=title, is_log=log)


def gradient_flow(
    source: Taps | nn.Module, what: What = "*", *, forward: int = -1, title: str | None = None
) -> Picture:
    """Draw how large the gradient is at each layer, on a log axis: root mean square and largest value.

    Of taps, the gradients of the layers' outputs, in the order of the forward pass; the title counts the
    layers, where some got none. Of a model, the `grad` of the parameters that `what` stands for, in the
    model's order, a missing one marked. So is a gradient that is zero everywhere or not finite: nothing is
    learnt behind it.

    >>> model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    >>> model(torch.ones(1, 2)).sum().backward()
    >>> picture = gradient_flow(model, "*.weight")
    """
    if isinstance(source, Taps):
        found = _in_depth_order(source, "gradient", forward)
        flows = [_Flow(label=reading.label, statistics=reading.statistics) for reading in found]
        of, missing = f"outputs{_reached(source, found)}", f"no gradient was read. {_HOW['gradient']}"
    else:
        flows = [
            _Flow(label=name, statistics=None if item.grad is None else statistics_of(item.grad))
            for name, item in select(source, what, kind="parameters").items()
            if item.requires_grad
        ]
        of, missing = (
            "parameters",
            "no parameter has a gradient. Call loss.backward() before, and zero_grad() after the picture.",
        )
    if not any(flow.statistics for flow in flows):
        raise UsageError(missing)
    return _flow_plot(
        flows, title=f"gradients of {of}, from the input (top) to the loss" if title is None else title
    )


@dataclass(frozen=True, kw_only=True)
class _Cell:
    pixels: Tensor
    label: str
    is_image: bool = False
    """With colours of its own, not on the scale."""


@dataclass(frozen=True, kw_only=True)
class _Ridge:
    label: str
    places: list[float]
    heights: list[float]
    note: str


@dataclass(frozen=True, kw_only=True)
class _Flow:
    label: str
    statistics: Statistics | None

    @property
    def rms(self) -> float:
        return math.hypot(self.statistics.mean, self.statistics.std) if self.statistics else 0.0

    @property
    def largest(self) -> float:
        return self.statistics.absmax if self.statistics else 0.0

    @property
    def mark(self) -> str:
        """What is wrong, or nothing."""
        if self.statistics is None:
            return "no gradient"
        if self.statistics.nonfinite:
            return f"{self.statistics.nonfinite:.0%} not finite"
        return "" if self.largest > 0 else "zero"


def _of(what: str, shown: int, there: int) -> str:
    return f", {shown} of {there} {what}" if shown < there else ""


def _index(sample: int, num_samples: int) -> int:
    if not -num_samples <= sample < num_samples:
        raise UsageError(f"there are {num_samples} samples, got sample={sample}. Pass a smaller number.")
    return sample


def _values(source: Reading | Tensor) -> Tensor:
    if isinstance(source, Tensor):
        return source.detach().cpu()
    if source.value is None:
        raise UsageError(f"the values of {source.label!r} were not kept. Tap with values=True to draw them.")
    return source.value.cpu()


def _as_image(image: Tensor, sample: int) -> Tensor:
    image = image.detach().cpu().float()
    if image.ndim == 4:
        image = image[_index(sample, len(image))]
    image = (image - image.min()) / ((image.max() - image.min()) or 1.0)
    if image.ndim == 3:
        image = image.permute(1, 2, 0) if len(image) == 3 else image[0]
    return image


def _reached(taps: Taps, gradients: Sequence[Reading]) -> str:
    """Return how many of the layers that ran in the pass got a gradient, where not all did."""
    reached = {reading.name for reading in gradients}
    passes = {reading.forward for reading in gradients}
    ran = {reading.name for reading in taps if reading.kind == "output" and reading.forward in passes}
    return _of("layers", len(reached), len(ran))


def _in_depth_order(taps: Taps, kind: Kind, forward: int) -> list[Reading]:
    """Return one pass's readings of a kind in the order of the forward pass, without those of parameters."""
    passes = sorted({reading.forward for reading in taps if reading.kind == kind})
    if not passes:
        raise UsageError(f"no {kind} was read. {_HOW[kind]}")
    if not -len(passes) <= forward < len(passes):
        raise UsageError(
            f"there are {len(passes)} forward passes with {kind}s, got forward={forward}. Pass -1."
        )
    own = [reading for reading in taps if reading.forward == passes[forward]]
    depth = {reading.label: at for at, reading in enumerate(own) if reading.kind == "output"}
    found = [reading for reading in own if reading.kind == kind]
    if kind == "input":
        return found
    return sorted((item for item in found if item.label in depth), key=lambda item: depth[item.label])


def _grid(
    cells: Sequence[_Cell], *, title: str, bound: float | None = None, num_columns: int | None = None
) -> Picture:
    """Draw panels in rows; without a bound, the scale reaches from the least to the greatest value."""
    on_scale = [cell.pixels for cell in cells if not cell.is_image]
    low, high, colours = _scale(on_scale, bound)
    columns = num_columns or min(len(cells), max(4, math.ceil(math.sqrt(1.8 * len(cells)))))
    rows = math.ceil(len(cells) / columns)
    height, width = cells[-1].pixels.shape[:2]
    tall = height / width
    step = tall + 0.26
    picture = Picture(width=max(4.0, _CELL * columns + 0.9), height=_CELL * step * rows + 0.65)
    with picture.drawing() as figure:
        axes = figure.add_subplot()
        drawn = None
        for at, cell in enumerate(cells):
            x, y = at % columns, at // columns * step
            left, right, bottom = x + _GAP / 2, x + 1 - _GAP / 2, y + (1 - _GAP) * tall
            extent = (left, right, bottom, y)
            if cell.is_image:
                axes.imshow(_pixels(cell), extent=extent, cmap="gray", vmin=0, vmax=1, interpolation="none")
            else:
                drawn = axes.imshow(
                    _pixels(cell), extent=extent, cmap=colours, vmin=low, vmax=high, interpolation="none"
                )
            axes.fill((left, right, right, left), (bottom, bottom, y, y), fill=False, ec=FAINT, lw=0.6)
            colour = _ORANGE if cell.label.endswith("zero") else _GREY
            axes.text(x + 0.04, y - 0.04, cell.label, fontsize=8, color=colour, va="bottom")
        axes.set(xlim=(0, columns), ylim=(rows * step - 0.24, -0.24))
        axes.set_aspect("equal")
        axes.set_axis_off()
        axes.set_title(title, loc="left", fontsize=11)
        if drawn is not None:
            bar = figure.colorbar(drawn, ax=axes, fraction=0.03, pad=0.01, aspect=30)
            bar.outline.set_visible(False)
            bar.ax.tick_params(labelsize=8, length=2)
    return picture


def _pixels(cell: _Cell) -> Any:
    return cell.pixels.detach().cpu().float().numpy()


def _scale(tensors: Sequence[Tensor], bound: float | None) -> tuple[float, float, str]:
    """Return the ends of the colour scale and its colours: two, with zero between, for both signs."""
    if not tensors:
        return 0.0, 1.0, "gray"
    if bound is None:
        both = statistics_of(torch.stack([tensor.float() for tensor in tensors]))
        if both.min >= 0:
            return 0.0, both.max or 1.0, "viridis"
        bound = both.absmax if math.isfinite(both.absmax) else 1.0
    return -bound, bound, "RdBu_r"


def _ridge(label: str, tensor: Tensor, *, is_log: bool) -> _Ridge:
    it = statistics_of(tensor)
    values = tensor.detach().cpu().flatten().double()
    values = values[torch.isfinite(values) & (values != 0)]
    if is_log:
        values = values.abs().log10()
    note = f"std {it.std:.2g}" + (f", {it.zeros:.0%} zero" if it.zeros >= 0.005 else "")
    note += f", {it.nonfinite:.1%} not finite" if it.nonfinite else ""
    if not len(values):
        return _Ridge(label=label, places=[], heights=[], note=note)
    # The outermost values of millions would leave the ridge a few pixels wide.
    ordered = values.sort().values
    low, high = (ordered[int(part * (len(ordered) - 1))].item() for part in (0.001, 0.999))
    if low == high:
        low, high = low - 0.5 * abs(low) - 1e-12, high + 0.5 * abs(high) + 1e-12
    num_bins = min(_MAX_BINS, max(8, math.isqrt(len(values))))  # few values in many bins are only noise
    counts = torch.histc(values, bins=num_bins, min=low, max=high)
    width = (high - low) / num_bins
    middles = [low + (at + 0.5) * width for at in range(num_bins)]
    heights = [0.0, *(counts / counts.max()).tolist(), 0.0]
    return _Ridge(label=label, places=[low, *middles, high], heights=heights, note=note)


def _ridge_plot(ridges: Sequence[_Ridge], *, title: str, is_log: bool) -> Picture:
    picture = Picture(width=8.0, height=0.46 * len(ridges) + 1.1)
    with picture.drawing() as figure:
        axes = figure.add_subplot()
        for at, ridge in enumerate(ridges):
            base = -at
            if ridge.places:
                line = [base + 0.88 * height for height in ridge.heights]
                axes.fill_between(ridge.places, base, line, color=_BLUE, alpha=0.5, lw=0)
                axes.plot(ridge.places, line, color=_BLUE, lw=1.0)
            axes.axhline(base, color=FAINT, lw=0.6, zorder=0.5)
            is_odd = not ridge.places or "not finite" in ridge.note
            axes.annotate(
                ridge.note,
                (1.01, base),
                xycoords=("axes fraction", "data"),
                fontsize=8,
                color=_ORANGE if is_odd else _GREY,
                va="bottom",
                annotation_clip=False,
            )
        axes.set_yticks([-at for at in range(len(ridges))], [ridge.label for ridge in ridges], fontsize=9)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_ylim(-len(ridges) + 0.8, 1.1)
        if is_log:
            axes.xaxis.set_major_formatter(lambda value, _: f"$10^{{{value:g}}}$")
            axes.xaxis.get_major_locator().set_params(integer=True)
        elif min(min(ridge.places, default=0) for ridge in ridges) < 0:
            axes.axvline(0, color=INK, lw=0.6, alpha=0.4, zorder=0.6)
        axes.set_xlabel("absolute value" if is_log else "value")
        axes.set_title(title, loc="left", fontsize=11)
    return picture


def _flow_plot(flows: Sequence[_Flow], *, title: str) -> Picture:
    seen = [flow for flow in flows if flow.largest > 0]
    least = min((flow.rms for flow in seen), default=1e-3)
    picture = Picture(width=8.0, height=0.27 * len(flows) + 1.3)
    with picture.drawing() as figure:
        axes = figure.add_subplot()
        axes.set_xscale("log")
        for at, flow in enumerate(flows):
            if flow in seen:
                axes.plot([flow.rms, flow.largest], [at, at], color=FAINT, lw=2, zorder=1)
            if flow.mark:
                axes.axhspan(at - 0.5, at + 0.5, color=_ORANGE, alpha=0.12, lw=0)
                axes.annotate(
                    f"✕ {flow.mark}",
                    (0.01, at),
                    xycoords=("axes fraction", "data"),
                    color=_ORANGE,
                    fontsize=9,
                    va="center",
                )
        rows = range(len(flows))
        means = [flow.rms if flow in seen else math.nan for flow in flows]
        axes.plot(means, rows, "o-", color=_BLUE, ms=5, lw=1.2, label="root mean square")
        largest = [flow.largest if flow in seen else math.nan for flow in flows]
        axes.plot(largest, rows, "|", color=INK, ms=9, mew=1.6, label="largest")
        axes.set_yticks(range(len(flows)), [flow.label for flow in flows], fontsize=9)
        axes.set_ylim(len(flows) - 0.5, -0.5)
        axes.set_xlim(left=least / 4)
        axes.grid(axis="x", color=FAINT, lw=0.5)
        axes.set_axisbelow(True)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("absolute gradient")
        axes.set_title(title, loc="left", fontsize=11)
        figure.legend(loc="outside lower right", ncols=2, frameon=False, fontsize=9)
    return picture
