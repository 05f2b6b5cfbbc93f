"""The sections of a report that are words and tables: verdicts, findings, what happened, recipe.

Owns the words. Each returns None where the record has no content for it, and is then omitted.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from truestep.base.redaction import redacted
from truestep.report import measures
from truestep.report.markup import Markup, join, table, tag
from truestep.report.numerals import compared_steps, count, duration, moment, plain
from truestep.report.page import Section
from truestep.report.runs import Story
from truestep.report.verdicts import check_words, findings_in, missing, unsure

_MAX_CARDS = 200
"""Of the findings in the page; the record has all of them."""
_MAX_OPEN = 6
_SEVERITIES = {"error": "bad", "warning": "warn", "info": "note"}


def badge(words: str, *, tone: str) -> Markup:
    """A word that stands out."""
    return tag("span", words, class_=f"badge {tone}")


def _card(
    title: str, *, mark: Markup, tone: str, item: Mapping[str, Any], message: str, rows: Mapping[str, str]
) -> Markup:
    """One finding, or the first difference of `verify`."""
    line = item.get("line")
    place = f"{item['file']}{'' if line is None else f':{line}'}" if item.get("file") else ""
    shown = [join([tag("dt", name), tag("dd", value)]) for name, value in rows.items() if value]
    return tag(
        "article",
        tag("h3", mark, " ", title),
        tag("p", tag("code", place)) if place else None,
        tag("p", message),
        tag("dl", *shown) if shown else None,
        class_=f"finding {tone}",
    )


def _finding(item: Mapping[str, Any]) -> Markup:
    severity = str(item.get("severity", "info"))
    tone = _SEVERITIES.get(severity, "note")
    times = item.get("count")
    follows = item.get("consequences")
    so = [
        f"{each.get('code', '')} {each.get('message', '')}" if isinstance(each, dict) else str(each)
        for each in (follows if isinstance(follows, list) else [])
    ]
    rows = {
        "seen": _evidence(item.get("evidence")),
        "times": plain(times) if isinstance(times, int) and times > 1 else "",
        "cost": _plain_text(item.get("cost")),
        "so": "; ".join(so),
        "fix": _plain_text(item.get("fix")),
    }
    return _card(
        f"{item.get('code', '')} {item.get('name', '')}".strip(),
        mark=badge("remark" if severity == "info" else severity, tone=tone),
        tone=tone,
        item=item,
        message=_plain_text(item.get("message")),
        rows=rows,
    )


def _plain_text(value: object) -> str:
    return "" if value is None else str(value)


def _evidence(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_short(item)}" for key, item in value.items())
    return _plain_text(value)


def _short(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else plain(value)


def findings(story: Story) -> Section | None:
    """What `check` found: rule, place, evidence, fix."""
    answer = story.last_answer("check")
    if answer is None:
        return None
    found = list(findings_in(answer))
    unseen = answer.get("not_seen")
    script = f" Script: {_plain_text(answer.get('script'))}." if answer.get("script") else ""
    rest = f" Not seen: {_short(unseen)}." if isinstance(unseen, list) and unseen else ""
    mark = badge(missing(answer) if not found else "inconclusive", tone="warn") if unsure(answer) else None
    lead = tag("p", mark, " " if mark else "", f"{check_words(answer)}.{script}", rest, class_="lead")
    cut = f"{len(found) - _MAX_CARDS:,} more are in the record." if len(found) > _MAX_CARDS else None
    body = [lead, *map(_finding, found[:_MAX_CARDS]), tag("p", cut) if cut else None]
    return Section("findings", "Findings", join(body))


def is_same(answer: Mapping[str, Any]) -> bool | None:
    """Return what an answer of verify is; None if it is inconclusive."""
    same = answer.get("same")
    return same if isinstance(same, bool) else None


def verdict(story: Story) -> Section | None:
    """What `verify` said, with the digest of each run."""
    answer = story.last_answer("verify")
    if answer is None:
        return None
    same = is_same(answer)
    if same is None:
        lead = join([badge("inconclusive", tone="warn"), " ", answer.get("reason", "")])
    elif same:
        words = f" all runs are bit-for-bit identical in {compared_steps(answer)}"
        lead = join([badge("same", tone="good"), words])
    else:
        lead = join([badge("different", tone="bad"), " ", _difference_words(answer)])
    runs = answer.get("runs")
    listed = [run for run in runs if isinstance(run, dict)] if isinstance(runs, list) else []
    rows = [
        (
            run.get("words", run.get("kind", "")),
            plain(run.get("processes", "")),
            plain(run.get("num_steps", "")),
            tag("code", run.get("digest", "")),
            _compared(run, is_first=index == 0),
        )
        for index, run in enumerate(listed)
    ]
    head = ("run", "processes", "steps", "digest", "compared")
    body = [tag("p", lead, class_="lead"), _difference(answer), table(head, rows, label="Runs of verify")]
    return Section("verify", "Repeated runs", join(body))


def _compared(run: Mapping[str, Any], *, is_first: bool) -> str:
    if run.get("parted_at") is not None:
        step = run["parted_at"]
        return "diverges before the first step" if step == 0 else f"diverges at step {step}"
    return "first run" if is_first else "equal" if "parted_at" in run else ""


def _difference_words(answer: Mapping[str, Any]) -> str:
    found = answer.get("first_difference")
    if not isinstance(found, dict):
        return ""
    return f"from step {plain(found.get('step', ''))} on: {found.get('what', '')}"


def _difference(answer: Mapping[str, Any]) -> Markup | None:
    found = answer.get("first_difference")
    if not isinstance(found, dict):
        return None
    operation = f"{found['operation']} {found.get('module') or ''}" if found.get("operation") else ""
    return _card(
        _plain_text(found.get("name")),
        mark=badge("proved" if found.get("proved") else "likely", tone="bad"),
        tone="bad",
        item=found,
        message=_plain_text(found.get("cause")),
        rows={
            "first": operation,
            "signs": _short(found.get("evidence") or []),
            "fix": _plain_text(found.get("fix")),
        },
    )


def happened(story: Story) -> Section | None:
    """The run's lives, and all that happened in them."""
    if not story.lives:
        return None
    rows = [
        (
            moment(life.time_s),
            f"{life.cursor:,} → {life.last_step:,}",
            plain(life.processes),
            _ending(story, index),
            plain(life.num_void) if life.num_void else "",
            life.facts.get("host", ""),
            tag("code", _command(life.facts.get("argv"))),
        )
        for index, life in enumerate(story.lives)
    ]
    head = ("started", "steps", "processes", "ended", "steps repeated", "machine", "command")
    marks = [tag("li", tag("strong", mark.kind), " ", mark.words) for mark in story.marks]
    notes = list(dict.fromkeys(str(life.facts["note"]) for life in story.lives if life.facts.get("note")))
    words = f"{count(story.num_snapshots, 'snapshot')}, which paused the loop for {duration(story.held_s)}."
    body = [
        tag("p", words if story.num_snapshots else "No snapshot was saved.", class_="lead"),
        table(head, rows, label="Lives of the run"),
        folded("All marks", tag("ul", *marks), num=len(marks)) if marks else None,
        *(tag("p", note) for note in notes),
    ]
    return Section("lives", "What happened", join(body))


