"""What the command line does before any command: help, version, exit codes."""

import os
import platform
import resource
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import pytest
import typer
from typer.main import get_command

import truestep
from truestep import cli
from truestep.errors import UsageError

TRUESTEP = str(Path(sysconfig.get_path("scripts")) / "truestep")
CLI_FOLDER = Path(cli.__file__).parent
NAMES = [command.__module__.rpartition(".")[2] for command in cli.COMMANDS]


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
    assert "Find the bugs in your PyTorch training script by running it." in done.stdout
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


def imported_by(*arguments: str) -> set[str]:
    code = (
        "import sys; from truestep.cli import main\n"
        "try: main()\n"
        "finally: sys.stderr.write(' '.join(sys.modules))"
    )
    command = [sys.executable, "-c", code, *arguments]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stderr.split())


@pytest.mark.cold
@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], *([name, "--help"] for name in NAMES)], ids=" ".join
)
def test_help_and_version_import_nothing_heavy(arguments: list[str]) -> None:
    modules = imported_by(*arguments)
    heavy = {"asyncio", "numpy", "pygments", "rich", "safetensors", "torch"}
    assert not heavy & modules


def test_check_does_not_hold_torch_while_the_script_runs(tmp_path: Path) -> None:
    # A second torch takes 200 MB beside the script.
    script = tmp_path / "train.py"
    script.write_text("import os\nprint('libtorch' in open(f'/proc/{os.getppid()}/maps').read())\n")
    done = run("check", str(script))
    assert done.stdout.splitlines()[0] == "False"


def test_help_takes_less_than_a_second_of_the_processor() -> None:
    # 0.16 s on the machine on which this was written; the test above names what must not be imported.
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run("--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.0


@pytest.mark.cold
def test_python_m_truestep_is_the_command_line() -> None:
    command = [sys.executable, "-m", "truestep", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == run("--version").stdout


def page_of(*arguments: str, width: int = 80) -> str:
    environment = os.environ | {"COLUMNS": str(width)}
    command = [TRUESTEP, *arguments, "--help"]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout


@pytest.mark.parametrize("name", NAMES)
def test_the_help_of_a_command_is_a_page_of_a_manual(name: str) -> None:
    page = page_of(name)
    assert page.startswith(f"Usage: truestep {name} [OPTIONS]")
    heads = [line for line in page.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert heads[-2:] == ["Exit codes:", "Examples:"]
    assert "Options:" in heads
    codes, examples = (page.split(f"\n{head}\n")[1] for head in heads[-2:])
    assert codes.lstrip().startswith("0 ") and "\n  2 " in codes
    assert all(line.startswith(f"  truestep {name}") for line in examples.strip("\n").splitlines())
    assert max(len(line) for line in page.splitlines()) <= 80
    assert "\x1b" not in page and "<bool>" not in page


def test_every_option_says_what_it_is_for() -> None:
    for name, command in get_command(cli.build_app()).commands.items():  # type: ignore[attr-defined]
        for param in command.params:
            if param.param_type_name == "option":
                assert (param.help or "").endswith((".", ")")), (name, param.name)
                assert param.is_flag or param.metavar
            else:
                page = page_of(name)
                row = (
                    page.partition("\nArguments:\n")[2]
                    .partition(f"  {param.metavar}  ")[2]
                    .partition("\n")[0]
                )
                assert row.endswith("."), (name, param.name)


def test_help_is_as_wide_as_the_terminal_but_not_wider_than_80() -> None:
    assert max(map(len, page_of("doctor", width=60).splitlines())) <= 60
    assert page_of("doctor", width=200) == page_of("doctor", width=80)


def test_what_stands_in_brackets_is_not_taken_for_markup() -> None:
    assert "pip install 'truestep[mcp]'" in page_of("mcp").replace("\n", " ")
    assert "ignore[stale-gradients]" in page_of("check")


def test_a_mistake_of_ours_has_an_exit_code_of_its_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def add_to(app: typer.Typer) -> None:
        @app.command()
        def fail() -> None:
            raise KeyError("cursor")

    monkeypatch.setattr(cli, "COMMANDS", (add_to,))
    monkeypatch.setattr(sys, "argv", ["truestep", "fail"])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert exit_.value.code == 3
    said = capsys.readouterr().err
    assert "KeyError: 'cursor'" in said and "this is a bug in truestep" in said


BASH_COMPLETES = """
source <(truestep --show-completion)
complete -p truestep
COMP_WORDS=({words}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
$(complete -p truestep | sed 's/.*-F \\([^ ]*\\).*/\\1/') truestep
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def shell_completes(words: str, *, folder: Path) -> list[str]:
    environment = os.environ | {"PATH": f"{Path(TRUESTEP).parent}:{os.environ['PATH']}"}
    command = ["bash", "--norc", "-c", BASH_COMPLETES.format(words=words)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=folder)
    assert done.stdout.startswith("complete -o default"), "where we know no better, bash completes files"
    return done.stdout.splitlines()[1:]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("truestep ve", ["verify"]),
        ("truestep check --sel", ["--select"]),
        ("truestep tune --format ''", ["text", "json"]),
        ("truestep run tra", [""]),
    ],
)
def test_a_real_bash_completes_commands_options_and_values(
    tmp_path: Path, words: str, expected: list[str]
) -> None:
    assert shell_completes(words, folder=tmp_path) == expected


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


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize("command", ["check", "verify"])
def test_pressing_tab_makes_no_folder(tmp_path: Path, command: str) -> None:
    shell_completes(f"truestep {command} --record runs/one --form", folder=tmp_path)
    assert list(tmp_path.iterdir()) == []
