"""Use of the global generators: who seeds them, and their states.

Owns torch, `random` and NumPy. Draws nothing. A generator object's own `manual_seed` is out of reach.
"""

import hashlib
import sys
from array import array
from typing import Any

from truestep.watch.evidence.facts.surroundings import GeneratorSeeded
from truestep.watch.script.tape import Tape


class Seeds:
    """Whoever seeds one of the global generators."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def observe(self, generator: str, how: str, /, *args: Any, **kwargs: Any) -> None:
        """Note that a generator is seeded, or given a state."""
        given = args[0] if args else kwargs.get("seed", kwargs.get("a"))
        kind = "fresh" if how in ("seed", "new") and given is None else how
        seed = given if type(given) is int and how != "state" else None
        self._tape.note(GeneratorSeeded(generator, kind, seed, _digest_of(generator, given, how)))

    def observe_ours(self, root: int, *_: Any) -> None:
        """Note how a run of ours seeds all three at once, past their own functions."""
        for generator in ("torch", "random", "numpy"):
            self._tape.note(GeneratorSeeded(generator, "seed", root, None))


def _digest_of(generator: str, given: Any, how: str) -> str | None:
    """Return the digest of a state that torch's generator is set to, comparable with those of updates."""
    if generator != "torch" or how != "state" or not hasattr(given, "numpy"):
        return None
    return hashlib.sha256(given.cpu().clone().numpy().tobytes()).hexdigest()[:16]


def states() -> dict[str, Any]:
    """Return the states of the global generators that are in use, for comparing."""
    found: dict[str, Any] = {}
    torch, numpy, random = (sys.modules.get(name) for name in ("torch", "numpy", "random"))
    assert torch is not None
    from truestep.base.device import module_in_use  # noqa: PLC0415 - this module is imported before torch

    found["torch"] = torch.default_generator.get_state().numpy().tobytes()
    if random is not None:
        found["random"] = array("L", random.getstate()[1]).tobytes()
    if numpy is not None:
        state = numpy.random.get_state(legacy=False)
        inner = state["state"]
        found["numpy"] = (
            inner["key"].tobytes() + bytes(str(inner["pos"]), "ascii") if "key" in inner else repr(inner)
        )
    for generator in getattr(module_in_use(), "default_generators", ()):
        found[str(generator.device)] = generator.get_state().numpy().tobytes()
    return found
