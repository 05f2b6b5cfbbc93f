"""The wheel: built, installed beside nothing of the checkout, and started."""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import truestep

ROOT = Path(__file__).parent.parent


def output_of(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files_in(package: Path) -> set[Path]:
    files = (path.relative_to(package) for path in package.rglob("*") if path.is_file())
    return {path for path in files if path.suffix != ".pyc"}


@pytest.mark.slow
def test_wheel_installs_and_starts(tmp_path: Path) -> None:
    output_of(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path, cwd=ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"truestep-{truestep.__version__}-py3-none-any.whl"

    fresh = tmp_path / "fresh"
    venv.create(fresh, symlinks=True)
    python = fresh / "bin" / "python"
    install = ["-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel]
    output_of(sys.executable, *install, cwd=tmp_path)
    # Dependencies come from the environment of the test. Files of the kind .pth are not read from there,
    # so an editable installation of the checkout stays out of sight.
    site = Path(
        output_of(
            python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path
        ).strip()
    )
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    package = output_of(python, "-c", "import truestep; print(truestep.__file__)", cwd=tmp_path)
    assert Path(package).parent == site / "truestep"
    assert files_in(site / "truestep") == files_in(ROOT / "src" / "truestep")
    assert output_of(fresh / "bin" / "truestep", "--version", cwd=tmp_path).startswith(
        f"truestep {truestep.__version__} "
    )
    assert "import truestep" in output_of(fresh / "bin" / "truestep", "--help", cwd=tmp_path)
