"""Hooks: functions of torch and of Python with an observer, or a change, put around them.

Owns guarding, frames and removal. Names, signatures and pickling stay; no frame of ours is in a traceback, is
counted by `warnings` or is compiled. An observer that fails is switched off and reported: the script goes on.
"""

import functools
import inspect
import sys
import types
from collections.abc import Callable, Generator, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any

from truestep.watch.script.interrupts import is_from_handler
from truestep.watch.script.tape import Tape

# Python's warnings do not count frames of the import system, which they know by these two words in the
# name of the file, and torch.compile leaves them alone: what is ours shall be neither blamed nor compiled.
UNSEEN = "<frozen importlib._bootstrap, truestep.watch>"

Function = Callable[..., Any]
Observation = Generator[Any, Any, Any]
_NOTHING = object()
ALWAYS, WINDOW = "always", "window"


@dataclass(frozen=True)
class Hook:
    """One function, by its full name, and what is put around it.

    An observer is called with the function's arguments, before it. It may be a generator: `result = yield`
    lets the function run, a `finally` is reached also if it raises; what is yielded, if anything, are other
    arguments, and what is returned is another result.
    """

    target: str
    act: Function | str
    """In the table of events by its name: `module:Class.method`."""
    _: KW_ONLY
    also: tuple[str, ...] = ()
    """Other names under which the script finds the same function."""
    given: tuple[Any, ...] = ()
    """What the observer is given before the arguments."""
    is_outermost: bool = False
    """Whether calls inside of a forward or a backward pass are left alone."""
    rank: int | None = None
    """Of calls that belong to training: what one says of its thread, see `UnderWay.enter`. Only those of the
    thread that trains are observed. None: those of all threads are."""
    is_everywhere: bool = False
    """Whether it acts also where nothing is written: in a loader's worker."""
    when: str = ALWAYS
    """Whether it stays in place, or only in windows: what a script calls at each step is for windows."""
    changes: bool = False
    """Whether it is given the function itself too, and calls it. It changes something on purpose: its errors
    end the script, since a change that was not made must not pass for one."""
    is_required: bool = True
    """Whether its absence is reported; some functions exist only in some versions of torch."""


_in_place: list[tuple[Any, str, Any, Any]] = []
_undoing: list[Callable[[], None]] = []


def put(  # limits: they read like a table
    tape: Tape | None, hooks: Iterable[Hook], family: Any = None
) -> None:
    """Put hooks in place; what acts in them are methods of the family, if one is given.

    Observers report to the tape; changes need none.
    """
    for hook in hooks:
        try:
            owners = [resolve(target) for target in (hook.target, *hook.also)]
            originals = [_find(*owner) for owner in owners]
        except AttributeError as error:
            if hook.changes or tape is None:
                raise
            if hook.is_required:
                tape.note_trouble(hook.target, error, is_off=True)
            continue
        act = getattr(family, hook.act.rpartition(".")[2]) if isinstance(hook.act, str) else hook.act
        hide(act)
        if family is not None and not isinstance(act, types.MethodType):
            act = types.MethodType(act, family)
        act = functools.partial(act, *hook.given) if hook.given else act
        made: dict[int, Any] = {}
        for owner, original in zip(owners, originals, strict=True):
            if id(original) not in made:  # one for all names that stand for the same function
                made[id(original)] = _make(hook, act, original, tape=tape, owners=owners)
            _set(*owner, made[id(original)])
            if hook.when == WINDOW and tape is not None:
                tape.window.rows.append(_in_place[-1])


def _make(  # limits: private to this module
    hook: Hook, act: Function, original: Any, *, tape: Tape | None, owners: list[tuple[Any, str]]
) -> Any:
    if hook.changes:
        made = changing(act, original)
    else:
        assert tape is not None
        made = observing(act, original, hook, tape=tape)
    if isinstance(original, types.MethodType):  # `random.seed` belongs to an object, and some ask for it
        return types.MethodType(_with_self(made, original), original.__self__)
    if isinstance(original, types.BuiltinFunctionType):
        made = _Builtin.of(made, original)
    _settle(made, owners)
    return made


def _set(owner: Any, name: str, made: Any) -> None:  # limits: private to this module
    found = vars(owner).get(name)
    setattr(owner, name, staticmethod(made) if isinstance(found, staticmethod) else made)
    _in_place.append((owner, name, found, vars(owner)[name]))


