"""The figures that pages state: one file, which benchmarks write and pages are compared with.

A page marks a figure: `<!-- figure: corpus.found -->187<!-- /figure -->`. `python benchmarks/figures.py`
writes the newest figures into the pages; `--check` prints the pages that state another one, and exits with 1.
"""

import json
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = Path(__file__).with_name("figures.json")
MARKED = re.compile(r"(<!-- figure: (?P<name>[\w.]+) -->)(?P<value>.*?)(<!-- /figure -->)")


def write(**figures: object) -> None:
    """Keep figures, `corpus__found=187` for `corpus.found`, with today's date and the commit."""
    commit = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    measured = {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "commit": subprocess.run(commit, capture_output=True, text=True, check=True).stdout.strip(),
    }
    known = json.loads(FILE.read_text())
    for name, value in figures.items():
        known[name.replace("__", ".")] = {"value": f"{value}", **measured}
    lines = (f" {json.dumps(name)}: {json.dumps(known[name])}" for name in sorted(known))
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def filled(text: str) -> str:
    """Return a page with the figures of the file; a name that the file does not have is an error."""
    known = json.loads(FILE.read_text())
    return MARKED.sub(lambda found: f"{found[1]}{known[found['name']]['value']}{found[4]}", text)


def main() -> int:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    old = [page for page in pages if filled(page.read_text()) != page.read_text()]
    for page in old:
        if "--check" in sys.argv[1:]:
            print(f"{page.relative_to(ROOT)} has another figure: python benchmarks/figures.py")
        else:
            page.write_text(filled(page.read_text()))
    return int(bool(old) and "--check" in sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
