"""The tools that `truestep mcp` serves to coding agents.

Owns them. Each runs the command of the same name in its own process and returns that command's JSON.
"""

import asyncio
import json
from collections.abc import Sequence
from typing import Annotated, Any

from mcp.server import MCPServer
from pydantic import Field

import truestep
from truestep.base.interpreter import python_module

_INSTRUCTIONS = (
    "truestep finds the bugs in a PyTorch training script by running it. Call check first. Apply the fix of "
    "each finding, or call check with fix=true, and check again until exit_code is 0. Exit code 2 means "
    "inconclusive, never that there are no bugs."
)
_MEANINGS = {
    "check": {0: "nothing found", 1: "errors or warnings found"},
    "verify": {0: "the runs are the same", 1: "a run differs"},
    "tune": {0: "measured"},
    "rule": {0: "explained"},
}
_OTHERS = {2: "inconclusive, or bad usage", 3: "a bug in truestep", 130: "ended"}
_MAX_LOG = 4000
_BAD_USAGE = 2

Script = Annotated[str, Field(description="The training script, as a path.")]
Arguments = Annotated[list[str] | None, Field(description="Arguments of the script.")]
Folder = Annotated[str, Field(description="The working folder in which the script runs.")]


def build_server() -> MCPServer:
    """Return the server with its tools."""
    server = MCPServer(
        "truestep", instructions=_INSTRUCTIONS, version=truestep.__version__, log_level="WARNING"
    )
    for tool in (check, verify, tune, rule):
        server.tool()(tool)
    return server


async def check(
    script: Script,
    arguments: Arguments = None,
    *,
    folder: Folder = ".",
    steps: Annotated[int, Field(description="Stop after this many optimizer steps.")] = 50,
    timeout_s: Annotated[float, Field(description="End the script after this many seconds.")] = 600,
    device: Annotated[str | None, Field(description="cpu: run a script for CUDA without a GPU.")] = None,
    fix: Annotated[bool, Field(description="Edit the script where that is safe, and check again.")] = False,
) -> dict[str, Any]:
    """Run a training script and report the bugs in it: line, evidence and fix of each, and a patch."""
    options = ["--steps", str(steps), "--timeout", str(timeout_s)]
    options += ["--device", device] if device else []
    options += ["--fix"] if fix else []
    return await _call("check", options, [script, *(arguments or [])], folder=folder)


async def verify(
    script: Script,
    arguments: Arguments = None,
    *,
    folder: Folder = ".",
    steps: Annotated[int, Field(description="How many optimizer steps to compare; 0 for all.")] = 20,
    kill: Annotated[bool, Field(description="Also kill it in the middle and resume it.")] = False,
) -> dict[str, Any]:
    """Run a script twice, compare bit for bit, and name the first difference, its cause and its fix."""
    options = ["--steps", str(steps), *(["--kill"] if kill else [])]
    return await _call("verify", options, [script, *(arguments or [])], folder=folder)


async def tune(
    script: Script,
    arguments: Arguments = None,
    *,
    folder: Folder = ".",
    budget_s: Annotated[float, Field(description="How long it may take.")] = 120,
) -> dict[str, Any]:
    """Measure which speed settings pay off for a script on this machine."""
    return await _call("tune", ["--budget", str(budget_s)], [script, *(arguments or [])], folder=folder)


async def rule(
    name: Annotated[str, Field(description="A code such as LOOP01, or a name such as stale-gradients.")],
) -> dict[str, Any]:
    """Explain a rule: what it finds, why that is bad, an example, and how to fix or suppress it."""
    return await _call("rule", [], [name], folder=".")


async def _call(command: str, options: Sequence[str], words: Sequence[str], *, folder: str) -> dict[str, Any]:
    """Run a command to its end; if the client gives up, so does the script."""
    try:
        process = await asyncio.create_subprocess_exec(
            *python_module("truestep", command, "--format", "json", *options, "--", *words),
            cwd=folder,
            stdin=asyncio.subprocess.DEVNULL,  # this process's own belongs to the protocol
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
    except OSError as error:
        log = f"{folder} is not a folder to work in ({error.strerror}). Pass another one."
        return _answer(command, _BAD_USAGE, printed=b"", log=log.encode())
    try:
        printed, errors = await process.communicate()
    except asyncio.CancelledError:
        process.terminate()  # the command ends the script, and removes what it made
        await process.wait()
        raise
    return _answer(command, process.returncode or 0, printed=printed, log=errors)


def _answer(command: str, code: int, *, printed: bytes, log: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(printed)
    except ValueError:  # bad usage: the reason is in the log
        answer = None
    meaning = (_MEANINGS[command] | _OTHERS).get(code, "unknown")
    # A script can print megabytes.
    return {
        "exit_code": code,
        "meaning": meaning,
        "answer": answer,
        "log": log.decode(errors="replace")[-_MAX_LOG:],
    }
