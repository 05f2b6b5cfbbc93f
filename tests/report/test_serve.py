"""The live page: who may read it, what it sends, and what a real browser makes of it."""

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.report.browser import axe_core, browser, needs_browser
from tests.report.growing import Writer, sleeper
from truestep.errors import UsageError
from truestep.report.live import Live, Server

HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    "<a href=\"javascript:document.title='owned'\">{{7*7}}${7*7}"
)


@contextmanager
def serving(live: Live) -> Iterator[Server]:
    with Server(live) as server:
        thread = threading.Thread(target=server.serve)
        thread.start()
        try:
            yield server
        finally:
            server.stop()
            thread.join()


def ask(
    server: Server, path: str, *, method: str = "GET", host: str | None = None
) -> tuple[int, bytes, dict[str, str]]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request(method, path, headers={} if host is None else {"Host": host})
        answer = connection.getresponse()
        return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}
    finally:
        connection.close()


def secret(server: Server) -> str:
    return "/" + server.address.split("/", 3)[3]


def filled(folder: Path) -> Writer:
    writer = Writer(folder)
    writer.start(end=500)
    writer.steps(0, [3 / (step + 1) for step in range(300)])
    return writer


def test_only_the_address_with_the_secret_is_answered(tmp_path: Path) -> None:
    filled(tmp_path)
    with serving(Live(tmp_path)) as server:
        good = secret(server)
        assert len(good.strip("/")) >= 32
        for name in ("", "page.js", "page.css", "state"):
            assert ask(server, good + name)[0] == 200
            for wrong in (
                "/",
                f"/{name}",
                f"{good[:-2]}/{name}",
                f"{good[:-1]}x/{name}",
            ):
                status, body, _ = ask(server, wrong)
                assert (status, body) == (403, b"Open the address that truestep watch printed.\n"), wrong
        assert ask(server, good + "../../etc/passwd")[0] == 404
        assert ask(server, good + "record.jsonl")[0] == 404


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /\xff\xc3\xa9/ HTTP/1.1", b"403"),
        (b"GET //[ HTTP/1.1", b"403"),
        (b"GET", b"400"),
        (b"GET / HTTP/9.9", b"505"),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1", b"414"),
        (b"<script> <script> HTTP/1.1", b"405"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_and_not_repeated(
    tmp_path: Path, request_line: bytes, status: bytes
) -> None:
    with serving(Live(tmp_path)) as server, socket.create_connection(("127.0.0.1", server.port), 10) as line:
        line.sendall(request_line + b"\r\nConnection: close\r\n\r\n")
        answer = line.makefile("rb").read()
        assert answer.split()[1] == status, answer
        assert b"script>" not in answer
        assert b"default-src 'none'" in answer


def test_a_mistake_of_ours_is_shown_once_and_steers_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail() -> bool:
        raise RuntimeError("\x1b[2J")

    live = Live(tmp_path)
    monkeypatch.setattr(live, "poll", fail)
    with serving(live) as server:
        for _ in range(2):
            with pytest.raises(http.client.RemoteDisconnected):
                ask(server, secret(server) + "state")
    said = capfd.readouterr().err
    assert said.count("Traceback") == 1 and "this is a bug in truestep" in said and "\x1b" not in said


def test_two_servers_have_two_secrets(tmp_path: Path) -> None:
    with Server(Live(tmp_path)) as first, Server(Live(tmp_path)) as second:
        assert secret(first) != secret(second)


def test_a_name_that_was_led_to_this_machine_is_refused(tmp_path: Path) -> None:
    with serving(Live(tmp_path)) as server:
        path = secret(server)
        for host in (f"127.0.0.1:{server.port}", f"localhost:{server.port}"):
            assert ask(server, path, host=host)[0] == 200
        for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1", "127.0.0.1:1", ""):
            assert ask(server, path, host=host)[0] == 403, host


def test_it_listens_on_this_machine_only(tmp_path: Path) -> None:
    with serving(Live(tmp_path)) as server:
        assert server._http.server_address[0] == "127.0.0.1"
        # 127.0.0.2 is this machine too, but another address: a server on all addresses would answer.
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.2", server.port), 5):
            pass


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "BREW"])
def test_it_can_only_be_read(tmp_path: Path, method: str) -> None:
    with serving(Live(tmp_path)) as server:
        assert ask(server, secret(server), method=method)[0] == 405


def test_every_answer_forbids_what_the_page_does_not_need(tmp_path: Path) -> None:
    with serving(Live(tmp_path)) as server:
        for path in (secret(server), secret(server) + "state", "/wrong"):
            headers = ask(server, path)[2]
            assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self';")
            assert "unsafe" not in headers["content-security-policy"]
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"
            assert headers["server"].strip() == "truestep"


