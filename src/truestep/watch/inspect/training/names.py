"""The names of parameters, under the models that were called.

Owns the lookup while the script runs: a model may be gone when it ends.
"""

import weakref

from torch import Tensor, nn

from truestep.watch.script import module_tree
from truestep.watch.script.refs import ByIdentity
from truestep.watch.script.tape import Tape


class Names:
    """Names of parameters; those of the largest model that has them."""

    def __init__(self, tape: Tape) -> None:
        self._models = tape.things("model")
        self._known: ByIdentity[Tensor, str] = ByIdentity()

    def of(self, parameter: Tensor) -> str:
        """Return its name, or its shape if no model that was called has it."""
        if parameter not in self._known:
            self._look()
        if parameter not in self._known:
            self._known[parameter] = f"a parameter of shape {tuple(parameter.shape)}"
        return self._known[parameter]

    def _look(self) -> None:
        alive = [kept() if isinstance(kept, weakref.ref) else kept for _, kept in list(self._models.values())]
        listed = [
            list(module_tree.named_parameters(model)) for model in alive if isinstance(model, nn.Module)
        ]
        for named in sorted(listed, key=len):
            for name, item in named:
                self._known[item] = name
