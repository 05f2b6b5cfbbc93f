"""Runs a page and writes what its python blocks print into the output blocks that follow them.

Usage: python scripts/page_outputs.py [--add] PAGE.md ... With --add, every block that prints gets an output
block; without, only those that are there (they may be empty) are filled. Exit code 1 if a page fails.
"""

import sys
from pathlib import Path

from pages import OUTPUT, Printed, is_shown, python_blocks, run_page


def with_outputs(text: str, printed: Printed, *, is_adding: bool) -> str:
    """Return the page with its output blocks written anew."""
    lines = text.splitlines()
    for block in reversed(python_blocks(text)):  # from below: the numbers of the lines above stay true
        if block.not_run is not None:
            continue
        found = printed.blocks.get(block.first_line, [])
        if any(line.lstrip().startswith(("```", "~~~")) for line in found):
            raise SystemExit(f"the block at line {block.first_line} prints a fence: no page can show that")
        if block.commands and is_shown(block.lines, found, is_loose=True):
            continue  # what `...` stands for stays unsaid
        if block.output is not None:
            start = block.output.first_line - 1
            indented = [f"{block.output.indent}{line}".rstrip() for line in found]
            lines[start : start + len(block.output.lines)] = indented
        elif is_adding and found:
            closing = block.first_line - 1 + len(block.lines)
            indent = lines[closing][: len(lines[closing]) - len(lines[closing].lstrip())]
            indented = [f"{indent}{line}".rstrip() for line in [f"```{OUTPUT}", *found, "```"]]
            lines[closing + 1 : closing + 1] = ["", *indented]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write the outputs of the pages named on the command line."""
    arguments = [word for word in sys.argv[1:] if word != "--add"]
    if not arguments:
        print(__doc__)
        return 2
    num_failed = 0
    for name in arguments:
        page = Path(name)
        text = page.read_text(encoding="utf-8")
        printed = run_page(text, name=page.stem)
        if printed.code != 0:
            print(f"{name}: failed, nothing was written\n{printed.everything}")
            num_failed += 1
            continue
        page.write_text(with_outputs(text, printed, is_adding="--add" in sys.argv), encoding="utf-8")
        num_silent = sum(bool(printed.blocks.get(b.first_line)) for b in python_blocks(text) if not b.output)
        print(f"{name}: written" + (f"; {num_silent} blocks print and had no output" if num_silent else ""))
    return 1 if num_failed else 0


if __name__ == "__main__":
    sys.exit(main())
