"""Runs examples in full and writes what they print, and the processor's seconds, into docs/examples.md.

Usage: python scripts/example_outputs.py NAME ... (all of them without a name: some ten minutes). CI runs them
shortened, so what the page shows is made anew by hand when an example changes.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "examples.md"
BLOCK = re.compile(r"```\n\$ python examples/(?P<name>\w+)\.py\n(?P<told>.*?)```\n", flags=re.DOTALL)


def run(name: str) -> str:
    """Return what an example prints, and its seconds on a processor: they count no other work."""
    with tempfile.TemporaryDirectory() as folder:
        before = os.times()
        command = [sys.executable, str(ROOT / "examples" / f"{name}.py")]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        after = os.times()
    if done.returncode != 0:
        raise SystemExit(f"{name} failed:\n{done.stderr}")
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return f"{done.stdout.rstrip()}\n\n[{spent:.0f} s of processor time]\n"


def main() -> None:
    """Run the examples that are named, or all that the page shows, and write the page."""
    for name in sys.argv[1:] or [block["name"] for block in BLOCK.finditer(PAGE.read_text())]:
        told = run(name)
        page = PAGE.read_text()  # read again: the runs before this one took their time
        blocks = [block for block in BLOCK.finditer(page) if block["name"] == name]
        if len(blocks) != 1:
            raise SystemExit(f"{PAGE.name} has {len(blocks)} blocks for examples/{name}.py, not 1")
        start, end = blocks[0].span("told")
        PAGE.write_text(page[:start] + told + page[end:])
        print(f"{name}: written")


if __name__ == "__main__":
    main()
