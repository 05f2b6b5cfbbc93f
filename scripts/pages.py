"""Pages that run: the python blocks of a Markdown file as one script, and what each of them prints.

Owns how pages are read and run; tests/test_examples.py compares, scripts/page_outputs.py writes.
A block `output` right after a python block holds what that one prints. One with `title="train.py"` is written
to that file. One of `console` holds commands after `$` and what they print, `...` standing for anything.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(r"^(?P<indent> *)(?P<mark>```+|~~~+) *(?P<language>\w*)(?: +title=\"(?P<title>[^\"]+)\")?")
NOT_RUN = re.compile(r"^\s*<!-- not run: *(?P<reason>\S.*?) *-->\s*$")
OUTPUT = "output"
CONSOLE = "console"
PROMPT = "$ "
DIGEST = re.compile(r"\b[0-9a-f]{12,}\b")
PROGRESS = re.compile(r"truestep: .* \(\d+:\d\d\)")
"""What a command that takes longer than half a minute prints meanwhile."""
SECONDS = re.compile(r"\b[0-9.]+ s\b")
BREAK = "\x1e end of the block at line "
TIMEOUT_S = 300
SETTLED = {"CI": "true", "COLUMNS": "100", "NO_COLOR": "1", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
"""What would otherwise make a page print something else on another machine or in another terminal."""


class Fence(NamedTuple):
    """One fenced block: its language, where it is, its lines without indentation, and the text above it."""

    language: str
    first_line: int
    indent: str
    lines: list[str]
    above: str
    title: str | None = None


class Block(NamedTuple):
    """One block that is run, its reason not to be, and the output block right after it, if there is one.

    With `file`, its lines are written there. Of a block `console`, the output is the block itself.
    """

    first_line: int
    lines: list[str]
    not_run: str | None = None
    output: Fence | None = None
    file: str | None = None

    @property
    def commands(self) -> list[str]:
        """What a block `console` tells the shell to do."""
        is_console = self.output is not None and self.output.language == CONSOLE
        return [line.removeprefix(PROMPT) for line in self.lines if is_console and line.startswith(PROMPT)]

    @property
    def script(self) -> list[str]:
        """Its lines as Python; what it writes or starts is done in one line."""
        if self.file is not None:
            text = "\n".join([*self.lines, ""])
            write = f"(_file := __import__('pathlib').Path({self.file!r})).parent.mkdir(exist_ok=True); "
            return [write + f"_file.write_text({text!r}, encoding='utf-8')"]
        if self.commands:
            call = "__import__('subprocess').run(_command, shell=True, stderr=1)"
            return [f"for _command in {self.commands!r}: print({PROMPT!r} + _command); {call}"]
        return self.lines


class Printed(NamedTuple):
    """How a page ended: exit code, what each block printed, and everything for a message."""

    code: int
    blocks: dict[int, list[str]]
    everything: str


def fences(text: str) -> Iterator[Fence]:
    """Yield the fenced blocks of a page in order; lines are counted from 1."""
    lines = text.splitlines()
    at = 0
    above = ""
    while at < len(lines):
        fence = FENCE.match(lines[at])
        if fence is None:
            above = lines[at] if lines[at].strip() else above
            at += 1
            continue
        start = at + 1
        at = start
        while at < len(lines) and lines[at].strip() != fence["mark"]:
            at += 1
        body = [line.removeprefix(fence["indent"]) for line in lines[start:at]]
        yield Fence(fence["language"], start + 1, fence["indent"], body, above, fence["title"])
        above = ""
        at += 1


def python_blocks(text: str) -> list[Block]:
    """Return the blocks of a page that are run, each with the output block that follows it."""
    blocks: list[Block] = []
    before = None
    for fence in fences(text):
        found = NOT_RUN.match(fence.above)
        reason = found["reason"] if found else None
        if fence.language == CONSOLE:
            blocks.append(Block(fence.first_line, fence.lines, reason, output=fence))
        elif fence.language == "python" or fence.title is not None:
            blocks.append(Block(fence.first_line, fence.lines, reason, file=fence.title))
        elif fence.language == OUTPUT and before == "python" and not fence.above:
            blocks[-1] = blocks[-1]._replace(output=fence)
        before = fence.language
    return blocks


def stray_outputs(text: str) -> list[int]:
    """Return the lines of output blocks that follow no python block: nobody would compare them."""
    ours = {block.output.first_line for block in python_blocks(text) if block.output}
    return [f.first_line for f in fences(text) if f.language == OUTPUT and f.first_line not in ours]


def as_script(blocks: list[Block], *, is_split: bool = False) -> str:
    """Return the blocks as one script in which every line keeps the number it has in the page.

    With `is_split` the line of each closing fence prints a mark, so that outputs can be told apart.
    """
    script: list[str] = []
    for block in blocks:
        script += [""] * (block.first_line - 1 - len(script))
        script += block.script
        script += [""] * (len(block.lines) - len(block.script))
        if is_split:
            script.append(f"print({BREAK + str(block.first_line)!r})")
    return "\n".join(script) + "\n"


def run_script(script: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a file in a folder, the same way wherever it is done."""
    environment = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"}
    # Commands of a page are those of the environment that runs it.
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", "")])
    return subprocess.run(
        [sys.executable, "-u", "-W", "error::DeprecationWarning:__main__", str(script)],
        cwd=folder,
        env=environment | SETTLED,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def run_page(text: str, *, name: str = "page") -> Printed:
    """Run the blocks of a page from top to bottom in one namespace, in an empty folder."""
    blocks = [block for block in python_blocks(text) if block.not_run is None]
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, f"page-{name}.py")  # a name that nothing can import: accelerate.md is a page
        script.write_text(as_script(blocks, is_split=True), encoding="utf-8")
        done = run_script(script, script.parent)
    printed: dict[int, list[str]] = {}
    since: list[str] = []
    # Not splitlines(): it would cut at other characters too. Blanks at the end of a line are not seen.
    for line in done.stdout.split("\n"):
        start, is_break, first_line = line.partition(BREAK)
        if is_break:
            printed[int(first_line)] = [*since, start.rstrip()] if start else since
            since = []
        else:
            since.append(line.rstrip())
    return Printed(done.returncode, printed, done.stdout + done.stderr)