class _Builtin(functools.partial[Any]):
    """Stands for a function that is written in C: as an attribute of a class it takes no `self`.

    A partial adds no frame, and is no method of the class that has it.
    """

    @staticmethod
    def of(made: Function, original: Any) -> "_Builtin":
        """Return what we made with all that the original is known by."""
        found = _Builtin(made)
        functools.update_wrapper(found, original)
        found.__self__ = original.__self__  # type: ignore[attr-defined]
        return found

    def __get__(self, *_: Any) -> "_Builtin":
        return self

    def __reduce__(self) -> Any:
        return self.__qualname__  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return repr(self.__wrapped__)  # type: ignore[attr-defined]


def is_hooked() -> bool:
    """Whether this process has hooks."""
    return bool(_in_place)


def when_removed(act: Callable[[], None]) -> None:
    """Call it when hooks are taken away: it undoes what was put in place by other means."""
    _undoing.append(act)


def remove() -> None:
    """Take all hooks of this process away, also where a module has been given one by its name.

    What somebody else has put around a hook meanwhile stays, and the hook in it does nothing any more.
    """
    removed = [*_in_place]
    _in_place.clear()
    for owner, name, original, made in reversed(removed):
        if vars(owner).get(name) is not made:
            continue
        if original is None:  # a base class has it
            delattr(owner, name)
        else:
            setattr(owner, name, original)
    _give([(made, original) for _, _, original, made in removed if original is not None])
    while _undoing:
        _undoing.pop()()


def give_to_importers(is_left_out: Callable[[types.ModuleType], bool]) -> None:
    """Put hooks also where modules have imported a function by its name: `from torch import manual_seed`."""
    rows = [row for row in _in_place if isinstance(row[0], types.ModuleType) and row[2] is not None]
    _in_place.extend(_give([(original, made) for _, _, original, made in rows], is_left_out))


def _give(
    pairs: list[tuple[Any, Any]], is_left_out: Callable[[types.ModuleType], bool] | None = None
) -> list[tuple[Any, str, Any, Any]]:
    """Replace values of modules by others, which may be replaced too; return which, as hooks are listed."""
    replaced = {id(before): (before, after) for before, after in pairs}
    given = []
    for module in [*sys.modules.values()]:
        if not isinstance(module, types.ModuleType) or (is_left_out is not None and is_left_out(module)):
            continue
        for name, value in [*vars(module).items()]:
            after = value
            while id(after) in replaced and replaced[id(after)][0] is after:
                after = replaced[id(after)][1]
            if after is not value:
                setattr(module, name, after)
                given.append((module, name, value, after))
    return given


def resolve(target: str) -> tuple[Any, str]:
    """Return what owns a function, and the function's name in it. Imports nothing."""
    path, _, name = target.rpartition(".")
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        owner: Any = sys.modules.get(".".join(parts[:length]))
        if owner is not None:
            return functools.reduce(getattr, parts[length:], owner), name
    raise AttributeError(f"there is no module for {target}")


def _find(owner: Any, name: str) -> Any:
    """Return the function; what every object or every class has does not count."""
    kinds = [kind for kind in getattr(owner, "__mro__", ()) if kind is not object]
    if kinds and not any(name in vars(kind) for kind in kinds):
        raise AttributeError(f"{owner.__name__} has no {name}")
    return getattr(owner, name)


def hide(function: Function) -> None:
    """Let a function's frames be out of sight."""
    inner: Any = getattr(function, "__func__", function)
    if inner.__code__.co_filename != UNSEEN:
        inner.__code__ = inner.__code__.replace(co_filename=UNSEEN)


