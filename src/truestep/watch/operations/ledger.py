"""The ledger: the memory that operations of the first steps have made, as long as it is in use.

Owns what is counted: new memory of a forward pass and of what is computed beside it. Nothing is kept alive by
it. It asks tensors, not their storages: of one that Python has seen torch gives memory back later.
"""

from typing import NamedTuple

from torch import Tensor

from truestep.watch.script.refs import Ref

_MIN_BYTES = 4096
_MIN_SWEPT = 1024


class Entry(NamedTuple):
    """A piece of memory in use, and who made it."""

    address: int
    num_bytes: int
    device: str
    module: int
    """Module and site are numbers of the recorder's tables."""
    site: int


class Ledger:
    """What operations have made."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Entry, list[Ref[Tensor]]]] = {}
        """By address: the entry, and the tensors that lie there. Autograd keeps a view of what it needs."""
        self._sweep_at = _MIN_SWEPT

    def add(self, tensor: Tensor, *, is_view: bool, module: int, site: int) -> None:
        """An operation has returned a tensor, in new memory or in that of another one."""
        num_bytes = tensor.numel() * tensor.element_size()
        if num_bytes < _MIN_BYTES:
            return
        address = int(tensor.data_ptr()) - int(tensor.storage_offset()) * tensor.element_size()
        known = self._known.get(address)
        if known is not None and (is_view or _is_used(known[1])):
            known[1].append(Ref(tensor))
        elif not is_view and address > 0:
            entry = Entry(address, num_bytes, tensor.device.type, module, site)
            self._known[address] = (entry, [Ref(tensor)])
            if len(self._known) >= self._sweep_at:
                self.live()
                self._sweep_at = max(_MIN_SWEPT, 2 * len(self._known))

    def live(self) -> list[Entry]:
        """Return what is in use, and forget the rest."""
        known = [*self._known.items()]  # in one go: other threads add to it
        self._known = {key: item for key, item in known if _is_used(item[1])}
        return [entry for entry, _ in [*self._known.values()]]

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()


def _is_used(refs: list[Ref[Tensor]]) -> bool:
    return any(ref() is not None for ref in refs)
