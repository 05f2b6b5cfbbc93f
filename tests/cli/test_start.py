"""What the command line does before any command: help, version, exit codes."""

import platform
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import pytest
import typer

import truestep
from truestep import cli
from truestep.errors import UsageError

TRUESTEP = str(Path(sysconfig.get_path("scripts")) / "truestep")
CLI_FOLDER = Path(cli.__file__).parent


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TRUESTEP, *arguments], capture_output=True, text=True, check=False)


def test_version_names_truestep_torch_and_python() -> None:
    done = run("--version")
    torch_version = metadata.version("torch")
    expected = (
        f"truestep {truestep.__version__} (torch {torch_version}, Python {platform.python_version()})\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, expected, "")


def test_version_says_so_when_torch_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert "torch not installed" in cli._version_line()


def test_help_says_what_truestep_is() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "Make PyTorch training right, the same every time, and fast." in done.stdout
    assert "import truestep" in done.stdout


def test_no_arguments_prints_help() -> None:
    bare, asked = run(), run("-h")
    assert bare.returncode == 0
    assert bare.stdout == asked.stdout


@pytest.mark.parametrize("argument", ["frobnicate", "--frobnicate"])
def test_bad_usage_exits_2_and_names_the_mistake(argument: str) -> None:
    done = run(argument)
    assert done.returncode == 2
    assert done.stdout == ""
    assert argument in done.stderr


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_help_and_version_do_not_import_torch(argument: str) -> None:
    code = (
        "import sys; from truestep.cli import main\n"
        "try: main()\n"
        "finally: sys.stderr.write('torch' if 'torch' in sys.modules else 'light')"
    )
    command = [sys.executable, "-c", code, argument]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == "light"


def test_every_command_file_is_listed() -> None:
    files = {path.stem for path in CLI_FOLDER.glob("*.py") if not path.stem.startswith("_")}
    listed = {command.__module__.rpartition(".")[2] for command in cli.COMMANDS}
    assert listed == files


def test_a_mistake_of_the_user_is_one_message_and_exit_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def add_to(app: typer.Typer) -> None:
        @app.command()
        def fail() -> None:
            raise UsageError("lanes must be at least 1, got lanes=0. Pass lanes=1 or more.")

    monkeypatch.setattr(cli, "COMMANDS", (add_to,))
    monkeypatch.setattr(sys, "argv", ["truestep", "fail"])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert exit_.value.code == 2
    assert (
        capsys.readouterr().err == "truestep: lanes must be at least 1, got lanes=0. Pass lanes=1 or more.\n"
    )
