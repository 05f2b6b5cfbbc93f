"""The listing as one HTML file: no server, nothing loaded from elsewhere, light and dark.

Owns the document. Every text from the script is escaped, and nothing of it can run.
"""

import base64
import hashlib
import html
import io
import keyword
import math
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from truestep.show.listing import ODD_FACTS, File, Listing, Row, Value
from truestep.show.text import compared_words, other_words, short_path
from truestep.watch.evidence.phases import phase_words

_ASSETS = Path(__file__).parent
_MIN_SHARE = 0.002
_KEYWORDS = frozenset(keyword.kwlist)
_SPARK = (100, 18)
_DIFFERENT = '<label><input type="checkbox" id="different" checked> only differences</label>'


def write_page(listing: Listing, path: Path, *, title: str) -> None:
    """Write the page."""
    path.write_text(render_page(listing, title=title), encoding="utf-8")


def render_page(listing: Listing, *, title: str) -> str:
    """Return the whole document."""
    style, script = ((_ASSETS / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    body = "".join(_file(item, listing, is_open=number == 0) for number, item in enumerate(listing.files))
    odd = sum(value.is_odd for item in listing.files for row in item.rows for value in row.values)
    failed = (
        f'<p class="failed">The script failed: {_text(listing.error)}</p>'
        if listing.ended == "raised"
        else ""
    )
    steps = f"{listing.num_steps} optimizer step{'s' * (listing.num_steps != 1)}"
    time = f" Time of a step: {phase_words(listing.phases)}." if listing.phases else ""
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">'
        f'<meta name="color-scheme" content="light dark"><title>{_text(title)} · truestep show</title>'
        f"<style>{style}</style></head><body><header><h1>{_text(title)}</h1>"
        f"<p>{steps}. Beside each line: values at the first call → at the last, how often it ran while "
        f"lines were followed, and its share of that time.{time}</p>{failed}{_compared(listing)}"
        '<div class="tools"><input id="search" type="search" placeholder="Search" aria-label="Search">'
        '<label><input type="checkbox" id="ran" checked> only lines that ran</label>'
        f'<label><input type="checkbox" id="odd"> only odd values ({odd})</label>'
        '<label><input type="checkbox" id="changed"> only values that change</label>'
        f"{_DIFFERENT if listing.against else ''}</div></header>"
        f"<main>{body}</main><script>{script}</script></body></html>\n"
    )


def _compared(listing: Listing) -> str:
    return f'<p class="compared">{_text(compared_words(listing))}</p>' if listing.against else ""


def _policy(script: str) -> str:
    """Return a policy that lets only our script run."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def _file(item: File, listing: Listing, *, is_open: bool) -> str:
    code = _highlighted([row.source for row in item.rows])
    rows = "".join(_row(row, text, listing) for row, text in zip(item.rows, code, strict=True))
    opened = " open" if is_open else ""
    name = _text(short_path(item.path))
    return f"<details{opened}><summary>{name}</summary><table><tbody>{rows}</tbody></table></details>"


def _row(row: Row, code: str, listing: Listing) -> str:
    share = listing.share(row)
    bar = f'<i style="width:{min(100.0, 100 * share):.1f}%" title="{100 * share:.1f} % of the time"></i>'
    values = "".join([*map(_finding, row.findings), *map(_value, row.values)])
    state = "ran" if row.count else "idle" if row.source.strip() else "blank"
    state += " found" * bool(row.findings) + " new" * row.is_new + " differs" * row.differs
    gone = "".join(
        f'<tr class="gone differs"><td class="n">-</td><td class="c"></td><td class="t"></td>'
        f'<td class="s"><pre>{_text(item.source) or " "}</pre></td><td class="v"></td></tr>'
        for item in row.gone
    )
    return gone + (
        f'<tr class="{state}" id="L{row.number}"><td class="n">{row.number}</td>'
        f'<td class="c">{row.count if row.count > 1 else ""}</td>'
        f'<td class="t">{bar if share > _MIN_SHARE else ""}</td>'
        f'<td class="s"><pre>{code or " "}</pre></td><td class="v">{values}</td></tr>'
    )


def _finding(found: dict[str, Any]) -> str:
    severity, code = _text(found["severity"]), _text(found["code"])
    head = f'<b>{severity}</b> {_text(found["message"])} <span class="kind">{code}</span>'
    seen = f"<p>{_text(found['evidence'])}</p>" if found["evidence"] else ""
    text = f"{seen}<p>{_text(found['fix'])}</p>"
    return f'<details class="finding {severity}"><summary>{head}</summary>{text}</details>'


def _value(value: Value) -> str:
    facts = "".join(_fact(fact) for fact in value.facts)
    change = f' <span class="then">→ {_text(value.change)}</span>' if value.change else ""
    kinds = f"value{' odd' * value.is_odd}{' changes' * bool(value.change)}"
    kind = f'<span class="kind">{_text(value.kind)}</span>'
    other = f'<div class="other">≠ {_text(other_words(value))}</div>' if value.differs else ""
    head = f"<b>{_text(value.label)}</b> {kind} {_text(value.first)}{change}"
    history = "".join(f"<li value={call}>{_text(words)}</li>" for call, words in value.history)
    if len(value.history) < 2:
        return f'<div class="{kinds}">{head}{facts}{other}</div>'
    shown = f"<summary>{head}{_spark(value)}{facts}{other}</summary><ol>{history}</ol>"
    return f'<details class="{kinds}">{shown}</details>'


def _fact(fact: str) -> str:
    return f'<span class="fact{" odd" * fact.startswith(ODD_FACTS)}">{_text(fact)}</span>'


def _spark(value: Value) -> str:
    points = [(call, number) for call, number in value.curve if math.isfinite(number)]
    low, high = min((y for _, y in points), default=0.0), max((y for _, y in points), default=0.0)
    if len(points) < 3 or low == high:
        return ""
    width, height = _SPARK
    first, last = points[0][0], points[-1][0]
    scaled = " ".join(
        f"{(x - first) * width / max(1, last - first):.1f},"
        f"{height - 2 - (height - 4) * (y - low) / (high - low):.1f}"
        for x, y in points
    )
    box = f'viewBox="0 0 {width} {height}" role="img" aria-label="curve"'
    return f'<svg {box}><polyline points="{scaled}"/></svg>'


def _highlighted(lines: list[str]) -> list[str]:
    """Return the lines as HTML with syntax colors; plain if they are not Python."""
    spans: dict[int, list[tuple[int, int, str]]] = {}
    try:
        for kind, (row, start), (last, end) in _tokens(lines):
            for number in range(row, last + 1):
                begin = start if number == row else 0
                stop = end if number == last else len(lines[number - 1])
                spans.setdefault(number, []).append((begin, stop, kind))
    except (tokenize.TokenError, SyntaxError):
        return [_text(line) for line in lines]
    return [_marked(line, spans.get(number, [])) for number, line in enumerate(lines, start=1)]


def _tokens(lines: list[str]) -> Iterator[tuple[str, Any, Any]]:
    kinds = {tokenize.STRING: "str", tokenize.COMMENT: "com", tokenize.NUMBER: "num"}
    for token in tokenize.generate_tokens(io.StringIO("\n".join(lines) + "\n").readline):
        kind = kinds.get(token.type) or ("key" if token.string in _KEYWORDS else "")
        if kind:
            yield kind, token.start, token.end


def _marked(line: str, spans: list[tuple[int, int, str]]) -> str:
    parts, at = [], 0
    for begin, end, kind in spans:
        parts.append(_text(line[at:begin]))
        parts.append(f'<span class="{kind}">{_text(line[begin:end])}</span>')
        at = end
    return "".join([*parts, _text(line[at:])])


def _text(value: object) -> str:
    return html.escape(str(value))
