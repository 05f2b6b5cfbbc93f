"""The page: sections and charts put into one HTML file that needs nothing else.

Owns the document, its style, and the policy that lets nothing run. What the sections say is `sections`'.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from truestep.report.charts import Chart
from truestep.report.markup import Markup, tag

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


class Tile(NamedTuple):
    """A number in the head of the page."""

    label: str
    value: str
    note: str = ""
    tone: str = ""


class Section(NamedTuple):
    """A part of the page: its heading, markup, charts, and markup after them."""

    key: str
    title: str
    body: Markup | None = None
    charts: Sequence[Chart] = ()
    after: Markup | None = None


def render(title: str, *, verdict: str, tiles: Sequence[Tile], sections: Sequence[Section]) -> str:
    """Return the whole document."""
    style = (Path(__file__).parent / "report.css").read_text(encoding="utf-8")
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{title} · truestep report"),
        tag("style", Markup(style)),
    )
    banner = tag(
        "header",
        tag("p", "truestep report", class_="brand"),
        tag("h1", title),
        tag("p", verdict, class_="verdict"),
        tag("ul", *map(_tile, tiles), class_="tiles", aria_label="In numbers"),
    )
    links = [tag("li", tag("a", section.title, href=f"#{section.key}")) for section in sections]
    contents = tag("nav", tag("ul", *links), aria_label="Contents")
    body = tag(
        "body",
        tag("a", "Skip to the content", href="#content", class_="skip"),
        banner,
        tag("div", contents, tag("main", *map(_section, sections), id="content"), class_="columns"),
        tag("footer", tag("p", "Made by truestep report. Times are in UTC.")),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _tile(tile: Tile) -> Markup:
    return tag(
        "li",
        tag("span", tile.label, class_="label"),
        tag("span", tile.value, class_="value"),
        tag("span", tile.note, class_="more") if tile.note else None,
        class_=f"tile {tile.tone}".strip(),
    )


def _section(section: Section) -> Markup:
    key = section.key
    charts = [_chart(chart, f"{key}-{number}") for number, chart in enumerate(section.charts)]
    return tag(
        "section",
        tag("h2", section.title, id=f"{key}-title"),
        section.body,
        tag("div", *charts, class_="charts" if len(charts) > 1 else "charts one") if charts else None,
        section.after,
        id=key,
        aria_labelledby=f"{key}-title",
    )


def _chart(chart: Chart, key: str) -> Markup:
    drawing = None
    if chart.drawing is not None:
        named = {"aria_labelledby": f"{key}-title", "aria_describedby": f"{key}-words"}
        drawing = tag("div", chart.drawing, class_="chart", role="group", **named)
    return tag(
        "figure",
        tag("figcaption", tag("h3", chart.title, id=f"{key}-title")),
        drawing,
        tag("p", chart.words, id=f"{key}-words", class_="words"),
    )
