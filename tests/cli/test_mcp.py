"""`truestep mcp`: a real client talks to the server, in one process and over standard input and output."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.check.test_check import LINE, write

pytest.importorskip("mcp")

from mcp import Client
from mcp.client.stdio import StdioServerParameters

from truestep.cli import _tools

TRUESTEP = str(Path(sys.executable).with_name("truestep"))
ENDLESS = "import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(600)\n"


async def talk(server: Any, *calls: tuple[str, dict[str, Any]]) -> list[Any]:
    """Call tools one after the other and return what they gave, after the list of tools."""
    async with Client(server) as client:
        tools = (await client.list_tools()).tools
        given = [await client.call_tool(name, arguments) for name, arguments in calls]
    assert not any(answer.is_error for answer in given)
    return [tools, *(answer.structured_content for answer in given)]


def over_stdio(folder: Path) -> StdioServerParameters:
    return StdioServerParameters(command=TRUESTEP, args=["mcp"], cwd=folder)


def test_a_client_sees_four_tools_and_a_mistake_in_its_call() -> None:
    missing = ("check", {"script": "train.py", "folder": "/nowhere"})
    tools, answer = asyncio.run(talk(_tools.build_server(), missing))
    assert [tool.name for tool in tools] == ["check", "verify", "tune", "rule"]
    for tool in tools:
        assert tool.description and all(
            "description" in value for value in tool.input_schema["properties"].values()
        )
    assert answer["exit_code"] == 2 and answer["answer"] is None
    assert (
        answer["log"] == "/nowhere is not a folder to work in (No such file or directory). Pass another one."
    )


@pytest.mark.slow
def test_a_session_over_stdio_explains_a_rule(tmp_path: Path) -> None:
    _, answer = asyncio.run(talk(over_stdio(tmp_path), ("rule", {"name": "LOOP01"})))
    assert (answer["exit_code"], answer["meaning"]) == (0, "explained")
    assert answer["answer"]["rules"][0]["page"].startswith("# LOOP01 stale-gradients")


@pytest.mark.slow
def test_a_session_over_stdio_finds_a_bug_fixes_it_and_compares_two_runs(tmp_path: Path) -> None:
    path = write(tmp_path)
    calls = [
        ("check", {"script": "train.py"}),
        ("check", {"script": "train.py", "fix": True}),
        ("verify", {"script": "train.py", "steps": 3}),
        ("tune", {"script": "train.py", "budget_s": 1}),
    ]
    _, found, fixed, verified, _tuned = asyncio.run(talk(over_stdio(tmp_path), *calls))
    assert found["exit_code"] == 1 and found["answer"]["findings"][0]["line"] == LINE
    assert "begins" in found["log"], "what the script prints must not reach the protocol"
    assert fixed["exit_code"] == 0 and "zero_grad()" in path.read_text()
    assert verified["answer"]["same"] is True


def test_a_script_ends_when_the_client_gives_up(tmp_path: Path) -> None:
    write(tmp_path, ENDLESS)

    async def give_up() -> int:
        call = asyncio.create_task(_tools.check("train.py", folder=str(tmp_path)))
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert not call.done(), call.result()
            await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return int((tmp_path / "pid").read_text())

    pid = asyncio.run(give_up())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_what_a_script_prints_is_cut_to_its_end() -> None:
    answer = _tools._answer(
        "check", 1, printed=json.dumps({"findings": []}).encode(), log=b"x" * 9999 + b"end"
    )
    assert len(answer["log"]) == 4000 and answer["log"].endswith("end")


@pytest.mark.verdict("nothing found")
@pytest.mark.verdict("the runs are the same")
@pytest.mark.parametrize(
    ("command", "meanings"),
    [
        ("check", ["nothing found", "errors or warnings found", "inconclusive, or bad usage"]),
        ("verify", ["the runs are the same", "a run differs", "inconclusive, or bad usage"]),
    ],
)
def test_an_exit_code_means_what_the_command_says(command: str, meanings: list[str]) -> None:
    found = [_tools._answer(command, code, printed=b"{}", log=b"")["meaning"] for code in range(3)]
    assert found == meanings
