"""The page: sections and charts put into one HTML file that needs nothing else.

Owns the document, its style and script, and the policy that lets only these run. What the sections say is
`sections`'.
"""

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from truestep.report.charts import Chart
from truestep.report.markup import Markup, data, join, tag
from truestep.report.sections import NUM_SHOWN, Section

_MAX_PLAIN = 200_000
"""Characters of a list that stand in the page as they are; longer ones are packed."""


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A number in the head of the page."""

    label: str
    value: str
    note: str = ""
    tone: str = ""


@dataclass(frozen=True, kw_only=True)
class Chapter:
    """Sections under one heading; with one run there is one chapter without a heading."""

    title: str
    sections: Sequence[Section]


@cache
def _asset(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def render(title: str, *, verdict: Markup, tiles: Sequence[Tile], chapters: Sequence[Chapter]) -> str:
    """Return the whole document."""
    script, style = _asset("report.js"), _asset("report.css")
    script_hash = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{script_hash}'; "
        "style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{title} · truestep report"),
        tag("style", Markup(style)),
    )
    numbered = [
        Chapter(title=chapter.title, sections=chapter.sections) for chapter in chapters if chapter.sections
    ]
    main = join(_chapter(chapter, index) for index, chapter in enumerate(numbered))
    body = tag(
        "body",
        tag("a", "Skip to the content", href="#content", class_="skip"),
        _banner(title, verdict, tiles),
        tag("div", _contents(numbered), tag("main", main, id="content"), class_="columns"),
        tag("footer", tag("p", "Made by truestep report. Times are in UTC.")),
        tag("script", Markup(script)),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _banner(title: str, verdict: Markup, tiles: Sequence[Tile]) -> Markup:
    shown = [
        tag(
            "li",
            tag("span", tile.label, class_="label"),
            tag("span", tile.value, class_="value"),
            tag("span", tile.note, class_="more") if tile.note else None,
            class_=f"tile {tile.tone}".strip(),
        )
        for tile in tiles
    ]
    return tag(
        "header",
        tag("p", "truestep report", class_="brand"),
        tag("h1", title),
        tag("p", verdict, class_="verdict"),
        tag("ul", *shown, class_="tiles", aria_label="In numbers"),
    )


def _contents(chapters: Sequence[Chapter]) -> Markup:
    items: list[Markup] = []
    for index, chapter in enumerate(chapters):
        if chapter.title:
            items.append(tag("li", chapter.title, class_="run"))
        items += [
            tag("li", tag("a", section.title, href=f"#{section.key}-{index}")) for section in chapter.sections
        ]
    return tag("nav", tag("ul", *items), aria_label="Contents")


def _chapter(chapter: Chapter, index: int) -> Markup:
    # What stands under a run's name is named with it: several runs have sections of the same title.
    before = f"run-{index} " if chapter.title else ""
    sections = join(_section(section, index, before=before) for section in chapter.sections)
    heading = tag("h2", chapter.title, class_="run", id=f"run-{index}")
    return join([heading, sections]) if chapter.title else sections


def _section(section: Section, index: int, *, before: str) -> Markup:
    key = f"{section.key}-{index}"
    charts = [_chart(chart, f"{key}-{number}") for number, chart in enumerate(section.charts)]
    return tag(
        "section",
        tag("h2", section.title, id=f"{key}-title"),
        section.body,
        _more(section, key) if section.rest else None,
        tag("div", *charts, class_="charts" if len(charts) > 1 else "charts one") if charts else None,
        section.after,
        id=key,
        aria_labelledby=f"{before}{key}-title",
    )


def _block(value: Any, key: str) -> Markup:
    """Data for the script: as JSON, or packed if it is long."""
    written = json.dumps(value, separators=(",", ":"))
    if len(written) <= _MAX_PLAIN:
        return tag("script", data(value), type="application/json", id=key)
    packed = base64.b64encode(gzip.compress(written.encode(), 6, mtime=0)).decode()
    return tag("script", Markup(packed), type="text/plain", id=key)


def _chart(chart: Chart, key: str) -> Markup:
    drawing = None
    if chart.drawing is not None:
        named = {"aria_labelledby": f"{key}-title", "aria_describedby": f"{key}-words"}
        drawing = tag("div", chart.drawing, id=key, class_="chart", role="group", **named)
    return tag(
        "figure",
        tag("figcaption", tag("h3", chart.title, id=f"{key}-title")),
        drawing,
        tag("p", chart.words, id=f"{key}-words", class_="words"),
    )


def _more(section: Section, key: str) -> Markup:
    """The rest of a long list: found by words, and shown some at a time."""
    field = f"{key}-filter"
    words = f"{min(NUM_SHOWN, section.num_all):,} of {section.num_all:,} are shown above."
    return tag(
        "div",
        tag("div", class_="shown"),
        tag("p", words, class_="state", aria_live="polite"),
        tag("label", "Only those with ", for_=field),
        tag("input", type="search", id=field, autocomplete="off"),
        tag("button", f"Show {NUM_SHOWN} more", type="button", class_="further"),
        _block(section.rest, f"{key}-rest"),
        class_="rest",
        id=f"{key}-list",
        data_step=NUM_SHOWN,
    )
