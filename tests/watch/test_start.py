"""A watched script cannot tell: surroundings, errors, exit codes and signals are those of `python SCRIPT`."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.watch.watching import SCRIPTS, Done, run, run_bare, run_watched, write
from truestep import watch
from truestep.errors import UsageError

SHORT = {
    "error with a cause, and atexit": """
        import atexit
        atexit.register(print, "bye")
        def inner():
            try:
                {}["a"]
            except KeyError as error:
                raise ValueError("bad") from error
        inner()
    """,
    "syntax error": "def f(:",
    "exit with a message": "import sys; sys.exit('message')",
    "exit with 7": "import sys; sys.exit(7)",
    "exit with nothing": "import sys; print(1); sys.exit()",
    "interrupt raised": "raise KeyboardInterrupt",
    "interrupt received": "import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(5)",
    "killed by SIGTERM": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "killed by SIGKILL": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "left at once": "import os; print('x', flush=True); os._exit(4)",
    "neither error nor exit": "class Odd(BaseException): pass\nraise Odd('x')",
    "own hook": """
        import sys, traceback
        def hook(kind, value, trace):
            print(kind, traceback.format_tb(trace), sys.last_traceback is trace, value.__traceback__ is trace)
        sys.excepthook = hook
        1 / 0
    """,
    "thread that outlives the script": """
        import threading, time
        def work():
            time.sleep(0.1)
            print("thread done")
            1 / 0
        threading.Thread(target=work).start()
        print("main done")
    """,
    "spawned process of a class defined here": """
        import multiprocessing
        class Local:
            def __init__(self): self.value = 5
        def work(local, pipe):
            pipe.send((local.value, __name__, type(local).__module__))
        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            here, there = context.Pipe()
            process = context.Process(target=work, args=(Local(), there))
            process.start()
            print(here.recv(), process.exitcode)
            process.join()
    """,
    "module beside the script, found before the standard library": """
        import colorsys
        print(colorsys.NAME)
    """,
}


@pytest.mark.parametrize("text", SHORT.values(), ids=SHORT.keys())
def test_script_ends_as_it_would_alone(tmp_path: Path, text: str) -> None:
    script = write(tmp_path, text)
    (tmp_path / "colorsys.py").write_text("NAME = 'mine'\n")
    evidence = tmp_path / "evidence"
    evidence.mkdir()
    bare = run_bare(script)
    assert bare.stdout + bare.stderr or bare.code
    assert run_watched(script, folder=evidence) == bare
    (process,) = watch.read(evidence)
    expected = {0: "finished", 7: "finished", 4: "finished", -15: None, -9: None}.get(bare.code, "raised")
    assert process.ended == ("finished" if "message" in text else expected)


def show(folder: Path, words: list[str], *, cwd: Path) -> tuple[dict[str, object], Done]:
    done = run(words, cwd=cwd, input="some\ninput", env=os.environ | {"PYTHONHASHSEED": "random"})
    return json.loads(done.stdout), done


@pytest.mark.parametrize("how", ["script", "relative", "module", "folder", "unbuffered"])
def test_surroundings_are_those_of_a_plain_start(tmp_path: Path, how: str) -> None:
    package = tmp_path / "project" / "package"
    package.mkdir(parents=True)
    for name in ("surroundings.py", "__main__.py"):
        (package / name).write_text((SCRIPTS / "surroundings.py").read_text())
    (package / "__init__.py").touch()
    script = {
        "relative": "package/surroundings.py",
        "module": "package.surroundings",
        "folder": "package",
    }.get(how, str(package / "surroundings.py"))
    python = [sys.executable, *(["-u", "-X", "utf8"] if how == "unbuffered" else [])]
    option = ["-m"] if how == "module" else []
    cwd = tmp_path / "project"
    bare, done = show(tmp_path, [*python, *option, script, "--lr", "a b"], cwd=cwd)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(cwd)
        words = watch.command(
            script,
            ["--lr", "a b"],
            plan=watch.Plan(),
            folder=tmp_path,
            module=how == "module",
            python=python,
        )
    watched, done_watched = show(tmp_path, words, cwd=cwd)
    assert watched == bare
    assert (done_watched.code, done_watched.stderr) == (done.code, done.stderr)
    assert bare["stdin"] == "some\ninput"


def test_evidence_of_a_script_without_torch_is_kept(tmp_path: Path) -> None:
    script = write(tmp_path, "import sys\nprint(sys.argv[1:])\nsys.exit(3)")
    folder = tmp_path / "evidence"
    folder.mkdir()
    done = run(watch.command(script, ["--a", "1"], plan=watch.Plan(steps=2), folder=folder))
    assert (done.code, done.stdout) == (3, "['--a', '1']\n")
    (process,) = watch.read(folder)
    assert process.argv[-3:] == [str(script), "--a", "1"]
    assert (process.rank, process.size, process.num_steps) == (0, 1, 0)
    with pytest.raises(UsageError, match=r"is not a folder\. Pass the folder that the evidence"):
        watch.read(tmp_path / "gone")


def test_wrong_calls_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nothing\.py does not exist. Pass the path of a script"):
        watch.command("nothing.py", plan=watch.Plan(), folder=tmp_path)
    with pytest.raises(UsageError, match="steps must be at least 1, got 0"):
        watch.Plan(steps=0)


def test_api_lists_what_is_there() -> None:
    assert watch.__all__ == sorted(watch._HOMES)
    assert all(getattr(watch, name) is not None for name in watch.__all__)
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'\. It has DIGESTS"):
        watch.nothing  # noqa: B018