def test_nothing_is_sent_twice_and_nothing_is_written(tmp_path: Path) -> None:
    writer = filled(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    with serving(Live(tmp_path)) as server:
        state = json.loads(ask(server, secret(server) + "state?since=-1")[1])
        assert (state["cursor"], state["end"], state["status"]) == (300, 500, "running")
        assert ask(server, f"{secret(server)}state?since={state['version']}")[:2] == (204, b"")
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
        writer.steps(300, [0.5])
        time.sleep(0.3)
        assert json.loads(ask(server, f"{secret(server)}state?since={state['version']}")[1])["cursor"] == 301
        for strange in ("x", "-5", "9" * 5000, "", "1.5"):
            assert ask(server, f"{secret(server)}state?since={strange}")[0] == 200


def test_many_viewers_look_at_the_folder_no_more_often_than_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    live = Live(tmp_path)
    looks: list[float] = []
    real = live.poll

    def poll() -> bool:
        looks.append(time.monotonic())
        return real()

    monkeypatch.setattr(live, "poll", poll)
    with serving(live) as server:
        began_s = time.monotonic()
        for _ in range(60):
            ask(server, secret(server) + "state?since=-1")
        seconds = time.monotonic() - began_s
    assert len(looks) <= seconds / 0.25 + 1


def test_a_port_that_is_taken_is_said_with_advice(tmp_path: Path) -> None:
    with (
        Server(Live(tmp_path)) as server,
        pytest.raises(UsageError, match="Remove --port to use a free one"),
    ):
        Server(Live(tmp_path), port=server.port)


@needs_browser
@pytest.mark.slow
def test_a_hostile_run_executes_nothing_and_loses_nothing(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "run")
    writer.start(end=10**15)
    writer.steps(0, [1e308, -1e308, 0.0, float("nan"), 1e-320])
    writer.values(HOSTILE, [1, 2], [1e300, float("inf")])
    writer.record.write("evaluate", name=HOSTILE, cursor=2, value={HOSTILE: HOSTILE})
    writer.record.write("lineage", step=1, field=HOSTILE, then=HOSTILE, now=HOSTILE)
    finding = dict.fromkeys(("code", "name", "severity", "file", "line", "message", "fix"), HOSTILE)
    writer.record.write("check", script=HOSTILE, findings=[finding] * 100_000, not_observed=[], steps=1)
    with serving(Live(tmp_path / "run")) as server, browser(tmp_path / "profile") as page:
        page.open(server.address)
        page.wait("document.querySelectorAll('#findings li').length === 200")
        page.wait("document.title.startsWith('running')")
        text = page.evaluate("document.body.innerText")
        assert text.count(HOSTILE) > 1000
        assert "The first 200 of 100,000. All are in truestep report." in text
        assert "1 not finite" in text
        assert page.evaluate("document.querySelectorAll('main script, main img, main a').length") == 0
        assert page.problems == []


@needs_browser
def test_the_page_follows_a_run_that_begins_is_killed_and_resumed(tmp_path: Path) -> None:
    with serving(Live(tmp_path / "run")) as server, browser(tmp_path / "profile") as page:
        page.open(server.address)
        page.wait("document.querySelector('#status').textContent === 'waiting for the run to start'")
        page.evaluate("window.isSamePage = true")
        with sleeper() as process:
            writer = Writer(tmp_path / "run")
            writer.start(pids=[process.pid] * 4, end=500)
            writer.steps(0, [3 / (step + 1) for step in range(300)])
            page.wait("document.querySelector('#status').textContent === 'running'")
            page.wait("document.querySelectorAll('#processes .alive').length === 4")
        page.wait("document.querySelector('#status').textContent === 'killed'")
        writer.start(cursor=200, pids=[os.getpid()] * 2, end=500)
        writer.steps(200, [0.01] * 300)
        page.wait("document.querySelector('#steps').textContent.startsWith('500 of 500 steps')")
        assert page.evaluate("document.querySelector('#happened').innerText").splitlines()[1::2] == [
            "resumed after step 200, 4 → 2 processes",
            "killed after step 300; 100 steps repeated",
        ]
        assert page.evaluate("document.querySelectorAll('#loss-chart .mark').length") == 2
        assert page.evaluate("window.isSamePage")
        assert page.problems == []


@needs_browser
@pytest.mark.parametrize(("width", "is_dark"), [(1400, False), (420, True)])
def test_the_page_fits_its_window_and_has_headings_and_labels(
    tmp_path: Path, width: int, is_dark: bool
) -> None:
    writer = filled(tmp_path / "run")
    writer.values("grad_norm", list(range(300)), [1.0 + step % 5 for step in range(300)])
    with serving(Live(tmp_path / "run")) as server, browser(tmp_path / "profile") as page:
        page.open(server.address, width=width, is_dark=is_dark)
        page.wait("document.querySelectorAll('svg[role=img]').length === 3")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate("document.querySelectorAll('h1').length") == 1
        assert page.evaluate(
            "[...document.querySelectorAll('svg[role=img]')].every(x => x.getAttribute('aria-label'))"
        )
        assert page.evaluate(
            "[...document.querySelectorAll('section')].every(x => x.getAttribute('aria-labelledby'))"
        )
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert background == ("rgb(13, 17, 23)" if is_dark else "rgb(246, 248, 250)")
        assert page.problems == []


@needs_browser
@pytest.mark.slow
def test_axe_finds_nothing_to_mend_on_the_live_page(tmp_path: Path) -> None:
    axe = axe_core(tmp_path)
    writer = filled(tmp_path / "run")
    writer.values("grad_norm", list(range(300)), [1.0 + step % 5 for step in range(300)])
    writer.start(cursor=250, pids=[os.getpid()] * 2, end=500)
    writer.steps(250, [0.01] * 20)
    writer.record.write("evaluate", name="accuracy", cursor=250, value=0.5)
    findings = [
        {
            "code": "LOOP01",
            "name": "stale",
            "severity": severity,
            "file": "a.py",
            "line": 1,
            "message": "m",
            "fix": "f",
        }
        for severity in ("error", "warning", "info")
    ]
    writer.record.write("check", script="a.py", findings=findings, not_observed=[], steps=1)
    with serving(Live(tmp_path / "run")) as server, browser(tmp_path / "profile") as page:
        for width, is_dark in ((1400, False), (1400, True), (420, False)):
            page.open(server.address, width=width, is_dark=is_dark)
            page.wait("document.querySelectorAll('#findings li').length === 3")
            page.call("Runtime.evaluate", expression=axe)
            found = page.evaluate(
                "axe.run(document, {resultTypes: ['violations']}).then((found) => found.violations)"
            )
            assert found == [], json.dumps(found, indent=1)


SCRIPT = """
import sys, time, torch
from torch import nn
from torch.utils.data import TensorDataset
import truestep as ts

run = ts.Run(sys.argv[1], seed=7, lanes=4, snapshots=ts.Snapshots(every_steps=10))
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
model = run.place(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
run.track(model=model, optimizer=optimizer)
for step in run.steps(ts.Loader(data, batch_size=16), steps=int(sys.argv[2])):
    for x, y in step:
        step.backward((model(x) - y).square().mean())
    step.update(optimizer, clip_norm=1.0)
    time.sleep(0.02)
"""


def launch(script: Path, run: Path, *, processes: int, steps: int) -> "subprocess.Popen[bytes]":
    command = [
        sys.executable,
        "-m",
        "truestep",
        "run",
        "-n",
        str(processes),
        "--max-restarts",
        "0",
        str(script),
    ]
    code = "import sys; from truestep.cli import main; main()"
    command[1:3] = ["-c", code]
    return subprocess.Popen([*command, str(run), str(steps)], stderr=subprocess.DEVNULL)


@needs_browser
@pytest.mark.slow
@pytest.mark.practice("P74")
def test_p74_the_live_page_follows_four_processes_killed_and_resumed_on_two(tmp_path: Path) -> None:
    """`truestep watch --serve RUN` shows progress and curves while a run trains, is killed and resumed."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    run = tmp_path / "run"
    with serving(Live(run)) as server, browser(tmp_path / "profile") as page:
        page.open(server.address)
        page.evaluate("window.isSamePage = true")
        with launch(script, run, processes=4, steps=10_000) as first:
            page.wait(
                "state && state.processes && state.processes.each.filter(x => x.alive).length === 4",
                limit_s=120,
            )
            page.wait("state.cursor > 30")
            before = page.evaluate("state")
            os.kill(before["processes"]["each"][2]["pid"], 9)
            assert first.wait(60) == 137
        page.wait("state.status === 'killed'")
        killed: dict[str, Any] = page.evaluate("state")
        with launch(script, run, processes=2, steps=killed["cursor"] + 20) as second:
            page.wait("state.num_resumes === 1", limit_s=120)
            page.wait("state.status === 'done'", limit_s=120)
            assert second.wait(60) == 0
        after = page.evaluate("state")
        assert (after["processes"]["num"], after["cursor"]) == (2, killed["cursor"] + 20)
        assert [mark["kind"] for mark in after["marks"]] == ["kill", "processes"]
        assert page.evaluate("window.isSamePage")
        assert page.problems == []
