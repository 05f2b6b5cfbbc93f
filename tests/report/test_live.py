"""The live view: a run followed while it grows, is killed and resumed."""

import io
import json
import math
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.utils.data import TensorDataset

import truestep as ts
from tests.report.growing import Writer, sleeper
from truestep.errors import TruestepError, printable
from truestep.report.curve import Curve
from truestep.report.export import export
from truestep.report.live import Follower, Live, watch
from truestep.report.live import screen as screen_module
from truestep.report.live.fields import as_fields
from truestep.report.live.follow import are_alive
from truestep.report.live.screen import draw
from truestep.report.numerals import duration, number, size
from truestep.report.runs import Life

HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07\n</script><script>document.title='owned'</script><img src=x onerror=alert()>"
)


def kinds(follower: Follower) -> list[str]:
    return [event["kind"] for event in follower.look()[0]]


def test_a_record_that_is_not_there_yet_is_empty_and_then_read(tmp_path: Path) -> None:
    follower = Follower(tmp_path / "later/record.jsonl")
    assert follower.look() == ([], False)
    Writer(tmp_path / "later").start()
    assert kinds(follower) == ["start", "phase"]
    assert kinds(follower) == []


def test_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    follower = Follower(path)
    line = b'{"kind":"end","time_s":1,"cursor":2}\n'
    for at in range(len(line)):
        path.write_bytes(line[:at])
        assert kinds(follower) == []
    path.write_bytes(line)
    assert kinds(follower) == ["end"]


def test_a_line_torn_by_a_kill_is_passed_over_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "record.jsonl"
    follower = Follower(path)
    path.write_bytes(b'{"kind":"steps","fir')
    assert kinds(follower) == []
    Writer(tmp_path).record.write("end", cursor=1)
    assert kinds(follower) == ["end"]
    assert follower.num_unread == 1


@pytest.mark.parametrize(
    "line", ["[]", "3", "{}", '{"kind":3}', "\xff", "[" * 100_000, '{"kind":"start","pids":"x"}']
)
def test_a_line_that_is_no_event_does_not_end_the_view(tmp_path: Path, line: str) -> None:
    writer = Writer(tmp_path)
    writer.start()
    with (tmp_path / "record.jsonl").open("ab") as file:
        file.write(line.encode("latin-1") + b"\n")
    writer.steps(0, [1.0])
    live = Live(tmp_path)
    live.poll()
    assert (live.cursor, live.num_unread, len(live.lives)) == (1, 1, 1)


