"""Small functions over plain torch modules."""

from truestep.model.backward import Backward, InputGradient, check_backward
from truestep.model.cutting import Cut, cut
from truestep.model.dropout import Dropouts, set_dropout
from truestep.model.freezing import Frozen, freeze, trainable, unfreeze
from truestep.model.groups import decay_groups
from truestep.model.heads import replace_head
from truestep.model.layers import Replaced, replace
from truestep.model.names import select
from truestep.model.readings import Reading
from truestep.model.registration import Unregistered, unregistered
from truestep.model.statistics import Statistics, statistics_of
from truestep.model.taps import Taps, tap

__all__ = [
    "Backward",
    "Cut",
    "Dropouts",
    "Frozen",
    "InputGradient",
    "Reading",
    "Replaced",
    "Statistics",
    "Taps",
    "Unregistered",
    "check_backward",
    "cut",
    "decay_groups",
    "freeze",
    "replace",
    "replace_head",
    "select",
    "set_dropout",
    "statistics_of",
    "tap",
    "trainable",
    "unfreeze",
    "unregistered",
]
