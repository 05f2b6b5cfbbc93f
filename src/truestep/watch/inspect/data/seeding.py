"""Whether torch's global generator was drawn from before it was seeded for the first time.

Owns that one comparison. Who draws is seen in the operations, who seeds in the moments.
"""

from typing import Any

import torch

from truestep.watch.evidence.facts.surroundings import SeededLate
from truestep.watch.hooks.table import Hook, put
from truestep.watch.script.tape import Tape


def watch(tape: Tape) -> None:
    """Compare the generator's state with the one at the start, when it is first seeded."""
    hook = Hook("torch.random.manual_seed", _First.seeded, also=("torch.manual_seed",))
    put(tape, [hook], _First(tape))


class _First:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._state: bytes | None = _state()

    def seeded(self, /, *_: Any, **__: Any) -> None:
        """The generator is about to be seeded."""
        if self._state is not None and _state() != self._state:
            self._tape.note(SeededLate("torch"))
        self._state = None


def _state() -> bytes:
    return torch.default_generator.get_state().numpy().tobytes()
