"""Small functions over plain torch modules."""

from truestep.model.freezing import Frozen, freeze, trainable, unfreeze
from truestep.model.groups import decay_groups
from truestep.model.names import select

__all__ = ["Frozen", "decay_groups", "freeze", "select", "trainable", "unfreeze"]
