"""Small functions over plain torch modules."""

from truestep.model.augmented import Gain, augmented, measure_gain
from truestep.model.backward import Backward, InputGradient, check_backward
from truestep.model.compare import Comparison, compare
from truestep.model.cutting import Cut, cut
from truestep.model.dropout import Dropouts, set_dropout
from truestep.model.freezing import Frozen, freeze, trainable, unfreeze
from truestep.model.groups import decay_groups
from truestep.model.heads import replace_head
from truestep.model.initialisation import Initialised, initialise
from truestep.model.layers import Replaced, replace
from truestep.model.load import Loaded, load
from truestep.model.names import select
from truestep.model.pictures import activation_grid, filters, gradient_flow, histograms
from truestep.model.quantise import Quantised, quantise
from truestep.model.readings import Reading
from truestep.model.registration import Unregistered, unregistered
from truestep.model.signal import LayerSignal, Signal, check_signal
from truestep.model.statistics import Statistics, statistics_of
from truestep.model.summary import ModuleSummary, Summary, summary
from truestep.model.taps import Taps, tap

__all__ = [
    "Backward",
    "Comparison",
    "Cut",
    "Dropouts",
    "Frozen",
    "Gain",
    "Initialised",
    "InputGradient",
    "LayerSignal",
    "Loaded",
    "ModuleSummary",
    "Quantised",
    "Reading",
    "Replaced",
    "Signal",
    "Statistics",
    "Summary",
    "Taps",
    "Unregistered",
    "activation_grid",
    "augmented",
    "check_backward",
    "check_signal",
    "compare",
    "cut",
    "decay_groups",
    "filters",
    "freeze",
    "gradient_flow",
    "histograms",
    "initialise",
    "load",
    "measure_gain",
    "quantise",
    "replace",
    "replace_head",
    "select",
    "set_dropout",
    "statistics_of",
    "summary",
    "tap",
    "trainable",
    "unfreeze",
    "unregistered",
]
