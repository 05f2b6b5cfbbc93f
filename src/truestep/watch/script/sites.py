"""Sites: the line of the user's own code from which one of torch's entry points was reached.

Owns what counts as the user's own: neither torch, nor installed packages, nor the standard library, nor us.
"""

import os
import sys
from types import CodeType, FrameType, ModuleType

from truestep.watch.evidence.kinds import Place

_LIBRARY = os.path.dirname(os.__file__) + os.sep  # noqa: PTH120 - compared with what frames give, by text
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) + os.sep  # noqa: PTH120
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")

_TRANSPARENT = frozenset(
    f"truestep.watch.{name}"
    for name in (
        "control.freeze",
        "control.threads",
        "hooks.draws",
        "hooks.seeds",
        "hooks.sources",
        "hooks.table",
    )
)
"""Whose wrappers may lie between the user's line and what it calls."""

_CELL = "<ipython-input-"
"""How the name of code begins that is typed into IPython; in a notebook it looks like a file's."""

NOWHERE = 0
"""The number of a site that has no line of the user's."""


class Sites:
    """Numbers for lines. A place in the bytecode is looked up; its line is worked out once."""

    def __init__(self) -> None:
        self.table = [Place("", 0, "")]
        self._is_own: dict[str, bool] = {}
        self._numbers: dict[tuple[int, int], int] = {}
        self._codes: list[CodeType] = []
        self._engine: str | None = None

    def here(self, depth: int = 2) -> int:
        """Return the number of the innermost frame of the user's own, looking from that many calls up.

        Python makes an object of every frame that is looked at, which costs more than all else here.
        """
        try:
            frame: FrameType | None = sys._getframe(depth)
        except ValueError:  # called by a thread's C code directly
            return NOWHERE
        is_own = self._is_own
        while frame is not None:
            code = frame.f_code
            answer = is_own.get(code.co_filename)
            if answer is None:
                answer = is_own[code.co_filename] = self._classify(code.co_filename)
            if answer:
                return self._numbers.get((id(code), frame.f_lasti)) or self._add(frame)
            frame = frame.f_back
        return NOWHERE

    def is_own(self, name: str) -> bool:
        """Return whether a file, by the name that frames give it, is the user's own."""
        answer = self._is_own.get(name)
        if answer is None:
            answer = self._is_own[name] = self._classify(name)
        return answer

    def is_engine(self, name: str) -> bool:
        """Return whether a file is Python's own, torch's or ours."""
        path = os.path.abspath(name)  # noqa: PTH100
        if name.startswith("<frozen ") or path.startswith(self._engines()):
            return True
        return path.startswith(_LIBRARY) and not any(part in path for part in _INSTALLED)

    def reached(self, through: frozenset[str] = frozenset()) -> tuple[int, str | None] | None:
        """Return the user's site, and what was called there, if only wrappers of ours lie between.

        So may packages of the standard library, if given. None: somebody else called.
        """
        frame: FrameType | None = sys._getframe(1)
        called = None
        while frame is not None:
            module = frame.f_globals.get("__name__") or ""
            if module.partition(".")[0] in through:
                called = f"{module}.{frame.f_code.co_qualname}"
            elif module not in _TRANSPARENT:
                if not self.is_own(frame.f_code.co_filename):
                    return None
                return self._numbers.get((id(frame.f_code), frame.f_lasti)) or self._add(frame), called
            frame = frame.f_back
        return None

    def reached_library(self) -> tuple[int, str] | None:
        """Return the user's site from which a library was called that computes, and its function.

        None: the user's lines ask themselves, Python or torch does, or a library whose code at that place
        knows neither tensors nor arrays, as for the pause before it tries a download again.
        """
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__") in _TRANSPARENT:
            frame = frame.f_back
        if frame is None or self.is_own(frame.f_code.co_filename):
            return None
        if self.is_engine(frame.f_code.co_filename) or not _computes(frame):
            return None
        name = f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}"
        while frame is not None and not self.is_own(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is None:
            return None
        return self._numbers.get((id(frame.f_code), frame.f_lasti)) or self._add(frame), name

    def _add(self, frame: FrameType) -> int:
        code = frame.f_code
        self._codes.append(code)  # kept, so that no other code gets its id
        self.table.append(Place(path_of(code.co_filename), frame.f_lineno, function_of(code)))
        number = self._numbers[id(code), frame.f_lasti] = len(self.table) - 1
        return number

    def _classify(self, name: str) -> bool:
        if name.startswith("<"):
            return name.startswith(_CELL)
        path = os.path.abspath(name)  # noqa: PTH100
        if path.startswith(self._engines()):
            return False
        if any(part in path for part in _INSTALLED):
            return path.startswith(_main_package())
        return not path.startswith(_LIBRARY)

    def _engines(self) -> tuple[str, str]:
        if self._engine is None and "torch" in sys.modules:
            self._engine = os.path.dirname(sys.modules["torch"].__file__ or "torch") + os.sep  # noqa: PTH120
        return _PACKAGE, self._engine or _PACKAGE


def _computes(frame: FrameType) -> bool:
    """Whether torch or NumPy, or something that is imported from them, is a global name of its module."""
    for value in list(frame.f_globals.values()):
        owner = value.__name__ if isinstance(value, ModuleType) else getattr(type(value), "__module__", "")
        owner = value.__module__ if isinstance(value, type) else owner
        if isinstance(owner, str) and owner.partition(".")[0] in ("torch", "numpy"):
            return True
    return False


def function_of(code: CodeType) -> str:
    """Return the function that code stands in: a comprehension or a lambda is part of the one around it."""
    names = [name for name in code.co_qualname.split(".") if not name.startswith("<") or name == "<module>"]
    return names[-1] if names else "<module>"


def path_of(name: str) -> str:
    """Return the path of a file by the name that frames give it; the name itself if it is no file's."""
    return name if name.startswith("<") else os.path.abspath(name)  # noqa: PTH100


def _main_package() -> str:
    """Return the folder of the installed package that is run itself, as with `-m`; else what no path has."""
    main = getattr(sys.modules["__main__"], "__file__", None) or ""
    for part in _INSTALLED:
        if part in main:
            before, after = main.split(part, 1)
            return before + part + after.split(os.sep, 1)[0]
    return "\0"
