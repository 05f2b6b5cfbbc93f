"""Practices that `truestep check` and the doctor find broken: the rules whose examples show them.

`test_rules.py` runs the examples of all rules: the mistake is found at its line in the buggy one, and nothing
in the clean one. This file lists which practice they show.
"""

import pytest

from tests.rules.test_rules import RULES

NAMES = {rule.name for rule in RULES}
SHOWN = {
    "P01": (
        "`truestep doctor` reports a missing or outdated driver, and a GPU that torch has no kernels for.",
        "outdated-driver unsupported-card missing-driver",
    ),
    "P04": (
        "`truestep doctor` reports a `CUDA_VISIBLE_DEVICES` that excludes the machine's GPUs.",
        "hidden-devices",
    ),
    "P06": (
        "`truestep doctor` reports packages that need another torch.",
        "unmet-requirement",
    ),
    "P09": (
        'A stored `state_dict()` that is the live weights, so that "best" equals last, is found.',
        "aliased-state",
    ),
    "P12": (
        "A loss in which prediction and target are broadcast against each other is found at its line.",
        "broadcast-target",
    ),
    "P14": (
        "A gradient that is not finite is found where it is applied to the weights.",
        "nonfinite-gradients",
    ),
    "P17": (
        "A loop without `zero_grad()` is found: its steps apply old gradients a second time.",
        "stale-gradients",
    ),
    "P18": ("An evaluation that builds graphs which no backward pass uses is found.", "unused-graphs"),
    "P19": (
        "A list of losses that keeps every step's graph alive is found at the line that keeps them.",
        "kept-graphs",
    ),
    "P24": (
        "Layers in a plain list, which are not registered and never trained, are found.",
        "unregistered-modules",
    ),
    "P25": ("A frozen BatchNorm whose statistics still move is found.", "moving-statistics"),
    "P28": ("Layers whose units are dead or saturated are found.", "dead-units saturated-activations"),
    "P30": (
        "Evaluation in train mode, training in eval mode and dropout that stays on are found.",
        "train-mode-evaluation eval-mode-training undying-dropout",
    ),
    "P35": (
        "`load_state_dict(strict=False)` that matches almost none of the model's tensors is found.",
        "empty-load",
    ),
    "P38": ("Validation samples that are also trained on are found.", "leaked-samples"),
    "P39": (
        "The same order in every epoch, and data sorted by label, are found.",
        "repeated-order sorted-labels",
    ),
    "P40": ("A step that waits for its data is found.", "starved-step"),
    "P41": (
        "Workers that draw the same augmentations from copies of one generator are found.",
        "copied-generator",
    ),
    "P43": ("Padding that counts in the loss is found.", "scored-padding"),
    "P46": (
        "A softmax or sigmoid before a loss that already applies it is found.",
        "doubled-softmax doubled-sigmoid",
    ),
    "P48": (
        "Accumulated gradients that are too large by the number of micro-batches are found.",
        "undivided-accumulation",
    ),
    "P49": (
        "Clipping after the step, before unscaling, or at every micro-batch is found.",
        "misplaced-clipping scaled-clipping repeated-clipping",
    ),
    "P51": (
        "Parameters in no optimizer, and an optimizer over unused parameters, are found.",
        "abandoned-parameters unoptimized-parameters",
    ),
    "P52": (
        "Gradients zeroed before the step, and a scheduler stepped before the optimizer, are found.",
        "discarded-gradients misplaced-scheduler",
    ),
    "P54": ("Weights resumed without the state of their optimizer are found.", "fresh-optimizer"),
    "P56": ("`torch.save(model)`, which pickles the whole module, is found.", "pickled-module"),
    "P57": (
        "Draws from an unseeded NumPy are found at their line, although torch was seeded.",
        "unseeded-generator",
    ),
    "P61": (
        "A NumPy generator inside a dataset, which no worker seed reaches, is found.",
        "copied-generator",
    ),
}
"""For each practice, what is found when it is broken, and the rules that find it."""


@pytest.mark.parametrize("practice", SHOWN)
def test_a_broken_practice_is_found(practice: str) -> None:
    _, rules = SHOWN[practice]
    assert set(rules.split()) <= NAMES
