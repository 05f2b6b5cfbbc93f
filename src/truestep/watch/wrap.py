"""Wrapping torch's entry points so that nobody downstream can tell.

Owns putting wrappers in place and taking them away again, and that none of them ends the script. Names,
signatures and pickling stay; a wrapper's frame is in no traceback, is skipped by `warnings` when it counts
levels, and is not compiled.
"""

import functools
import types
from collections.abc import Callable
from typing import Any

from truestep.watch.interrupts import is_from_handler
from truestep.watch.tape import Tape

# Python's warnings do not count frames of the import system, which they know by these two words in the
# name of the file, and torch.compile leaves them alone: a wrapper shall be neither blamed nor compiled.
UNSEEN = "<frozen importlib._bootstrap, truestep.watch>"

Function = Callable[..., Any]
_NOTHING = object()
Wrapper = Callable[[Function], Function]


class Wraps:
    """Wrappers that are in place; `undo` and `redo` serve to measure their cost.

    Those that observe are given the tape, and none of them ends the script. Those that change something on
    purpose are not: a change that cannot be made must not pass for one that was.
    """

    def __init__(self, tape: Tape | None = None) -> None:
        self._tape = tape
        self._places: list[tuple[Any, str, Any, Any]] = []

    def put(self, name: str, make: Wrapper, *owners: Any) -> None:
        """Replace the function `owner.name` by `make(function)`, one for all owners that have the same.

        What `make` returns calls the function inside of a `try` that calls `drop_frame`, and keeps what it
        gives as `result`: `guard` relies on both.
        """
        where = f"{owners[0].__name__}.{name}"
        try:
            first = _find(owners[0], name)
            found = [getattr(owner, name, first) for owner in owners]
            wrappers = {id(original): self._make(where, make, original) for original in dict.fromkeys(found)}
        except Exception as error:
            if self._tape is None:
                raise
            self._tape.note_trouble(where, error, is_off=True)  # this version of torch may have no such name
            return
        for owner, original in zip(owners, found, strict=True):
            wrapper, before = wrappers[id(original)], vars(owner).get(name)
            if not isinstance(wrapper, types.MethodType):
                _settle(wrapper, name, owners)
            setattr(owner, name, staticmethod(wrapper) if isinstance(before, staticmethod) else wrapper)
            self._places.append((owner, name, before, vars(owner)[name]))

    def _make(self, where: str, make: Wrapper, original: Any) -> Any:
        made, tape = make(original), self._tape
        wrapper = unseen(made, original) if tape is None else guard(made, original, where=where, tape=tape)
        if isinstance(original, types.BuiltinFunctionType):
            return _Builtin.of(wrapper, original)
        if isinstance(original, types.MethodType):  # `random.seed` belongs to an object, and some ask for it
            return types.MethodType(unseen(_with_self(wrapper), original.__func__), original.__self__)
        return wrapper

    def undo(self) -> None:
        """Take all wrappers away."""
        for owner, name, original, _ in reversed(self._places):
            setattr(owner, name, original)

    def redo(self) -> None:
        """Put all wrappers back."""
        for owner, name, _, wrapper in self._places:
            setattr(owner, name, wrapper)


class _Builtin(functools.partial[Any]):
    """A wrapper of a function that is written in C: as an attribute of a class it takes no `self`.

    A partial adds no frame, and is no method of the class that has it.
    """

    @staticmethod
    def of(wrapper: Function, original: Any) -> "_Builtin":
        """Return the wrapper with all that the original is known by."""
        found = _Builtin(wrapper)
        functools.update_wrapper(found, original)
        found.__self__ = original.__self__  # type: ignore[attr-defined]
        return found

    def __get__(self, *_: Any) -> "_Builtin":
        return self

    def __reduce__(self) -> Any:
        return self.__qualname__  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return repr(self.__wrapped__)  # type: ignore[attr-defined]


def _find(owner: Any, name: str) -> Any:
    """Return the function; what every object or every class has does not count."""
    kinds = [kind for kind in getattr(owner, "__mro__", ()) if kind is not object]
    if kinds and not any(name in vars(kind) for kind in kinds):
        raise AttributeError(f"{owner.__name__} has no {name}")
    return getattr(owner, name)


def guard(wrapper: Function, original: Function, *, where: str, tape: Tape) -> Function:
    """Return what calls the wrapper; once it fails by itself the original is called instead.

    An error that the original raised has no frame of the wrapper, which has called `drop_frame`.
    """
    inner = getattr(wrapper, "__func__", wrapper)
    if inner.__code__.co_filename != UNSEEN:
        inner.__code__ = inner.__code__.replace(co_filename=UNSEEN)
    code, run = inner.__code__, wrapper

    # torch's profiler reads the argument `self` of the function that stands for Module.__call__, and ends the
    # process if there is none.
    def call(self: Any = _NOTHING, /, *args: Any, **kwargs: Any) -> Any:
        nonlocal run
        if self is not _NOTHING:
            args = (self, *args)
        try:
            return run(*args, **kwargs)
        except BaseException as error:
            names = _failed_in(error, code)
            if names is None:
                drop_frame(error)
                raise
            if not isinstance(error, RecursionError):  # the script may call itself too often by itself
                run = original
                tape.note_trouble(where, error, is_off=True)
        # Outside of the handler: an error that the original raises shall not seem to follow from ours.
        return names["result"] if "result" in names else original(*args, **kwargs)

    return unseen(call, original)


def _failed_in(error: BaseException, code: types.CodeType) -> dict[str, Any] | None:
    """Return the variables of the wrapper if it has failed; None if others have, or the script shall end."""
    trace = error.__traceback__.tb_next if error.__traceback__ is not None else None
    is_own = isinstance(error, Exception) and trace is not None and trace.tb_frame.f_code is code
    is_own = is_own and not is_from_handler(error)
    return dict(trace.tb_frame.f_locals) if is_own and trace is not None else None


def _settle(wrapper: Function, name: str, owners: tuple[Any, ...]) -> None:
    """Let a function that another module is known by, as `os.listdir` by `posix`, be pickled from here."""
    homes = [owner.__name__ for owner in owners if isinstance(owner, types.ModuleType)]
    if homes and wrapper.__qualname__ == name and wrapper.__module__ not in homes:
        wrapper.__module__ = homes[0]


def _with_self(wrapper: Function) -> Function:
    def method(_self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return wrapper(*args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise

    return method


def unseen(wrapper: Function, original: Function) -> Function:
    """Return the wrapper with the original's name, and out of sight."""
    assert isinstance(wrapper, types.FunctionType)
    wrapper.__code__ = wrapper.__code__.replace(co_filename=UNSEEN)
    return functools.update_wrapper(wrapper, original)


def drop_frame(error: BaseException) -> None:
    """Take the frame of the wrapper that caught this error from its traceback, before it is raised again."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