def folded(title: str, body: Markup, *, num: int) -> Markup:
    """Something that is opened when wanted if it is long."""
    head = tag("summary", f"{title} ({num:,})")
    is_open = num <= _MAX_OPEN
    return tag("details", head, tag("div", body, class_="long", tabindex="0"), open=is_open)


def _ending(story: Story, index: int) -> Markup:
    if story.lives[index].is_stopped:
        return badge("stopped", tone="warn")
    if story.lives[index].is_ended:
        return badge("ended" if story.total is None else "done", tone="good")
    is_last = index == len(story.lives) - 1
    return badge("no end recorded", tone="warn") if is_last else badge("killed", tone="bad")


def _command(argv: Any) -> str:
    return " ".join(redacted(map(str, argv))) if isinstance(argv, list) else _plain_text(argv)


def facts(story: Story) -> Section | None:
    """Recipe and fingerprint: what the bits depend on."""
    if not story.lives:
        return None
    tables = [
        tag(
            "div",
            tag("h3", title),
            table(("field", "value"), list(measures.flat(story.facts.get(part, {})).items()), label=title),
        )
        for part, title in (("recipe", "Recipe"), ("fingerprint", "Fingerprint of the machine"))
    ]
    note = tag("p", "Everything that results depend on besides the script and its data.", class_="lead")
    return Section("facts", "Recipe and fingerprint", join([note, tag("div", *tables, class_="pair")]))


def logged(story: Story) -> Markup:
    """A table of the values that the script logged, for those too many to draw."""
    rows = [(name, plain(len(series)), *_ends(series.values)) for name, series in story.values.items()]
    head = ("name", "values", "first", "lowest", "highest", "last")
    return folded("All values in numbers", table(head, rows, label="Values logged"), num=len(rows))


def _ends(values: Any) -> tuple[str, ...]:
    finite = values[np.isfinite(values)]
    if not len(values):
        return ("", "", "", "")
    lowest, highest = (float(finite.min()), float(finite.max())) if len(finite) else (np.nan, np.nan)
    return tuple(plain(float(value)) for value in (values[0], lowest, highest, values[-1]))


def unread(story: Story) -> Section | None:
    """Lines of the record that could not be shown."""
    if not story.strange and not story.num_torn:
        return None
    torn = f"{count(story.num_torn, 'line')} cut short by killed processes. " if story.num_torn else ""
    odd = f"{count(len(story.strange), 'line')} of an unknown kind or form:" if story.strange else ""
    lines = tag("pre", tag("code", "\n".join(story.strange)), tabindex="0")
    body = [tag("p", torn, odd), folded("Lines", lines, num=len(story.strange)) if story.strange else None]
    return Section("unread", "Unreadable lines", join(body))
