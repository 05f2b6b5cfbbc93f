"""Makes docs/images/check.svg, verify.svg and show.svg: what the commands print about scripts of the docs.

Usage: python scripts/terminal_pictures.py [NAME ...]. What is drawn is what was printed on this machine, in
its colours; of check, the change that it proposes is left out, and of all what is printed about waiting.
"""

import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from pages import PROGRESS, fences
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
WIDTH = 108
COMMANDS = {
    "check": ("quickstart-script.md", "truestep check train.py"),
    "verify": ("quickstart-script.md", "truestep verify train.py"),
    "show": ("how-to/show.md", "truestep show train.py"),
}
"""Of each picture, the page with the script, and the command."""
SPINNER = re.compile("[\u2800-\u28ff]")
"""What turns while one waits, and is gone afterwards."""
STYLE = r"(?:\x1b\[[0-9;]*m)*"


def printed_by(command: str, folder: Path) -> str:
    """Run a command in a pseudo terminal; return what it wrote there."""
    ours, theirs = pty.openpty()
    own = {"COLUMNS": str(WIDTH), "LINES": "60", "TERM": "xterm-256color"}
    own["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment = {name: value for name, value in os.environ.items() if name not in {"NO_COLOR", "CI"}}
    process = subprocess.Popen(
        command.split(), cwd=folder, env=environment | own, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            seen += os.read(ours, 65536)
        except OSError:  # Linux says so when the other side is closed
            break
    os.close(ours)
    process.wait()
    return seen.decode().replace("\r\n", "\n")


def draw(command: str, printed: str) -> str:
    """Return a terminal with the command and what it printed, as SVG."""
    proposal = re.compile(STYLE + "with --fix:.*\n(?=" + STYLE + r"\d+ errors?)", flags=re.DOTALL)
    lines = [line.split("\r")[-1] for line in proposal.sub("", printed).strip("\n").split("\n")]
    plain = [(line, Text.from_ansi(line).plain) for line in lines]
    kept = [line for line, text in plain if not SPINNER.match(text) and not PROGRESS.fullmatch(text)]
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=WIDTH, file=nowhere, force_terminal=True)
        console.print(Text.assemble(("$ ", "green"), command))
        console.print(Text.from_ansi("\n".join(kept)), highlight=False)
        console.print()  # without it the letters of the last line are cut at their feet
    svg = console.export_svg(title=command)
    return re.sub(r"@font-face \{.*?\}\n", "", svg, flags=re.DOTALL)  # no font from elsewhere


def main() -> None:
    """Run the commands, write the pictures; of all, or of those that are named."""
    for name in sys.argv[1:] or COMMANDS:
        page, command = COMMANDS[name]
        found = fences((ROOT / "docs" / page).read_text(encoding="utf-8"))
        script = next(fence for fence in found if fence.title == "train.py")
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "train.py").write_text("\n".join([*script.lines, ""]), encoding="utf-8")
            picture = ROOT / "docs" / "images" / f"{name}.svg"
            picture.write_text(draw(command, printed_by(command, Path(folder))), encoding="utf-8")
            print(f"{picture.relative_to(ROOT)}: written")


if __name__ == "__main__":
    main()
