"""The sections of what a script showed itself: distributions of tensors, pictures, texts.

Owns how many of them are in the page; all others are counted. Reading files is left to `pngs`.
"""

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np

from truestep.report import charts
from truestep.report.exhibits import Exhibit, Spread, fair, newest
from truestep.report.markup import Markup, join, table, tag
from truestep.report.numerals import count, plain
from truestep.report.pngs import MAX_BYTES, Png, read_png
from truestep.report.runs import Story
from truestep.report.sections import NUM_SHOWN, Section, card, folded
from truestep.report.thin import Series

_MAX_CHARTS = 24
_MAX_PICTURES = 24
_WIDE = 1000
"""From so many pixels on a picture has a row of its own."""
_SMALL = 64
"""Pictures of fewer pixels on a side are shown in large pixels, not blurred."""


def distributions(stories: Sequence[Story]) -> Section | None:
    """How the values of logged tensors were spread, over steps."""
    named = [
        (index, story, name, found)
        for index, story in enumerate(stories)
        for name, found in sorted(story.exhibits.spreads.items())
        if found
    ]
    if not named:
        return None
    several = len(stories) > 1
    drawn = [
        charts.bands(
            f"{story.name}: {name}" if several else name, _columns(found), colour=charts.colour(index)
        )
        for index, story, name, found in named[:_MAX_CHARTS]
    ]
    head = ("name", "times", "last at", "mean", "spread", "lowest", "highest", "values", "not finite")
    rows = [
        (*((story.name,) if several else ()), name, plain(len(found)), *_last(found))
        for _, story, name, found in named
    ]
    listed = table((*(("run",) if several else ()), *head), rows, label="Distributions")
    rest = f" The first {_MAX_CHARTS} of {len(named):,} are drawn." if len(named) > _MAX_CHARTS else ""
    words = f"The inner band holds the middle half of a tensor's values, the outer one nine of ten.{rest}"
    return Section(
        key="distributions",
        title="Distributions",
        body=tag("p", words, class_="lead"),
        charts=[chart for chart in drawn if chart is not None],
        after=folded("All distributions in numbers", listed, num=len(rows)),
    )


def _columns(found: dict[int, Spread]) -> list[Series]:
    """Lowest, quantiles, highest: each over the same steps."""
    steps = np.array(sorted(found), dtype=np.int64)
    rows = [found[step] for step in steps.tolist()]
    table_of = np.array([(row.low, *row.quantiles, row.high) for row in rows], dtype=np.float64)
    return [Series(steps=steps, values=column) for column in table_of.T]


def _last(found: dict[int, Spread]) -> tuple[str, ...]:
    step = max(found)
    last = found[step]
    numbers = (last.mean, last.std, last.low, last.high, last.num, last.num_nonfinite)
    return (f"step {step:,}", *map(plain, numbers))


def shown(story: Story) -> Section | None:
    """Pictures and texts, the newest first."""
    pictures, texts = story.exhibits.pictures, story.exhibits.texts
    if not pictures and not texts:
        return None
    figures, left_out = _pictures(story)
    cards = [_card(item) for item in newest(texts)]
    num = sum(map(len, figures.values()))
    some = f"{count(num, 'picture')} of {len(pictures):,}" if num < len(pictures) else count(num, "picture")
    counts = [some if pictures else "", count(len(texts), "text") if texts else ""]
    body = [
        tag("p", " and ".join(filter(None, counts)) + ", the newest first.", class_="lead"),
        *(join([tag("h3", name), tag("div", *each, class_="pictures")]) for name, each in figures.items()),
        folded("Pictures that are not in this page", tag("ul", *left_out), num=len(left_out))
        if left_out
        else None,
        *map(card, cards[:NUM_SHOWN]),
    ]
    return Section(key="shown", title="Shown", body=join(body), rest=cards[NUM_SHOWN:], num_all=len(cards))


def _pictures(story: Story) -> tuple[dict[str, list[Markup]], list[Markup]]:
    """Return the pictures that fit by name, and of the others which they are and why they are not there."""
    left_bytes = MAX_BYTES
    kept: dict[tuple[str, int], Markup] = {}
    why: dict[tuple[str, int], str] = {}
    for item in fair(story.exhibits.pictures):
        key = (item.name, item.cursor)
        found = read_png(story.folder, item.content) if len(kept) < _MAX_PICTURES else "older"
        if isinstance(found, str):
            why[key] = found
        elif len(found.data) > left_bytes:
            why[key] = "no room left"
        else:
            left_bytes -= len(found.data)
            kept[key] = _figure(item, found)
    ordered = [(item.name, item.cursor) for item in newest(story.exhibits.pictures)]
    files = story.exhibits.pictures
    left_out = [
        tag(
            "li",
            tag("strong", key[0]),
            f" after {key[1]:,} steps: ",
            tag("code", files[key].content),
            f" {why[key]}",
        )
        for key in ordered
        if key in why
    ]
    by_name: dict[str, list[Markup]] = {}
    for key in ordered:
        if key in kept:
            by_name.setdefault(key[0], []).append(kept[key])
    return by_name, left_out


def _figure(item: Exhibit, png: Png) -> Markup:
    source = f"data:image/png;base64,{base64.b64encode(png.data).decode()}"
    is_small = max(png.width, png.height) < _SMALL
    image = tag(
        "img",
        src=Markup(source),
        alt=f"{item.name} after {item.cursor:,} steps",
        width=png.width,
        height=png.height,
        class_="small" if is_small else None,
        loading="lazy",
        decoding="async",
    )
    frame = tag("div", image, class_="frame")
    label = tag("figcaption", f"step {item.cursor:,}")
    return tag("figure", frame, label, class_="wide" if png.width > _WIDE else None)


def _card(item: Exhibit) -> dict[str, Any]:
    return {
        "tone": "text",
        "tone_word": f"step {item.cursor:,}",
        "title": item.name,
        "place": "",
        "message": item.content,
        "rows": [],
    }
