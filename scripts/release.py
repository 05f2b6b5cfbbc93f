"""Refuses a release whose files do not agree about its version, or that still has a placeholder in it.

Usage: python scripts/release.py v0.2.0. Prints what to change; exit code 1 if there is something.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACEHOLDER = "OWNER/truestep"
ADDRESSED = (
    "pyproject.toml",
    "CITATION.cff",
    "deploy/conda/recipe.yaml",
    "docs/how-to/ci.md",
    "docs/how-to/pre-commit.md",
)
"""Files that have the address of the repository."""


def find_faults(root: Path, tag: str) -> Iterator[str]:
    """Yield what must be changed before a release with this tag."""
    if not re.fullmatch(r"v\d+\.\d+\.\d+((a|b|rc)\d+)?", tag):
        yield f"the tag must be like v0.2.0, got {tag}"
        return
    version = tag[1:]
    tables = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    source = root / tables["tool"]["hatch"]["version"]["path"]
    wanted = {
        source.relative_to(root).as_posix(): f'__version__ = "{version}"',
        "CITATION.cff": f"version: {version}\n",
        "deploy/conda/recipe.yaml": f'version: "{version}"\n',
        "CHANGELOG.md": f"\n## {version}",
    }
    for name, text in wanted.items():
        if text not in (root / name).read_text(encoding="utf-8"):
            yield f"{name} lacks {text.strip()!r}"
    for name in ADDRESSED:
        if PLACEHOLDER in (root / name).read_text(encoding="utf-8"):
            yield f"{name} has {PLACEHOLDER}: write the address of the repository"


def main() -> int:
    """Print what must be changed."""
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    faults = list(find_faults(ROOT, sys.argv[1]))
    print("\n".join(faults) or f"{sys.argv[1]}: ready")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
