"""When structure is looked at: beyond the first steps, wherever something of it has just changed.

Owns what counts as a change: a new optimizer or group, a new model, a module put into a known one, an epoch.
"""

from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from truestep.watch.hooks.table import when_removed
from truestep.watch.script import module_tree
from truestep.watch.script.refs import ByIdentity
from truestep.watch.script.tape import Tape

_AFTER_CHANGE = 4
_MAX_EPOCHS = 12
_MAX_CHANGES = 48


class Closeness:
    """Says whether this step is looked at closely. Changes late in a run have steps of their own."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._until = 0
        self._num_epochs = 0
        self.num_changes = 0
        self._known = ByIdentity[nn.Module, bool]()
        tape.listen(epoch=self._begin_epoch)
        when_removed(register_module_module_registration_hook(self._register).remove)
        self._look_at(_AFTER_CHANGE)

    def __bool__(self) -> bool:
        return self._tape.num_steps < self._until or self._tape.is_looked_at

    def renew(self) -> None:
        """Something has changed: look at the next few steps. Where all changes always, no more."""
        if self.num_changes < _MAX_CHANGES:
            self._look_at(_AFTER_CHANGE)
            self.num_changes += 1

    def know(self, root: nn.Module) -> None:
        """Watch for modules that are put into this one."""
        for module in module_tree.modules(root):
            self._known[module] = True

    def _look_at(self, num_steps: int) -> None:
        self._until = max(self._until, self._tape.num_steps + num_steps)
        self._tape.look_closely(num_steps)

    def _begin_epoch(self, _loader: Any, _number: int) -> None:
        if self._num_epochs < _MAX_EPOCHS:
            self._num_epochs += 1
            self._look_at(1)

    def _register(self, module: nn.Module, _name: str, _submodule: Any) -> None:
        if module in self._known:
            self.renew()