def test_a_record_that_was_cut_or_replaced_is_read_anew(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.start()
    writer.steps(0, [3.0, 2.0])
    live = Live(tmp_path)
    live.poll()
    assert live.cursor == 2
    path = tmp_path / "record.jsonl"
    path.write_bytes(b"")
    live.poll()
    assert (live.status, live.cursor) == ("waiting", 0)
    Writer(tmp_path).start(cursor=7)
    live.poll()
    assert live.cursor == 7
    other = tmp_path / "other"
    Writer(other).start(cursor=9)
    (other / "record.jsonl").replace(path)
    live.poll()
    assert live.cursor == 9


def test_a_newer_record_is_refused_with_advice(tmp_path: Path) -> None:
    (tmp_path / "record.jsonl").write_text('{"kind":"start","time_s":1,"version":99}\n')
    with pytest.raises(TruestepError, match=r"newer truestep \(record version 99.*Upgrade"):
        Live(tmp_path).poll()


def test_steps_that_a_kill_made_void_are_gone_and_the_kill_is_marked(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.start(pids=[os.getpid()] * 4)
    writer.steps(0, [5.0, 4.0, 3.0, 2.0])
    writer.values("lr", [1, 3], [0.5, 0.25])
    live = Live(tmp_path)
    live.poll()
    writer.start(cursor=2, pids=[os.getpid()] * 2)
    writer.steps(2, [3.5])
    live.poll()
    assert list(live.facts.losses) == [(0, 5.0), (1, 4.0), (2, 3.5)]
    assert list(live.curves["lr"]) == [(1, 0.5)]
    assert [(mark.kind, mark.step, mark.words) for mark in live.marks()] == [
        ("kill", 4, "killed after step 4; 2 steps repeated"),
        ("processes", 2, "resumed after step 2, 4 → 2 processes"),
    ]


def test_a_run_that_stopped_by_itself_was_not_killed(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.start(end=3)
    writer.steps(0, [3.0, 2.0])
    writer.record.write("end", cursor=2)
    live = Live(tmp_path)
    live.poll()
    assert live.status == "stopped"
    writer.start(cursor=2, end=3)
    writer.steps(2, [1.0])
    writer.record.write("end", cursor=3)
    live.poll()
    assert live.status == "done"
    assert [mark.kind for mark in live.marks()] == ["stop", "resume"]


def test_a_killed_process_is_seen_even_before_its_parent_takes_notice(tmp_path: Path) -> None:
    with sleeper() as process:
        writer = Writer(tmp_path)
        writer.start(pids=[process.pid, os.getpid()])
        live = Live(tmp_path)
        live.poll()
        assert (live.status, live.alive) == ("running", [True, True])
        os.kill(process.pid, signal.SIGKILL)  # it stays as a zombie until waited for
        deadline_s = time.monotonic() + 10
        while live.alive[0]:
            live.poll()
            assert time.monotonic() < deadline_s
        assert (live.status, live.alive) == ("killed", [False, True])


def test_a_process_that_began_after_the_run_is_another_one_with_its_number() -> None:
    def alive(started_s: float, host: str = "") -> list[bool | None]:
        places = {"pids": [os.getpid()], "host": host, "processes": 1}
        life = Life(cursor=0, facts={}, time_s=started_s, last_step=0, last_s=started_s, **places)
        return are_alive(life)

    assert alive(time.time()) == [True]
    assert alive(time.time() - 10 * 365 * 86400) == [False]
    assert alive(time.time(), host="elsewhere.invalid") == [None]


def test_processes_on_another_machine_are_not_called_dead(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.start()
    path = tmp_path / "record.jsonl"
    path.write_text(path.read_text().replace('"host":"', '"host":"not-'))
    live = Live(tmp_path)
    live.poll()
    assert (live.status, live.alive) == ("unknown", [None])


def test_speed_and_time_left_are_those_of_the_last_life(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.start(end=300)
    assert Live(tmp_path).rate() is None
    writer.steps(0, [1.0] * 100)
    live = Live(tmp_path)
    live.poll()
    rate, left_s = live.rate(), live.left_s()
    assert rate is not None and left_s is not None
    assert math.isclose(rate, 100.0, rel_tol=1e-3)  # times are kept as seconds since 1970, to about 1 us
    assert math.isclose(left_s, 2.0, rel_tol=1e-3)


def test_a_curve_takes_steps_in_any_order_and_the_last_value_counts() -> None:
    curve = Curve()
    for step, value in [(3, 1.0), (5, 2.0), (4, 3.0), (5, 4.0), (0, 5.0)]:
        curve.add(step, value)
    assert list(curve) == [(0, 5.0), (3, 1.0), (4, 3.0), (5, 4.0)]
    assert (curve.at(4), curve.at(2), curve.at(-1)) == (3.0, 5.0, None)


def test_what_is_not_finite_is_counted_and_is_valid_json(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.start()
    writer.steps(0, [1.0, math.nan, math.inf, 1.7e308, -1.7e308])
    live = Live(tmp_path)
    live.poll()
    (loss, _) = json.loads(json.dumps(as_fields(live), allow_nan=False))["curves"]
    assert (loss["num"], loss["num_nonfinite"]) == (5, 2)


def screen(live: Live, width: int, height: int) -> str:
    console = Console(
        file=io.StringIO(),
        width=width,
        height=height,
        force_terminal=True,
        color_system=None,
        legacy_windows=False,
    )
    lines = console.render_lines(draw(live, width=width, height=height), console.options, pad=False)
    return "\n".join("".join(segment.text for segment in line) for line in lines)


@pytest.mark.verdict("nothing recorded yet")
def test_a_loss_that_is_not_finite_is_recorded_nevertheless(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.start()
    for losses, said in (([], "nothing recorded yet"), ([math.nan], "no finite value yet")):
        writer.steps(0, losses)
        live = Live(tmp_path)
        live.poll()
        shown = screen(live, 100, 30)
        assert said in shown and shown.count(" yet") == 1, shown


def hostile_run(folder: Path) -> Live:
    writer = Writer(folder)
    writer.start(pids=[os.getpid()] * 64, end=10**15)
    writer.steps(0, [math.nan, 1e308, -1e308, 0.0, 1e-320])
    for index in range(100):
        writer.values(f"{HOSTILE} {index}", [1], [1e300])
    writer.record.write("evaluate", name=HOSTILE, cursor=2, value={HOSTILE: [HOSTILE] * 1000})
    writer.record.write("lineage", step=1, field=HOSTILE, then=HOSTILE, now=HOSTILE)
    finding = {"code": HOSTILE, "name": HOSTILE, "severity": HOSTILE, "line": HOSTILE, "file": HOSTILE}
    writer.record.write("check", script=HOSTILE, findings=[finding] * 1000, not_observed=[], steps=1)
    writer.record.write("verify", same=False, runs=[HOSTILE])
    live = Live(folder)
    live.poll()
    return live


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 30), (200, 50), (120, 20), (40, 12), (300, 90)])
@pytest.mark.parametrize("kind", ["empty", "plain", "hostile"])
def test_the_view_fits_the_terminal(tmp_path: Path, width: int, height: int, kind: str) -> None:
    if kind == "hostile":
        live = hostile_run(tmp_path)
    else:
        live = Live(tmp_path)
        if kind == "plain":
            writer = Writer(tmp_path)
            writer.start(end=500)
            writer.steps(0, [3 / (step + 1) for step in range(400)])
            writer.values("grad_norm", list(range(400)), [2.0 + step % 3 for step in range(400)])
            live.poll()
    lines = screen(live, width, height).splitlines()
    assert len(lines) <= height
    assert max(len(line) for line in lines) <= width


@pytest.mark.parametrize("width", [80, 200])
def test_the_view_shows_progress_curve_speed_processes_and_kills(tmp_path: Path, width: int) -> None:
    writer = Writer(tmp_path / "digits")
    writer.start(end=500)
    writer.steps(0, [3 / (step + 1) for step in range(300)])
    writer.start(cursor=200, pids=[os.getpid()] * 4, end=500)
    writer.steps(200, [3 / (step + 1) for step in range(200, 400)])
    finding = {"code": "LOOP01", "name": "stale-gradients", "severity": "error", "line": 7}
    writer.record.write("check", script="train.py", findings=[finding], not_observed=[], steps=1)
    live = Live(tmp_path / "digits")
    live.poll()
    text = screen(live, width, 40)
    for words in (
        "digits",
        "running",
        "4 processes",
        "1 resume",
        "400 of 500 steps",
        "80%",
        "100 steps/s",
        "1 s left",
        "killed after step 300",
        "resumed after step 200, 1 → 4 processes",
        "LOOP01 stale-gradients line 7",
    ):
        assert words in text, words
    (course,) = (line.split()[-1] for line in text.splitlines() if line.startswith("loss"))
    assert course[0] == "█" and course[-1] == "▁" and len(course) == width // 3


NASTY = [
    None,
    True,
    -1,
    10**400,
    2**63,
    1e308,
    -1e308,
    "nan",
    "x",
    HOSTILE,
    [],
    [[]],
    {},
    [HOSTILE],
    {"a": [1]},
]
EVENTS: list[dict[str, Any]] = [
    {"kind": "start", "cursor": 1, "pid": 1, "pids": [1, 2], "host": "h", "processes": 2, "run": "r"},
    {"kind": "start", "cursor": 1, "pid": 1, "recipe": {"a": 1}, "fingerprint": {"b": 2}},
    {"kind": "phase", "first": 0, "end": 9},
    {"kind": "steps", "first": 0, "loss": [1.0, 2.0], "end_us": [1, 2], "wait_us": [1, 1]},
    {"kind": "values", "name": "lr", "steps": [0, 1], "values": [1.0, 2.0]},
    {"kind": "evaluate", "name": "accuracy", "cursor": 1, "value": 0.5},
    {"kind": "check", "findings": [{"code": "A"}]},
    {"kind": "verify", "same": True, "runs": []},
    {"kind": "snapshot", "cursor": 1},
    {"kind": "end", "cursor": 1},
    {"kind": "lineage", "step": 1, "field": "f", "then": 1, "now": 2},
    {"kind": "damage", "path": "p", "reason": "r"},
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event["kind"])
def test_no_value_of_any_field_ends_the_view(tmp_path: Path, event: dict[str, Any]) -> None:
    event = {"time_s": 1e9, **event}
    for number_, (key, value) in enumerate((key, value) for key in event if key != "kind" for value in NASTY):
        writer = Writer(tmp_path / str(number_))
        writer.start()
        writer.steps(0, [1.0, 2.0])
        writer.record.close()
        path = tmp_path / str(number_) / "record.jsonl"
        inside = [[value, value]] if isinstance(event[key], list) else []
        with path.open("a") as file:
            for each in [value, *inside]:
                file.write(json.dumps(event | {key: each}).replace('"x"', "Infinity") + "\n")
        live = Live(path.parent)
        live.poll()
        json.dumps(as_fields(live), allow_nan=False)
        screen(live, 60, 14)
        export(path.parent, "csv")


def test_no_text_of_a_run_steers_the_terminal(tmp_path: Path) -> None:
    text = screen(hostile_run(tmp_path), 200, 50)
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "document.title" in text


def test_without_a_terminal_a_line_says_what_happened_and_the_end_ends_it(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "digits")
    writer.start(end=3)
    writer.steps(0, [3.0, 2.0])
    writer.start(cursor=1, end=3)
    writer.steps(1, [2.0, 1.0])
    writer.record.write("end", cursor=3)
    file = io.StringIO()
    watch(Live(tmp_path / "digits"), console=Console(file=file, width=40))
    killed, resumed, last = file.getvalue().splitlines()
    assert killed == "killed after step 2; 1 step repeated"
    assert resumed == "resumed after step 1"
    assert last.endswith("digits: done, step 3 of 3, loss 1")


def test_without_a_terminal_a_run_that_stopped_and_goes_on_is_told_to_do_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path / "digits")
    writer.start(end=3)
    writer.steps(0, [3.0])
    writer.record.write("end", cursor=1)

    def go_on(_seconds: float) -> None:
        writer.start(cursor=1, end=3)
        writer.steps(1, [2.0, 1.0])
        writer.record.write("end", cursor=3)

    monkeypatch.setattr(screen_module, "time", SimpleNamespace(sleep=go_on, monotonic=time.monotonic))
    file = io.StringIO()
    watch(Live(tmp_path / "digits"), console=Console(file=file, width=40))
    lines = file.getvalue().splitlines()
    assert (lines[0], lines[2]) == ("stopped after step 1", "resumed after step 1"), lines


@pytest.mark.parametrize(
    ("same", "words"),
    [(True, "same"), (False, "different"), (None, "inconclusive"), ([HOSTILE], "inconclusive")],
)
def test_what_verify_could_not_tell_is_not_called_different(tmp_path: Path, same: Any, words: str) -> None:
    writer = Writer(tmp_path)
    writer.start()
    writer.record.write("verify", same=same, runs=[])
    live = Live(tmp_path)
    live.poll()
    assert f"verify: {words}" in screen(live, 200, 50)
    assert as_fields(live)["verdict"] == words


def test_a_line_of_no_steps_is_passed_over(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.start()
    writer.steps(0, [])
    live = Live(tmp_path)
    live.poll()
    assert live.num_unread == 1


def test_a_real_run_is_followed_to_its_end(tmp_path: Path) -> None:
    data = TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
    live = Live(tmp_path / "run")
    with ts.Run(tmp_path / "run", seed=7, progress=False) as run:
        model = run.place(nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(ts.Loader(data, batch_size=8), epochs=2):
            for x, y in step:
                step.backward((model(x) - y).square().mean())
            step.update(optimizer, clip_norm=1.0)
            live.poll()
            assert (live.status, live.end, live.lives[0].pids) == ("running", 8, [os.getpid()])
        live.poll()
        assert (live.status, live.cursor) == ("running", 8)
    live.poll()
    assert (live.status, live.cursor, live.num_unread) == ("done", 8, 0)
    assert {"loss", "grad_norm", "learning_rate"} <= set(live.curves)


def test_numbers_are_said_in_words_that_fit() -> None:
    assert [number(value) for value in (0, 0.12345, 1234.5, 1e-9, 1e300, math.nan)] == [
        "0",
        "0.1235",
        "1,234",
        "1.000e-09",
        "1.000e+300",
        "nan",
    ]
    shown = [duration(seconds) for seconds in (5, 65, 3700, 90000, math.inf)]
    assert shown == ["5 s", "1 min 5 s", "1 h 1 min", "1 d 1 h", "infinite s"]
    assert [size(num) for num in (5, 5e9, 5e15)] == ["5 B", "5 GB", "5,000 TB"]
    assert printable("a\x1b[2J\nb") == "a�[2J�b"
