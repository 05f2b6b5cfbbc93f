"""Pages that a script makes: written, or compared with what is there.

Owns --check, and pages that nothing makes any more. What they say belongs to the scripts that import this.
"""

import sys
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def settle(pages: dict[str, str], *, folder: str, script: str) -> int:
    """Write the pages (by their path under docs/), or with --check say which are old; return the exit code.

    `folder` holds generated pages only: one that is not in `pages` is old too, and is deleted.
    """
    there = {path.relative_to(DOCS).as_posix(): path for path in (DOCS / folder).glob("*.md")}
    stray = sorted(there.keys() - pages.keys())
    old = [name for name, text in pages.items() if _read(DOCS / name) != text]
    if "--check" in sys.argv[1:]:
        for name in [*old, *stray]:
            print(f"docs/{name} is old: python scripts/{script}")
        return int(bool(old or stray))
    for name in old:
        (DOCS / name).parent.mkdir(exist_ok=True)
        (DOCS / name).write_text(pages[name], encoding="utf-8")
    for name in stray:
        there[name].unlink()
    print(f"{len(pages)} pages, {len(old)} written, {len(stray)} deleted")
    return 0


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None
