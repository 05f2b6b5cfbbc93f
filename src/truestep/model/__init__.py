"""Small functions over plain torch modules."""

from truestep.model.dropout import Dropouts, set_dropout
from truestep.model.freezing import Frozen, freeze, trainable, unfreeze
from truestep.model.groups import decay_groups
from truestep.model.layers import Replaced, replace
from truestep.model.names import select
from truestep.model.readings import Reading
from truestep.model.statistics import Statistics
from truestep.model.taps import Taps, tap

__all__ = [
    "Dropouts",
    "Frozen",
    "Reading",
    "Replaced",
    "Statistics",
    "Taps",
    "decay_groups",
    "freeze",
    "replace",
    "select",
    "set_dropout",
    "tap",
    "trainable",
    "unfreeze",
]
