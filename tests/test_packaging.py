"""Wheel and sdist: built and checked; beside nothing of the checkout the wheel starts and is typed."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

import truestep

ROOT = Path(__file__).parent.parent
NAME = f"truestep-{truestep.__version__}"
NOT_SENT = {".ci/run"}
"""Tracked files that the sdist leaves out."""
TYPED = """\
from pathlib import Path
from truestep.record import Record
Record("runs/one/record.jsonl")
reveal_type(Record(Path("record.jsonl")).num_lost)
"""
UNREAD = ("numpy", "torch", "truestep.run.data", "truestep.model", "truestep.tensor", "truestep.run.train")
"""What the names above do not need takes a type checker most of its time."""

pytestmark = pytest.mark.slow


class Built(NamedTuple):
    wheel: Path
    sdist: Path


def output_of(*command: str | Path, cwd: Path, environment: Mapping[str, str] | None = None) -> str:
    words = [str(part) for part in command]
    done = subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def without_checkout() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def files_in(package: Path) -> set[Path]:
    files = (path.relative_to(package) for path in package.rglob("*") if path.is_file())
    return {path for path in files if path.suffix != ".pyc"}


def build(source: Path, to: Path) -> Built:
    output_of(sys.executable, "-m", "hatchling", "build", "-d", to, cwd=source)
    (wheel,), (sdist,) = to.glob("*.whl"), to.glob("*.tar.gz")
    return Built(wheel, sdist)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory, built: Built) -> Path:
    """The Python of an environment with the wheel in it."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder / "env", symlinks=True)
    python = folder / "env" / "bin" / "python"
    install = ["-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", built.wheel]
    output_of(sys.executable, *install, cwd=folder)
    # Dependencies come from the environment of the test. Files of the kind .pth are not read from there,
    # so an editable installation of the checkout stays out of sight.
    (site_of(python) / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def site_of(python: Path) -> Path:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(output_of(python, "-c", code, cwd=python.parent).strip())


def test_both_have_the_names_and_texts_that_an_index_takes(built: Built, tmp_path: Path) -> None:
    pytest.importorskip("twine")
    assert (built.wheel.name, built.sdist.name) == (f"{NAME}-py3-none-any.whl", f"{NAME}.tar.gz")
    said = output_of(sys.executable, "-m", "twine", "--no-color", "check", "--strict", *built, cwd=tmp_path)
    assert said.count("PASSED") == 2


def test_the_wheel_holds_the_package_and_nothing_else(built: Built, tmp_path: Path) -> None:
    pytest.importorskip("check_wheel_contents")
    said = output_of(sys.executable, "-m", "check_wheel_contents", built.wheel, cwd=tmp_path)
    assert said.endswith(": OK\n")
    names = {name.partition("/")[0] for name in zipfile.ZipFile(built.wheel).namelist()}
    assert names == {"truestep", f"{NAME}.dist-info"}


def test_the_wheel_installs_and_starts(fresh: Path, tmp_path: Path) -> None:
    apart = without_checkout()
    where = output_of(
        fresh, "-c", "import truestep; print(truestep.__file__)", cwd=tmp_path, environment=apart
    )
    assert Path(where).parent == site_of(fresh) / "truestep"
    assert files_in(site_of(fresh) / "truestep") == files_in(ROOT / "src" / "truestep")
    for start in ([fresh.parent / "truestep"], [fresh, "-m", "truestep"]):
        said = output_of(*start, "--version", cwd=tmp_path, environment=apart)
        assert said.startswith(f"truestep {truestep.__version__} ")
    assert "import truestep" in output_of(
        fresh.parent / "truestep", "--help", cwd=tmp_path, environment=apart
    )


def test_a_type_checker_sees_the_types_of_the_wheel(fresh: Path, tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "use.py").write_text(TYPED)
    patterns = ",".join(f"mypy-{name},mypy-{name}.*" for name in UNREAD)
    (tmp_path / "mypy.ini").write_text(f"[mypy]\n[{patterns}]\nfollow_imports = skip\n")
    command = [sys.executable, "-m", "mypy", "--python-executable", str(fresh), "use.py"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=False, env=without_checkout()
    )
    assert 'incompatible type "str"; expected "Path | None"' in done.stdout, done.stdout
    assert 'Revealed type is "int"' in done.stdout or 'Revealed type is "builtins.int"' in done.stdout


@pytest.mark.skipif(not (ROOT / ".git").exists() or shutil.which("git") is None, reason="no git checkout")
def test_the_sdist_holds_every_tracked_file(built: Built) -> None:
    with tarfile.open(built.sdist) as archive:
        names = {name.removeprefix(f"{NAME}/") for name in archive.getnames()}
    tracked = output_of("git", "ls-files", cwd=ROOT).splitlines()
    missing = {name for name in tracked if (ROOT / name).exists()} - names - NOT_SENT
    assert not missing


@pytest.mark.cold
def test_the_sdist_builds_the_same_wheel_and_its_tests_run(built: Built, tmp_path: Path) -> None:
    with tarfile.open(built.sdist) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    source = tmp_path / "source" / NAME
    again = build(source, tmp_path / "again")
    one, other = (
        {item.filename: item.CRC for item in zipfile.ZipFile(wheel).infolist()}
        for wheel in (built.wheel, again.wheel)
    )
    assert one == other
    environment = without_checkout() | {"PYTHONPATH": str(source / "src")}
    tests = ["tests/test_limits.py", "tests/test_record.py", "tests/test_bits.py"]
    said = output_of(
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        *tests,
        cwd=source,
        environment=environment,
    )
    assert " passed" in said
