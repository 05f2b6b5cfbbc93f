"""Where the time of a step goes: what is cut where, and that it agrees with torch.profiler."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from truestep import watch
from truestep.watch import Facts, Moment
from truestep.watch.evidence.facts.loading import BatchFetched
from truestep.watch.evidence.facts.optimizing import ClippingCalled, GradientsZeroed, OptimizerStep
from truestep.watch.evidence.facts.passes import BackwardPass, ForwardPass, ModelUsed
from truestep.watch.evidence.phases import phase_shares, phase_words

SCRIPTS = Path(__file__).parent / "scripts"
WARM, STEPS = 4, 40
"""Of the scripts' own profiler."""
BATCH, BACKWARD = BatchFetched(0, ()), BackwardPass("backward")


def moment(facts: Facts, begin: float, end: float) -> Moment[Any]:
    return Moment(facts=facts, step=0, at_s=begin, took_s=end - begin, file="train.py", line=7, function="f")


def forward(
    begin: float, end: float, *, model: int = 0, grad: bool = True, training: bool = True
) -> Moment[Any]:
    return moment(ForwardPass(model, training, grad, False, ()), begin, end)


def update(begin: float, end: float) -> Moment[Any]:
    return moment(OptimizerStep(0, counts=True, rates=None), begin, end)


MODELS = [moment(ModelUsed(model, "Net", size), 0, 0) for model, size in ((0, 10), (1, 0))]


def cut(*moments: Moment[Any]) -> dict[str, float]:
    """Return the seconds of the step between an update that ends at 0 and the last one."""
    took_s = moments[-1].at_s + moments[-1].took_s
    shares = phase_shares([*MODELS, update(-1, 0), *sorted(moments, key=lambda item: item.at_s)])
    assert sum(shares.values()) == pytest.approx(1.0)
    return {phase: round(share * took_s, 6) for phase, share in shares.items() if round(share, 6)}


def test_a_step_is_cut_without_gaps_and_the_loss_belongs_to_forward() -> None:
    found = cut(
        moment(BATCH, 1, 3),
        forward(4, 5),
        forward(6, 6.5, model=1),  # a loss that is a module
        moment(GradientsZeroed(0, None), 7, 8),
        moment(BACKWARD, 9, 12),
        moment(ClippingCalled("norm", is_exhausted=False), 12, 13),
        update(13, 15),
    )
    assert found == {"data": 2, "forward": 4, "backward": 3, "optimizer": 4, "other": 2}


def test_what_follows_a_forward_pass_without_a_backward_pass_is_other() -> None:
    found = cut(forward(1, 2), moment(BATCH, 5, 6), moment(BACKWARD, 7, 8), update(8, 9))
    assert found == {"data": 1, "forward": 1, "backward": 1, "optimizer": 1, "other": 5}


def test_passes_inside_of_an_optimizers_step_are_not_the_optimizers() -> None:
    found = cut(forward(3, 4), moment(BACKWARD, 5, 7), update(1, 10))
    assert found == {"forward": 2, "backward": 2, "optimizer": 5, "other": 1}


def test_a_forward_pass_without_gradients_is_other() -> None:
    found = cut(forward(1, 2, grad=False), moment(BACKWARD, 2, 3), update(3, 4))
    assert found == {"backward": 1, "optimizer": 1, "other": 2}


def test_a_step_that_was_only_counted_is_left_out() -> None:
    seen = [moment(BACKWARD, 1, 2), update(3, 4)]
    assert phase_shares([*MODELS, update(-1, 0), *seen, update(9, 10)]) == phase_shares(
        [*MODELS, update(-1, 0), *seen]
    )


@pytest.mark.parametrize(("evaluated", "other"), [((4.2,), 0.5), ((0.2, 1.2, 4.2, 5.2, 6.2), 4.5 / 7)])
def test_steps_with_evaluation_are_left_out_unless_most_have_one(
    evaluated: tuple[float, ...], other: float
) -> None:
    ends = (0, 1, 2, 5, 6, 7)
    moments = [*MODELS, *(update(end - 0.25, end) for end in ends)]
    moments += [moment(BACKWARD, end - 0.5, end - 0.25) for end in ends]
    moments += [forward(begin, begin + 0.1, grad=False, training=False) for begin in evaluated]
    found = phase_shares(sorted(moments, key=lambda item: item.at_s))
    assert found["other"] == pytest.approx(other)


def test_no_whole_step_has_no_shares() -> None:
    assert phase_shares([*MODELS, update(1, 2)]) == {}
    assert phase_words({"data": 0.126, "other": 0.874}) == "data 13 %, other 87 %"


@pytest.mark.slow
@pytest.mark.practice("P70")
@pytest.mark.parametrize(
    "arguments", [("profile_cnn.py",), ("profile_loading.py", "--sleep", "0.001")], ids=["cnn", "data-bound"]
)
def test_p70_shares_agree_with_the_totals_of_torch_profiler(
    arguments: tuple[str, ...], tmp_path: Path
) -> None:
    """The shares of a step add up to 100 % and agree with torch.profiler on the same steps."""
    path = tmp_path / "totals.json"
    words = watch.command(
        SCRIPTS / arguments[0],
        (*arguments[1:], "--profiler", str(path)),
        plan=watch.Plan(),
        folder=tmp_path,
    )
    done = subprocess.run(words, cwd=SCRIPTS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (process,) = watch.read(tmp_path)
    totals = json.loads(path.read_text())
    assert process.num_steps == WARM + STEPS
    shares = phase_shares(process.moments, begin=WARM)
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-12)
    whole = totals.pop("step")
    totals["other"] = whole - sum(took for name, took in totals.items() if name != "other")
    for phase, share in shares.items():
        assert share == pytest.approx(totals.get(phase, 0.0) / whole, abs=0.05), phase