def is_shown(expected: list[str], found: list[str], *, is_loose: bool) -> bool:
    """Whether the lines are those that were found.

    In loose ones `...` stands for anything, seconds may differ, and so may digests as long as the same
    places hold equal ones: another kind of processor has other bits.
    """
    if not is_loose:
        return expected == found
    pattern = ".*?".join(re.escape(part) for part in _settled(expected).split("..."))
    return re.fullmatch(pattern, _settled(found).rstrip(), flags=re.DOTALL) is not None


def _settled(lines: list[str]) -> str:
    """Return the lines without seconds and progress, and digests numbered in the order in which they come."""
    numbers: dict[str, int] = {}
    text = SECONDS.sub("N s", "\n".join(line for line in lines if not PROGRESS.fullmatch(line)))
    return DIGEST.sub(lambda found: f"<{numbers.setdefault(found[0], len(numbers))}>", text)


def differences(text: str, printed: Printed) -> list[str]:
    """Return what is wrong with the outputs in a page, a message for each."""
    told = [f"line {line}: this output follows no python block" for line in stray_outputs(text)]
    for block in python_blocks(text):
        if block.output is None or block.not_run is not None:
            continue
        found = printed.blocks.get(block.first_line, [])
        expected = [line.rstrip() for line in block.output.lines]
        if not is_shown(expected, found, is_loose=bool(block.commands)):
            said, shown = "\n".join(expected), "\n".join(found)
            told.append(
                f"line {block.output.first_line}: the page says\n{said}\nbut the block prints\n{shown}\n"
                "Fix the block, or write what it prints: python scripts/page_outputs.py PAGE"
            )
    return told