def observing(  # limits: private to this package
    observe: Function, original: Function, hook: Hook, *, tape: Tape
) -> Function:
    """Return what calls the original, and the observer as long as it does not fail by itself."""
    guard = Guard(tape, hook.target)
    is_outermost, is_everywhere, under_way = hook.is_outermost, hook.is_everywhere, tape.under_way
    window, is_always = tape.window, hook.when == ALWAYS
    rank = hook.rank

    # torch's profiler reads the argument `self` of the function that stands for Module.__call__, and ends the
    # process if there is none.
    def call(self: Any = _NOTHING, /, *args: Any, **kwargs: Any) -> Any:
        if self is not _NOTHING:
            args = (self, *args)
        pending = None
        is_on = guard.is_working and (tape.is_on or is_everywhere) and (is_always or window.is_open)
        is_on = is_on and not (is_outermost and under_way.is_inside)
        is_on = is_on and (rank is None or under_way.enter(rank))
        try:
            if is_on:
                try:
                    pending = observe(*args, **kwargs)
                    if pending is not None:
                        args = pending.send(None) or args
                except StopIteration:
                    pending = None
                except Exception as error:  # noqa: BLE001 - reported
                    pending = None
                    guard.fail(error)
            try:
                result = original(*args, **kwargs)
            except BaseException as error:
                if pending is not None:
                    guard.close(pending)
                drop_frames(error)
                raise
            return result if pending is None else guard.end(pending, result)
        finally:
            if is_on and rank is not None:
                under_way.leave()

    return unseen(call, original)


class Guard:
    """What is left of an observer's freedom: its errors are reported, and it is switched off."""

    def __init__(self, tape: Tape, where: str) -> None:
        self._tape, self._where = tape, where
        self.is_working = True

    def fail(self, error: Exception) -> None:
        """An observer has failed by itself, unless a handler of the script's has raised this while it ran."""
        if is_from_handler(error):
            raise error
        if not isinstance(error, RecursionError):  # the script may call itself too often by itself
            self.is_working = False
            self._tape.note_trouble(self._where, error, is_off=True)

    def end(self, pending: Any, result: Any) -> Any:
        """Let an observer go on after the function; return the result, or what it puts in its place."""
        try:
            pending.send(result)
        except StopIteration as ended:
            return result if ended.value is None else ended.value
        except Exception as error:  # noqa: BLE001 - reported
            self.fail(error)
        return result

    def close(self, pending: Any) -> None:
        """The function has raised."""
        try:
            pending.close()
        except Exception as error:  # noqa: BLE001 - reported
            self.fail(error)


for _method in (Guard.end, Guard.close):
    hide(_method)


def changing(change: Function, original: Function) -> Function:
    """Return what calls the change with the original and its arguments."""

    def call(self: Any = _NOTHING, /, *args: Any, **kwargs: Any) -> Any:
        if self is not _NOTHING:
            args = (self, *args)
        try:
            return change(original, *args, **kwargs)
        except BaseException as error:
            drop_frames(error)
            raise

    return unseen(call, original)


def calling_frame(depth: int = 1) -> types.FrameType | None:
    """Return the frame that has called a hooked function, asked so many calls inside of its wrapper."""
    frame: types.FrameType | None = sys._getframe(depth + 1)
    while frame is not None and frame.f_code.co_filename == UNSEEN:
        frame = frame.f_back
    return frame


def calling_module(depth: int = 1) -> str:
    """Return the name of the module that has called a hooked function, as `calling_frame` finds it."""
    frame = calling_frame(depth + 1)
    return str(frame.f_globals.get("__name__") or "") if frame is not None else ""


def bound(  # limits: as the call itself
    original: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> inspect.BoundArguments | None:
    """Return a call's arguments by name; None for a wrong call, of which the function itself complains."""
    try:
        return inspect.signature(original).bind(*args, **kwargs)
    except TypeError:
        return None


def _settle(made: Function, owners: list[tuple[Any, str]]) -> None:
    """Let a function that another module is known by, as `os.listdir` by `posix`, be pickled from here."""
    homes = [owner.__name__ for owner, _ in owners if isinstance(owner, types.ModuleType)]
    if homes and made.__qualname__ == owners[0][1] and made.__module__ not in homes:
        made.__module__ = homes[0]


def _with_self(made: Function, original: types.MethodType) -> Function:
    def method(_self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return made(*args, **kwargs)
        except BaseException as error:
            drop_frames(error)
            raise

    return unseen(method, original.__func__)


def unseen(made: Function, original: Function) -> Function:
    """Return what we made with the original's name, and out of sight."""
    hide(made)
    functools.update_wrapper(made, original)
    made.__module__ = getattr(original, "__module__", None)  # type: ignore[assignment]
    return made


def drop_frames(error: BaseException) -> None:
    """Take our frames from the beginning of an error's traceback, before it is raised again."""
    while error.__traceback__ is not None and error.__traceback__.tb_frame.f_code.co_filename == UNSEEN:
        error.__traceback__ = error.__traceback__.tb_next
