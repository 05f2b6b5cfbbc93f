"""Makes docs/images/first-minute.svg: the digits example in a terminal, killed, and run again.

Usage: python scripts/first_minute.py. What is drawn is what the two processes printed, on this machine.
"""

import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "first-minute.svg"
WIDTH = 86
CONTROL = re.compile(r"\r|\x1b\[\??[0-9;]*[A-HJ-Zac-ln-z]")
"""Whatever moves the cursor or clears a line: the bar is drawn anew after it. Colours are left."""
KILL_AT = 0.5


def watch(process: subprocess.Popen[bytes], terminal: int, *, is_killed: bool) -> str:
    """Return what a process wrote to its terminal; kill it in the middle if asked."""
    seen = ""
    while True:
        try:
            seen += os.read(terminal, 65536).decode(errors="replace")
        except OSError:  # Linux says so when the other side is closed
            break
        steps = re.findall(r"(\d+)/360", re.sub(r"\x1b\[[0-9;]*m", "", seen))
        if is_killed and steps and int(steps[-1]) >= KILL_AT * 360:
            time.sleep(0.2)
            process.send_signal(signal.SIGKILL)
            break
    process.wait()
    return seen


def run(folder: Path, *, is_killed: bool) -> str:
    """Run the example in a pseudo terminal; return what it printed."""
    ours, theirs = pty.openpty()
    size = {"COLUMNS": str(WIDTH), "LINES": "24", "TERM": "xterm-256color", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "examples" / "digits.py")],
        cwd=folder,
        env={key: value for key, value in os.environ.items() if key != "NO_COLOR"} | size,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = watch(process, ours, is_killed=is_killed)
    os.close(ours)
    return seen


def lines_of(seen: str) -> list[str]:
    """Return the lines that are left on a terminal when the bar has been taken away."""
    lines = [CONTROL.split(line)[-1] for line in seen.replace("\r\n", "\n").split("\n")]
    return [line for line in lines if Text.from_ansi(line).plain.strip() and "/360" not in line]


def main() -> None:
    """Run, kill, run again; write the picture."""
    with tempfile.TemporaryDirectory() as name:
        first, second = (run(Path(name), is_killed=is_killed) for is_killed in (True, False))
    bar = [frame for frame in CONTROL.split(first) if "/360" in frame][-1]
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True)
        prompt = Text("$ ", style="green") + Text("python digits.py", style="default")
        told = [Text.from_ansi(line) for line in lines_of(second)]
        for item in (prompt, Text.from_ansi(bar), Text("Killed"), prompt, *told):
            console.print(item, soft_wrap=True, highlight=False)
        PICTURE.write_text(console.export_svg(title="killed, and run again"))
    print(f"{PICTURE.relative_to(ROOT)}: written\n{bar}\n" + "\n".join(lines_of(second)))


if __name__ == "__main__":
    main()
