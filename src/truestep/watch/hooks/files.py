"""What is saved, loaded, and put back into models, optimizers and schedulers.

Owns torch's own files, safetensors and NumPy's. What is stored is left to the chain of digests.
"""

import os
import sys
from time import perf_counter_ns
from typing import Any

from truestep.watch.evidence.facts.structure import FileLoaded, FileSaved, StateLoaded
from truestep.watch.hooks.table import Observation
from truestep.watch.script.tape import Tape


class Files:
    """What is saved and loaded; what is stored, if digests are asked for."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def observe_save(self, how: str, place: int | None, /, *args: Any, **kwargs: Any) -> Observation:
        """Observe the saving of a file, whose name has this place among the arguments."""
        tape = self._tape
        site, path = tape.sites.here(3), _name(_argument(args, kwargs, place))
        chain = tape.chain
        digests = chain.digests_of_stored(lambda: _stored(how, args, kwargs)) if chain else None
        begun = perf_counter_ns()
        yield
        tape.mark(FileSaved(how, path, digests), site, begun)
        tape.emit("saved", path)

    def observe_load(self, how: str, place: int | None, /, *args: Any, **kwargs: Any) -> Observation:
        """Observe the loading of a file."""
        facts = FileLoaded(how, _name(_argument(args, kwargs, place)))
        site = self._tape.sites.here(3)
        begun = perf_counter_ns()
        yield
        self._tape.mark(facts, site, begun)

    def observe_restore(self, what: str, /, *_: Any, **__: Any) -> Observation:
        """Observe `load_state_dict`."""
        site = self._tape.sites.here(3)
        begun = perf_counter_ns()
        yield
        self._tape.mark(StateLoaded(what), site, begun)


def _name(given: Any) -> str | None:
    try:
        return os.fspath(given) if not isinstance(given, int) else None
    except TypeError:  # an open file or a buffer
        return getattr(given, "name", None) if isinstance(getattr(given, "name", None), str) else None


def _argument(args: tuple[Any, ...], kwargs: dict[str, Any], place: int | None) -> Any:
    if place is not None and len(args) > place:
        return args[place]
    return next(
        (kwargs[name] for name in ("f", "file", "fname", "filename", "checkpoint_id") if name in kwargs), None
    )


def _stored(how: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[Any, Any]:
    """Return what is to be saved: all arguments, of which names of files hold no tensors."""
    if how == "numpy":
        given = [_as_array(item) for item in args[1:]]
        kwargs = {name: _as_array(item) for name, item in kwargs.items() if name not in ("file", "fname")}
    else:
        given = [item for item in args if not isinstance(item, str | os.PathLike)]
    if len(given) == 1 and type(given[0]) is dict:
        return {**given[0], **kwargs}
    return {**{"" if len(given) == 1 else index: item for index, item in enumerate(given)}, **kwargs}


def _as_array(value: Any) -> Any:
    """Return what NumPy makes of it before it saves it: an array also of a list of numbers."""
    torch = sys.modules.get("torch")
    is_tensor = torch is not None and isinstance(value, torch.Tensor)
    return value if is_tensor else sys.modules["numpy"].asanyarray(value)
