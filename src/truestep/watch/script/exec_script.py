"""Executes the script: what runs first in a watched process, and leaves `__main__` as Python would make it.

Owns the namespace, the path, the arguments and the way out. Imports no torch: scripts that set environment
variables before they import it behave the same. What is observed is in the modules beside this one.
"""

import os
import runpy
import sys
from types import TracebackType
from typing import TYPE_CHECKING, Any

from truestep.base.variables import launched_rank_and_size
from truestep.watch.plan import Plan
from truestep.watch.script.import_hooks import expect
from truestep.watch.script.tape import Ended, Tape

if TYPE_CHECKING:
    from truestep.watch.script.stack_report import StackReport

_OURS = (os.path.dirname(os.path.dirname(__file__)) + os.sep, "<string>")  # noqa: PTH120 - as frames give it


def exec_script(settings: dict[str, Any]) -> None:
    """Observe what is imported from here on, and run the script in `__main__`."""
    script, is_module = settings["script"], settings["module"]
    path = _set_surroundings(script, is_module)
    tape, stack_report = None, None
    if settings["plan"] is not None:  # without one nothing is observed but where several processes stand
        tape = Tape(settings["folder"], Plan(**settings["plan"]))
        expect(tape)
    if _is_one_of_several() and (tape is None or tape.plan.hangs):
        stack_report = _begin_stack_report(settings["folder"], tape)
    try:
        if is_module or _is_container(path):
            runpy._run_module_as_main(script if is_module else "__main__", is_module)  # type: ignore[attr-defined]
        else:
            _run_file(path)
    except Ended:
        return
    except BaseException as error:
        if tape is not None:
            tape.failed_with = error
        if stack_report is not None:
            stack_report.fail(error)
        is_checked = tape is not None and tape.plan.inspect
        _show_without_us(error, is_silent=is_checked and type(error) is KeyboardInterrupt)
        raise


def _is_one_of_several() -> bool:
    """Whether a launcher has started this process as one of several ranks."""
    known = launched_rank_and_size()
    return known is not None and known[1] > 1


def _begin_stack_report(folder: str, tape: Tape | None) -> "StackReport":
    """Begin to write into the folder where this process stands, whenever it stands still."""
    from pathlib import Path  # noqa: PLC0415

    from truestep.watch.script.stack_report import StackReport  # noqa: PLC0415 - only ranks need it

    if tape is None:
        report = StackReport(Path(folder))
    else:
        report = StackReport(Path(folder), num_steps=lambda: tape.num_steps, on_still=tape.flush)
    report.start()
    return report


def _set_surroundings(script: str, is_module: bool) -> str:
    """Set the path and the arguments as Python does for a script; return where the script is."""
    path = os.path.abspath(script)  # noqa: PTH100 - resolves no link, as Python's own
    place = sys.orig_argv.index("-c")
    words = ["-m", script] if is_module else [script]
    sys.orig_argv[place:] = [*words, *sys.argv[1:]]
    sys.argv[0] = "-m" if is_module else script
    if is_module:
        first = os.getcwd()  # noqa: PTH109
    elif _is_container(path):
        first = path
    else:
        first = os.path.dirname(os.path.realpath(path))  # noqa: PTH120
    # A folder or an archive is on the path, whatever the flags say: its `__main__` is found there.
    if first == path or not sys.flags.safe_path:
        sys.path.insert(0, first)
    names = sys.modules["__main__"].__dict__
    for name in ("sys", "exec_script"):
        del names[name]
    return path


def _is_container(path: str) -> bool:
    """Whether it is a folder or an archive with a `__main__` in it."""
    return os.path.isdir(path) or path.endswith((".zip", ".pyz"))  # noqa: PTH112


def _run_file(path: str) -> None:
    from importlib.machinery import SourceFileLoader  # noqa: PLC0415

    names = sys.modules["__main__"].__dict__
    names["__loader__"] = SourceFileLoader("__main__", path)
    names["__file__"] = path
    names["__cached__"] = None
    if path.endswith(".ipynb"):
        exec(_compile_notebook(path), names)
        return
    with open(path, "rb") as source:  # noqa: PTH123
        code = compile(source.read(), path, "exec", dont_inherit=True)
    exec(code, names)


def _compile_notebook(path: str) -> Any:
    """Return the code of all cells; tracebacks show their lines, and `display` prints."""
    import linecache  # noqa: PLC0415

    from truestep.base.cells import code_of  # noqa: PLC0415

    text = code_of(path)
    linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
    sys.modules["__main__"].__dict__["display"] = print
    return compile(text, path, "exec", dont_inherit=True)


def _show_without_us(error: BaseException, *, is_silent: bool) -> None:
    """Let Python report the error its own way, once, with the frames of the script only.

    Where a script stood when the user stopped it is of no interest to them: that is silent.
    """
    hook = sys.excepthook

    def report(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        sys.excepthook = hook
        kept = _without_us(trace) if value is error else trace
        value.__traceback__ = kept
        sys.last_traceback = kept
        if not (is_silent and value is error):
            hook(kind, value, kept)

    sys.excepthook = report


def _without_us(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_OURS):
        trace = trace.tb_next
    return trace
