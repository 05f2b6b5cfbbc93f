"""A profile as lines for a terminal: at most 25, each at most 80 characters wide.

Owns what is shown of it, and in which order. Colours are styles that the caller's page knows.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from truestep.tune.profile.details import LineShare
from truestep.tune.profile.profile import Profile, Share, percents
from truestep.tune.search.loading import Advice

Part = str | tuple[str, str]
"""A text, or a text and its style."""
Line = list[Part]

WORDS = {
    "data": "data",
    "to_device": "to device",
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer",
    "other": "other",
}
STYLES = {
    "data": "blue",
    "to_device": "cyan",
    "forward": "green",
    "backward": "magenta",
    "optimizer": "yellow",
    "other": "dim",
}
_WIDTH = 80
_BAR = 36
_MAX_LINES, _MAX_MODULES = 6, 3
_BLOCKS = " ▏▎▍▌▋▊▉"


def render(profile: Profile, *, advice: Advice | None = None) -> list[Line]:
    """Return the lines, each as its parts."""
    numbers = percents(profile.shares)
    phases = [_phase(row, number) for row, number in zip(profile.shares, numbers, strict=True)]
    lines = [_head(profile), *(line for line in phases if line)]
    if profile.interrupted_steps:
        lines.append(_interrupted(profile))
    lines += _code(profile.lines)
    if advice is None:  # else the model is not what it waits for
        lines += _modules(profile)
    if advice is not None:
        lines.append([""])
        lines += [[(line, "bold")] for line in _wrapped(advice.words)]
    lines += [[(_cut(f"note: {trouble}", _WIDTH), "dim")] for trouble in profile.troubles[:2]]
    return lines


def duration(seconds: float) -> str:
    """Return seconds in a unit that fits: 12.4 ms."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= factor or unit == "us":
            break
    value = seconds / factor
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def _head(profile: Profile) -> Line:
    spread = f"{duration(profile.step_low_s)} to {duration(profile.step_high_s)}"
    counted = f"after {profile.num_warm} warm-up steps" if profile.is_enough else "too few to be sure"
    spread_text = f"  ({spread}; {profile.num_steps} steps {counted})"
    return [
        "a step takes ",
        (duration(profile.step_s), "bold"),
        (spread_text, "" if profile.is_enough else "yellow"),
    ]


def _phase(row: Share, percent: int) -> Line:
    if row.phase == "to_device" and row.seconds == 0:
        return []  # there is no other device
    bar = _bar(row.share)
    spread = f"{100 * row.low:.0f} to {100 * row.high:.0f} %"
    return [
        f"  {WORDS[row.phase]:<10}{percent:>3} %  ",
        (f"{bar:<{_BAR}}", STYLES[row.phase]),
        f" {duration(row.seconds):>8}",
        (f"  {spread}", "dim"),
    ]


def _bar(share: float) -> str:
    eighths = round(share * _BAR * 8)
    full, rest = divmod(eighths, 8)
    return "█" * full + (_BLOCKS[rest] if rest else "")


def _interrupted(profile: Profile) -> Line:
    num = profile.interrupted_steps
    words = f"{num} step{'s' if num > 1 else ''} with evaluation not counted"
    return [(f"  {words}: {100 * profile.interrupted_share:.0f} % of the total time", "dim")]


def _code(rows: Sequence[LineShare]) -> list[Line]:
    shown = [row for row in rows if row.share >= 0.01][:_MAX_LINES]
    if not shown:
        return []
    places = [_place(row.file, row.line) for row in shown]
    width = min(28, max(map(len, places)))
    lines: list[Line] = [[""], [("lines", "bold"), ("  (+: in the backward pass)", "dim")]]
    for row, place in zip(shown, places, strict=True):
        gradient = f"+{100 * row.backward:.0f}" if row.backward >= 0.01 else ""
        source = f"{row.function}: Python code" if row.function else row.source
        before = f"  {100 * row.share:>3.0f} % {gradient:>3}  {_cut_front(place, width):<{width}}  "
        lines.append([before, (_cut(source, _WIDTH - len(before)), "cyan")])
    return lines


def _modules(profile: Profile) -> list[Line]:
    rows = sorted(profile.modules, key=lambda row: -row.own)[:_MAX_MODULES]
    rows = [row for row in rows if row.own >= 0.01]
    if not rows:
        return []
    lines: list[Line] = [[""], [("modules", "bold"), ("  (forward + backward, including submodules)", "dim")]]
    for row in rows:
        shares = f"{100 * row.forward:>3.0f} + {100 * row.backward:.0f} %"
        before = f"  {shares:<11}  {_cut_front(row.name, 44):<20}  "
        lines.append([before, (_cut(row.kind, max(8, _WIDTH - len(before))), "dim")])
    return lines


def _place(file: str, line: int) -> str:
    path = Path(file)
    inside = path.is_relative_to(Path.cwd())
    return f"{path.relative_to(Path.cwd()) if inside else os.path.basename(file)}:{line}"  # noqa: PTH119


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 3)] + "..."


def _cut_front(text: str, width: int) -> str:
    return text if len(text) <= width else "..." + text[len(text) - width + 3 :]


def _wrapped(words: str) -> list[str]:
    import textwrap  # noqa: PLC0415

    return textwrap.wrap(words, _WIDTH - 2)
