"""Practices that `truestep check` and the doctor find broken: the rules whose examples show them.

`test_rules.py` runs the examples of all rules: the mistake is found at its line in the buggy one, and nothing
in the clean one. This file lists which practice they show.
"""

import pytest

from tests.rules.test_rules import RULES

SHOWN = {rule.name for rule in RULES}


def assert_shown_by(*rules: str) -> None:
    """Fail if one of these rules is gone, or has no examples that are run."""
    assert set(rules) <= SHOWN, set(rules) - SHOWN


@pytest.mark.practice("P01")
def test_p01_drivers_and_kernels_that_do_not_fit_are_found() -> None:
    """`truestep doctor` reports a missing or outdated driver, and a GPU that torch has no kernels for."""
    assert_shown_by("outdated-driver", "unsupported-card", "missing-driver")


@pytest.mark.practice("P02")
def test_p02_a_toolkit_of_another_cuda_is_found() -> None:
    """`truestep doctor` reports a toolkit whose CUDA differs from that of torch's build."""
    assert_shown_by("differing-toolkit")


@pytest.mark.practice("P03")
def test_p03_bitsandbytes_for_another_cuda_is_found() -> None:
    """`truestep doctor` reports a bitsandbytes without a library for this CUDA."""
    assert_shown_by("foreign-bitsandbytes")


@pytest.mark.practice("P04")
def test_p04_excluded_devices_are_found() -> None:
    """`truestep doctor` reports a `CUDA_VISIBLE_DEVICES` that excludes the machine's GPUs."""
    assert_shown_by("hidden-devices")


@pytest.mark.practice("P06")
def test_p06_companions_that_do_not_fit_are_found() -> None:
    """`truestep doctor` reports packages that need another torch, and a retired NVML binding."""
    assert_shown_by("unmet-requirement", "retired-nvml-binding")


@pytest.mark.practice("P09")
def test_p09_kept_weights_that_are_no_copy_are_found() -> None:
    """A stored `state_dict()` that is the live weights, so that "best" equals last, is found."""
    assert_shown_by("aliased-state")


@pytest.mark.practice("P12")
def test_p12_a_target_broadcast_in_the_loss_is_found() -> None:
    """A loss in which prediction and target are broadcast against each other is found at its line."""
    assert_shown_by("broadcast-target")


@pytest.mark.practice("P14")
def test_p14_gradients_that_are_not_finite_are_found() -> None:
    """A gradient that is not finite is found where it is applied to the weights."""
    assert_shown_by("nonfinite-gradients")


@pytest.mark.practice("P17")
def test_p17_gradients_that_were_not_zeroed_are_found() -> None:
    """A loop without `zero_grad()` is found: its steps apply old gradients a second time."""
    assert_shown_by("stale-gradients")


@pytest.mark.practice("P18")
def test_p18_graphs_that_nothing_uses_are_found() -> None:
    """An evaluation that builds graphs which no backward pass uses is found."""
    assert_shown_by("unused-graphs")


@pytest.mark.practice("P19")
def test_p19_losses_kept_with_their_graphs_are_found() -> None:
    """A list of losses that keeps every step's graph alive is found at the line that keeps them."""
    assert_shown_by("kept-graphs")


@pytest.mark.practice("P24")
def test_p24_layers_in_a_plain_list_are_found() -> None:
    """Layers in a plain list, which are not registered and never trained, are found."""
    assert_shown_by("unregistered-modules")


@pytest.mark.practice("P25")
def test_p25_statistics_that_move_in_a_frozen_layer_are_found() -> None:
    """A frozen BatchNorm whose statistics still move is found."""
    assert_shown_by("moving-statistics")


@pytest.mark.practice("P28")
def test_p28_units_that_are_dead_or_saturated_are_found() -> None:
    """Layers whose units are dead or saturated are found."""
    assert_shown_by("dead-units", "saturated-activations")


@pytest.mark.practice("P30")
def test_p30_layers_in_the_wrong_mode_are_found() -> None:
    """Evaluation in train mode, training in eval mode and dropout that stays on are found."""
    assert_shown_by("train-mode-evaluation", "eval-mode-training", "undying-dropout")


@pytest.mark.practice("P35")
def test_p35_a_load_that_fits_nothing_is_found() -> None:
    """`load_state_dict(strict=False)` that matches almost none of the model's tensors is found."""
    assert_shown_by("empty-load")


