"""Tests the wheel with the lowest versions of its dependencies that are allowed, or with the newest.

Usage: python scripts/lowest.py [--newest] [PYTEST ARGUMENTS]. Takes two minutes. torch and what tests need
come from the environment that runs this: there is one build of torch here, so its floor is not tested.
"""

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOT_TESTED = "torch"
TESTS = [
    "tests/cli/test_start.py",
    "tests/test_api.py",
    "tests/test_bits.py",
    "tests/test_record.py",
    "tests/run/checkpoint",
    "tests/rng",
]
"""Those that meet the four dependencies: numpy's generators, safetensors, rich and typer."""

TELL = """
import sys
from importlib.metadata import version
print(*(f"{name} {version(name)}" for name in sys.argv[1:]), sep=", ")
"""


def read_requirements(*, is_newest: bool) -> list[str]:
    """Return what pip is to install: floors as they are written, or names alone."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    found = [re.fullmatch(r"([\w-]+)>=([\d.]+)", text) for text in project["dependencies"]]
    pairs = [match.groups() for match in found if match is not None]
    assert len(pairs) == len(found), "a dependency is not written as name>=version"
    return [name if is_newest else f"{name}=={floor}" for name, floor in pairs if name != NOT_TESTED]


def run(*command: str | Path, cwd: Path = ROOT) -> None:
    """Run a command; it must not see the checkout's sources."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run([str(part) for part in command], cwd=cwd, env=environment, check=True)


def install(folder: Path, requirements: list[str]) -> Path:
    """Build the wheel, install it with what it needs into a new environment, and return its Python."""
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "env", symlinks=True)
    python = folder / "env" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    run(*pip, *requirements)
    run(*pip, "--no-deps", "--no-index", wheel)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "env" / "lib" / version / "site-packages"
    # Last on the path, so that what was installed above is found first; .pth files there are not read.
    (site / "zz-environment.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def main() -> int:
    """Install, tell the versions, and run the tests."""
    arguments = [item for item in sys.argv[1:] if item != "--newest"]
    requirements = read_requirements(is_newest="--newest" in sys.argv)
    with tempfile.TemporaryDirectory(prefix="truestep-lowest-") as folder:
        python = install(Path(folder), requirements)
        names = [*(re.split("==", text)[0] for text in requirements), NOT_TESTED, "truestep"]
        run(python, "-c", TELL, *names)
        tests = arguments or TESTS
        # Neither the checkout's sources nor those of an editable installation: the wheel's.
        # Old versions of one package warn about new ones of another: that is theirs.
        options = ["-o", "pythonpath=.", "-o", "filterwarnings=", "-p", "no:cacheprovider", "-q"]
        try:
            run(python, "-m", "pytest", *options, *tests)
        except subprocess.CalledProcessError as error:
            return error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
