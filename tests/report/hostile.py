"""A run folder that somebody wrote who means harm."""

import json
from pathlib import Path

SCRIPT = "</script><script>document.title='owned'</script>"
IMAGE = "<img src=x onerror=\"document.title='owned'\">"
LINK = "<a href=\"javascript:document.title='owned'\">click</a>"
TEMPLATE = "%{customdata}%{fullData.name}<extra><b onclick=\"document.title='owned'\">x</b></extra>"
QUOTES = "\" onmouseover=\"document.title='owned'\" autofocus onfocus=\"document.title='owned'\" x='"
COMMENT = "--><!--<script>]]>\u2028\u2029\u202eabc\u0000\ud800"
BOLD = "<b>bold</b>"
ALL = [SCRIPT, IMAGE, LINK, TEMPLATE, QUOTES, COMMENT]


def finding(number: int) -> dict[str, object]:
    """One finding full of markup; its number tells it from the others."""
    nasty = ALL[number % len(ALL)]
    return {
        "code": f"BAD{number:06d}{nasty}",
        "name": nasty,
        "severity": ["error", "warning", "info", nasty][number % 4],
        "file": f"/tmp/{nasty}.py",
        "line": number if number % 3 else nasty,
        "message": f"{nasty} {number}",
        "evidence": {nasty: [nasty, 1e308, None], "nested": {nasty: nasty}},
        "cost": nasty,
        "fix": nasty,
        "step": number,
        "count": 10**400 if number == 1 else 2,
        "consequences": [{"code": nasty, "message": nasty}, nasty, None],
    }


def _named_badly() -> list[object]:
    lines: list[object] = []
    for number, nasty in enumerate(ALL):
        lines.append(
            {"kind": "values", "time_s": 1, "name": nasty, "steps": [1, 2], "values": [1e308, number]}
        )
        lines.append({"kind": "evaluate", "time_s": 1, "name": nasty, "cursor": 3, "value": {nasty: 0.5}})
        lines.append({"kind": "evaluate", "time_s": 1, "name": nasty, "cursor": 4, "value": {nasty: nasty}})
    return lines


def hostile_run(folder: Path, *, num_findings: int) -> Path:
    """Write it; the folder's own name is markup too."""
    folder = folder / "<img src=x onerror=document.title='owned'>"
    folder.mkdir(parents=True)
    facts = {nasty: nasty for nasty in ALL}
    begun = {"kind": "start", "time_s": 1e9, "version": 1, "run": SCRIPT, "pid": SCRIPT, "host": IMAGE}
    begun |= {"argv": ALL, "processes": 1, "note": SCRIPT, "recipe": facts, "fingerprint": {SCRIPT: facts}}
    values = [1.0, "nan", "inf", "-inf", 1e308, -1e308, 5e-324, 0.0, *range(200)]
    lines: list[object] = [
        begun | {"cursor": 0},
        {"kind": "steps", "time_s": 1e300, "first": 0, "loss": values, "end_us": list(range(len(values)))},
        {"kind": SCRIPT, "time_s": SCRIPT, SCRIPT: ALL},
        {"kind": "snapshot", "time_s": 1, "cursor": 3, "held_s": 1e308},
        {"kind": "lineage", "time_s": 1, "step": 2, "field": SCRIPT, "then": IMAGE, "now": LINK},
        {"kind": "damage", "time_s": 1, "path": SCRIPT, "reason": IMAGE},
        {"kind": "save-failed", "time_s": 1, "reason": TEMPLATE},
        begun | {"cursor": 100, "processes": 2, "time_s": "inf", "recipe": ALL, "note": {"a": IMAGE}},
        {"kind": "steps", "time_s": 1, "first": 100, "loss": [1e308, -1e308] * 100, "end_us": [0] * 200},
        {"kind": "steps", "time_s": 1, "first": 2**62, "loss": [1.0], "end_us": [1e300]},
    ]
    lines += _named_badly()
    lines += [
        {"kind": "evaluate", "time_s": 1, "name": SCRIPT, "cursor": 5, "value": [[1, 1e308], [3, 4]]},
        {
            "kind": "verify",
            "time_s": 1,
            "same": SCRIPT,
            "runs": [{"digest": SCRIPT, "words": IMAGE}, 7, None],
        },
        {
            "kind": "verify",
            "time_s": 1,
            "same": False,
            "runs": SCRIPT,
            "first_difference": facts | {"file": LINK},
        },
        {"kind": "check", "time_s": 1, "script": SCRIPT, "steps": IMAGE, "not_observed": LINK, "findings": 3},
        {
            "kind": "check",
            "time_s": 1,
            "script": SCRIPT,
            "findings": [finding(number) for number in range(num_findings)],
        },
    ]
    torn = '{"kind":"steps","first":7,"loss":[1.0'
    text = "\n".join(
        [*map(json.dumps, lines[:3]), torn, "[" * 5000, "null", *map(json.dumps, lines[3:]), torn]
    )
    (folder / "record.jsonl").write_text(text)
    return folder