@pytest.mark.practice("P38")
def test_p38_samples_in_two_parts_of_a_split_are_found() -> None:
    """Validation samples that are also trained on are found."""
    assert_shown_by("leaked-samples")


@pytest.mark.practice("P39")
def test_p39_an_order_that_repeats_or_is_sorted_is_found() -> None:
    """The same order in every epoch, and data sorted by label, are found."""
    assert_shown_by("repeated-order", "sorted-labels")


@pytest.mark.practice("P40")
def test_p40_workers_that_starve_the_step_are_found() -> None:
    """A step that waits for its data is found."""
    assert_shown_by("starved-step")


@pytest.mark.practice("P41")
def test_p41_workers_that_repeat_each_other_are_found() -> None:
    """Workers that draw the same augmentations from copies of one generator are found."""
    assert_shown_by("copied-generator")


@pytest.mark.practice("P42")
def test_p42_batches_copied_from_pageable_memory_are_found() -> None:
    """Copies to a GPU from pageable memory are found in recorded evidence; untested on a GPU."""
    assert_shown_by("pageable-copies")


@pytest.mark.practice("P43")
def test_p43_padding_in_the_loss_is_found() -> None:
    """Padding that counts in the loss is found."""
    assert_shown_by("scored-padding")


@pytest.mark.practice("P46")
def test_p46_softmax_or_sigmoid_twice_is_found() -> None:
    """A softmax or sigmoid before a loss that already applies it is found."""
    assert_shown_by("doubled-softmax", "doubled-sigmoid")


@pytest.mark.practice("P47")
def test_p47_a_mean_of_means_is_found() -> None:
    """A mean of batch means over batches of different sizes is found."""
    assert_shown_by("unweighted-average")


@pytest.mark.practice("P48")
def test_p48_accumulation_that_is_not_divided_is_found() -> None:
    """Accumulated gradients that are too large by the number of micro-batches are found."""
    assert_shown_by("undivided-accumulation")


@pytest.mark.practice("P49")
def test_p49_clipping_where_it_does_nothing_or_harm_is_found() -> None:
    """Clipping after the step, before unscaling, or at every micro-batch is found."""
    assert_shown_by("misplaced-clipping", "scaled-clipping", "repeated-clipping")


@pytest.mark.practice("P50")
def test_p50_decay_of_biases_and_norms_is_remarked() -> None:
    """Weight decay on biases and normalization weights is reported as info."""
    assert_shown_by("decayed-norms")


@pytest.mark.practice("P51")
def test_p51_parameters_the_optimizer_lacks_or_has_in_vain_are_found() -> None:
    """Parameters in no optimizer, and an optimizer over unused parameters, are found."""
    assert_shown_by("abandoned-parameters", "unoptimized-parameters")


@pytest.mark.practice("P52")
def test_p52_steps_out_of_order_are_found() -> None:
    """Gradients zeroed before the step, and a scheduler stepped before the optimizer, are found."""
    assert_shown_by("discarded-gradients", "misplaced-scheduler")


@pytest.mark.practice("P54")
def test_p54_an_optimizer_that_starts_afresh_is_found() -> None:
    """Weights resumed without the state of their optimizer are found."""
    assert_shown_by("fresh-optimizer")


@pytest.mark.practice("P56")
def test_p56_a_pickled_module_is_found() -> None:
    """`torch.save(model)`, which pickles the whole module, is found."""
    assert_shown_by("pickled-module")


@pytest.mark.practice("P57")
def test_p57_draws_before_any_seed_are_found() -> None:
    """Draws from an unseeded NumPy are found at their line, although torch was seeded."""
    assert_shown_by("unseeded-generator")


@pytest.mark.practice("P61")
def test_p61_a_generator_of_the_datasets_own_is_found() -> None:
    """A NumPy generator inside a dataset, which no worker seed reaches, is found."""
    assert_shown_by("copied-generator")


@pytest.mark.practice("P65")
def test_p65_a_host_that_waits_is_found() -> None:
    """A host that waits for the GPU in every step is found in recorded evidence; untested on a GPU."""
    assert_shown_by("waiting-host")


@pytest.mark.practice("P67")
def test_p67_compiling_again_and_again_is_found() -> None:
    """A model that `torch.compile` recompiles repeatedly is found."""
    assert_shown_by("repeated-compilation")
