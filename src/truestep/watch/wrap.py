"""Wrapping torch's entry points so that nobody downstream can tell.

Owns putting wrappers in place and taking them away again. Names, signatures and pickling stay; a wrapper's
frame is in no traceback, is passed over by `warnings` when it counts levels, and is not compiled.
"""

import functools
import types
from collections.abc import Callable
from typing import Any

# Python's warnings do not count frames of the import system, which they know by these two words in the
# name of the file, and torch.compile leaves them alone: a wrapper shall be neither blamed nor compiled.
UNSEEN = "<frozen importlib._bootstrap, truestep.watch>"

Wrapper = Callable[[Callable[..., Any]], Callable[..., Any]]


class Wraps:
    """Wrappers that are in place; `undo` and `redo` serve to measure their cost."""

    def __init__(self) -> None:
        self._places: list[tuple[Any, str, Any, Any]] = []

    def put(self, name: str, make: Wrapper, *owners: Any) -> None:
        """Replace the function `owner.name` by `make(function)`, the same one for all owners."""
        original = getattr(owners[0], name)
        wrapper: Any = unseen(make(original), original)
        if isinstance(original, types.MethodType):  # `random.seed` belongs to an object, and some ask for it
            wrapper = types.MethodType(unseen(_with_self(wrapper), original.__func__), original.__self__)
        else:
            _settle(wrapper, name, owners)
        for owner in owners:
            found = vars(owner).get(name)
            setattr(owner, name, staticmethod(wrapper) if isinstance(found, staticmethod) else wrapper)
            self._places.append((owner, name, found, vars(owner)[name]))

    def undo(self) -> None:
        """Take all wrappers away."""
        for owner, name, original, _ in reversed(self._places):
            setattr(owner, name, original)

    def redo(self) -> None:
        """Put all wrappers back."""
        for owner, name, _, wrapper in self._places:
            setattr(owner, name, wrapper)


def _settle(wrapper: Callable[..., Any], name: str, owners: tuple[Any, ...]) -> None:
    """Let a function that another module is known by, as `os.listdir` by `posix`, be pickled from here."""
    homes = [owner.__name__ for owner in owners if isinstance(owner, types.ModuleType)]
    if homes and wrapper.__qualname__ == name and wrapper.__module__ not in homes:
        wrapper.__module__ = homes[0]


def _with_self(wrapper: Callable[..., Any]) -> Callable[..., Any]:
    def method(_self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return wrapper(*args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise

    return method


def unseen(wrapper: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the wrapper with the original's name, and out of sight."""
    assert isinstance(wrapper, types.FunctionType)
    wrapper.__code__ = wrapper.__code__.replace(co_filename=UNSEEN)
    return functools.update_wrapper(wrapper, original)


def drop_frame(error: BaseException) -> None:
    """Take the frame of the wrapper that caught this error from its traceback, before it is raised again."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
