"""The picture of one step: which phase, when, and how much of all steps each phase takes.

Owns what is drawn and where. The figure and the house's colours are `truestep.picture`'s.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from truestep.picture import COLOURS, FAINT, INK, PAPER, Picture
from truestep.tune.profile.phases import Span
from truestep.tune.profile.profile import Profile, percents
from truestep.tune.profile.profile_page import WORDS, duration

_COLOUR_OF = {
    "data": COLOURS[0],
    "to_device": COLOURS[6],
    "forward": COLOURS[2],
    "backward": COLOURS[3],
    "optimizer": COLOURS[1],
    "other": COLOURS[7],
}
_WIDTH, _ROW, _FRAME = 9.0, 0.36, 1.35
_ROOM = 0.22
"""The part of the width that the name of a line takes."""


def draw(profile: Profile) -> Picture:
    """Return a usual step as a timeline with a row for each phase, and each phase's share over all steps."""
    rows = [row for row in profile.shares if row.share > 0 or row.phase != "to_device"]
    numbers = dict(zip((row.phase for row in profile.shares), percents(profile.shares), strict=True))
    unit, name = _unit(profile.example[-1].end_s if profile.example else profile.step_s)
    picture = Picture(width=_WIDTH, height=_FRAME + _ROW * len(rows))
    with picture.drawing() as figure:
        axes = figure.add_subplot()
        place_of = {row.phase: index for index, row in enumerate(rows)}
        for row in rows:
            _draw_row(axes, place_of[row.phase], [s for s in profile.example if s.phase == row.phase], unit)
        _label(axes, profile.example, place_of, unit)
        axes.set_yticks(range(len(rows)), [f"{WORDS[row.phase]}  {numbers[row.phase]} %" for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(0, (profile.example[-1].end_s if profile.example else 1) / unit)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(f"one step, in {name}")
        spread = f"{duration(profile.step_low_s)} to {duration(profile.step_high_s)}"
        axes.set_title(
            f"A step takes {duration(profile.step_s)} ({spread}). Shares: {profile.num_steps} steps.",
            loc="left",
            fontsize=11,
        )
    return picture


def _unit(seconds: float) -> tuple[float, str]:
    return (1.0, "seconds") if seconds >= 1 else (1e-3, "milliseconds")


def _draw_row(axes: Any, place: int, spans: Sequence[Span], unit: float) -> None:
    axes.axhline(place, color=FAINT, linewidth=0.8, zorder=0)
    bars = [(span.begin_s / unit, span.took_s / unit) for span in spans]
    if spans:
        colour = _COLOUR_OF[spans[0].phase]
        # A thin edge keeps what is shorter than a pixel in sight.
        axes.broken_barh(bars, (place - 0.34, 0.68), facecolors=colour, edgecolors=colour, linewidth=0.6)


def _label(axes: Any, spans: Sequence[Span], place_of: dict[str, int], unit: float) -> None:
    """Write the line of the longest stretch of each phase in it, or where its phase leaves the most room."""
    whole = spans[-1].end_s if spans else 0.0
    for phase, place in place_of.items():
        own = [span for span in spans if span.phase == phase]
        longest = max((span for span in own if span.file), key=lambda span: span.took_s, default=None)
        if longest is None:
            continue
        text = f"{Path(longest.file or '').name}:{longest.line}"
        if longest.took_s > _ROOM * whole:
            middle = (longest.begin_s + longest.end_s) / 2 / unit
            axes.text(middle, place, text, ha="center", va="center_baseline", fontsize=9, color=PAPER)
            continue
        begin_s, end_s = _widest_gap(own, whole)
        is_left = begin_s == 0  # a gap at the very left has its bar on its right
        axes.annotate(
            text,
            ((end_s if is_left else begin_s) / unit, place),
            xytext=(-6 if is_left else 6, 0),
            textcoords="offset points",
            ha="right" if is_left else "left",
            va="center_baseline",
            fontsize=9,
            color=INK,
            backgroundcolor=PAPER,
        )


def _widest_gap(spans: Sequence[Span], whole_s: float) -> tuple[float, float]:
    """Return the longest time of a step in which none of the spans is."""
    ends = sorted((span.begin_s, span.end_s) for span in spans)
    begins = [0.0, *(end for _, end in ends)]
    gaps = zip(begins, [*(begin for begin, _ in ends), whole_s], strict=True)
    return max(gaps, key=lambda gap: gap[1] - gap[0])
