"""Runs the fast tier of the tests with other versions of torch, each in a new environment, one at a time.

Usage: python scripts/versions.py [--python PYTHON] [--keep FOLDER] [--json] VERSION ... [-- PYTEST ARGUMENTS]
Needs `uv`. The registry's builds take about 5 GB each; an environment is removed after its tests unless it is
kept. Exit code: 0 all tests passed with every version, 1 some failed, 2 a version could not be installed.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
DEFAULT = ("2.11.0", "2.13.0", "2.15.0")
FRAMEWORKS = ("transformers", "accelerate", "lightning", "torchmetrics", "torchdata")
VERSIONS = """
import sys
from importlib.metadata import PackageNotFoundError, version
def find(name):
    try: return version(name)
    except PackageNotFoundError: return "not installed"
print(sys.version.split()[0], *(find(name) for name in sys.argv[1:]), sep="\\n")
"""


@dataclass(kw_only=True)
class Row:
    """How the tests ended with one version."""

    torch: str
    python: str = ""
    frameworks: dict[str, str] = field(default_factory=dict)
    passed: int = 0
    skipped: int = 0
    minutes: float = 0.0
    failed: list[str] = field(default_factory=list)
    error: str = ""
    """Why nothing was tested."""


def parse() -> argparse.Namespace:
    """Read the command line."""
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("versions", nargs="*", default=DEFAULT)
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the environments")
    parser.add_argument("--keep", type=Path, help="keep environments in this folder, and use those there")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words[:end])
    options.tests = words[end + 1 :]
    return options


def run(*words: str | Path) -> str:
    """Run a command to its end and return what it printed."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }
    environment |= {"UV_SYSTEM_CERTS": "true", "UV_NATIVE_TLS": "true"}
    done = subprocess.run(
        [str(word) for word in words], cwd=ROOT, env=environment, text=True, check=True, capture_output=True
    )
    return done.stdout


def install(folder: Path, version: str, python: str) -> Path:
    """Make an environment with one version of torch and what the tests need; return its Python."""
    found = folder / "bin" / "python"
    if not found.exists():
        run(python, "-m", "venv", folder)
        # torch by pip, which also finds a wheel that the machine's settings name. uv keeps it.
        pip = [found, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run(*pip, f"torch=={version}", "uv")
    pin = folder / "pin.txt"
    pin.write_text(f"torch=={version}\n")
    uv = [folder / "bin" / "uv", "pip", "install", "--quiet", "--compile-bytecode", "--python", found]
    run(*uv, "--constraint", pin, "--editable", ".[test,check]")
    return found


def test(python: Path, arguments: Sequence[str], row: Row) -> None:
    """Run the tests and fill in the row."""
    begun = time.monotonic()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"VIRTUAL_ENV": str(python.parents[1]), "PATH": f"{python.parent}:{os.environ['PATH']}"}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        words = ["scripts/test", "-q", f"--junit-xml={report}", "-p", "no:cacheprovider", *arguments]
        subprocess.run(words, cwd=ROOT, env=environment, check=False, stdout=sys.stderr)
        cases = list(ElementTree.parse(report).getroot().iter("testcase")) if report.exists() else []
    row.minutes = (time.monotonic() - begun) / 60
    row.error = "" if cases else "pytest wrote no report"
    for case in cases:
        if case.find("failure") is not None or case.find("error") is not None:
            row.failed.append(f"{case.get('classname')}::{case.get('name')}")
        elif case.find("skipped") is not None:
            row.skipped += 1
        else:
            row.passed += 1


def examine(version: str, options: argparse.Namespace, place: Path) -> Row:
    """Install a version and test it."""
    row = Row(torch=version)
    folder = place / f"torch-{version}"
    try:
        python = install(folder, version, options.python)
        row.python, row.torch, *others = run(python, "-c", VERSIONS, "torch", *FRAMEWORKS).split("\n")[:-1]
        row.frameworks = dict(zip(FRAMEWORKS, others, strict=True))
        test(python, options.tests, row)
    except subprocess.CalledProcessError as error:
        row.error = (error.stderr or str(error)).strip().splitlines()[-1]
    finally:
        if options.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    return row


def main() -> int:
    """Test each version and print the table."""
    options = parse()
    with tempfile.TemporaryDirectory(prefix="truestep-versions-") as folder:
        rows = [examine(version, options, options.keep or Path(folder)) for version in options.versions]
    if options.json:
        print(json.dumps({"rows": [asdict(row) for row in rows]}))
    else:
        print("| torch | Python | passed | failed | skipped | minutes |\n|---|---|---|---|---|---|")
        for row in rows:
            failed = row.error or len(row.failed)
            cells = (row.torch, row.python, row.passed, failed, row.skipped, f"{row.minutes:.0f}")
            print("|", " | ".join(map(str, cells)), "|")
        for row in rows:
            print(*(f"{row.torch}: {name}" for name in row.failed), sep="\n")
    return 2 if any(row.error for row in rows) else int(any(row.failed for row in rows))


if __name__ == "__main__":
    sys.exit(main())
