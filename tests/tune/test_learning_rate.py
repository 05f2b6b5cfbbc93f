"""The range test on real scripts: its curve, what is read from it, and what stays as it was."""

import json
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from truestep import watch
from truestep.errors import UsageError
from truestep.tune.in_script.sweeping import Divergence, Smooth, rate_at
from truestep.tune.search import learning_rate
from truestep.tune.search.learning_rate import Point, RangeTest, Swept, draw, range_test, read_curve, render

SCRIPTS = Path(__file__).parent / "scripts"
STEPS = 60
OWN_MODEL = b"the user's own" * 500_000
"""So large that a copy of the folder would rather link it."""


def script(name: str, *arguments: str) -> watch.Script:
    return watch.Script(path=str(SCRIPTS / name), arguments=arguments)


class Told(NamedTuple):
    test: RangeTest
    folder: Path
    printed: str


@pytest.fixture(scope="module")
def told() -> Iterator[Told]:
    """The range test of `ranged.py`, in a folder with a checkpoint that the script would write over."""
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        (folder / "model.pt").write_bytes(OWN_MODEL)
        (folder / "inner").mkdir()
        (folder / "inner" / "notes.txt").write_text("as they were")
        patch.chdir(folder)
        with tempfile.TemporaryFile("w+") as output:
            test = range_test(script("ranged.py"), steps=STEPS, show=output)
            output.seek(0)
            yield Told(test, folder, output.read())


@pytest.mark.slow
def test_the_curve_is_that_of_a_range_test_written_by_hand_to_the_bit(told: Told) -> None:
    torch.manual_seed(0)
    x = torch.randn(256, 16)
    y = (x @ torch.randn(16, 4)).argmax(1)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(
        [{"params": model[0].parameters()}, {"params": model[2].parameters()}], lr=1.0, momentum=0.9
    )
    losses = []
    for step in range(len(told.test.points)):
        rate = 1e-7 * (10.0 / 1e-7) ** (step / (STEPS - 1))
        optimizer.param_groups[0]["lr"], optimizer.param_groups[1]["lr"] = rate * (0.02 / 0.08), rate
        picked = torch.randint(256, (32,))
        loss = F.cross_entropy(model(x[picked]), y[picked])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert len(losses) > STEPS // 2
    assert [point.loss for point in told.test.points] == losses


@pytest.mark.slow
def test_a_closure_gives_the_same_curve(told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert range_test(script("ranged.py", "--closure"), steps=STEPS).points == told.test.points


@pytest.mark.slow
def test_the_users_files_stay_as_they_were(told: Told) -> None:
    found = {path.relative_to(told.folder): path for path in told.folder.rglob("*") if path.is_file()}
    assert {str(name): path.read_bytes() for name, path in found.items()} == {
        "model.pt": OWN_MODEL,
        "inner/notes.txt": b"as they were",
    }


@pytest.mark.slow
def test_the_script_reads_its_own_rates_all_the_time(told: Told) -> None:
    lines = [line.split() for line in told.printed.splitlines()]
    assert len(lines) >= len(told.test.points)
    for step, *rates in lines:
        assert [float(rate) for rate in rates] == pytest.approx(
            [0.02 * 0.99 ** int(step), 0.08 * 0.99 ** int(step)]
        )


@pytest.mark.slow
def test_the_suggestion_lies_where_the_loss_falls_and_is_compared_with_the_scripts_own(told: Told) -> None:
    test = told.test
    assert test.readings is not None and test.suggestion is not None
    assert test.readings.falls_from <= test.suggestion <= test.readings.falls_to
    assert test.own == 0.08
    assert "The groups of SGD keep their ratio 0.25 : 1; rates are the largest one's." in test.notes
    fields = json.loads(json.dumps(test.as_fields()))
    assert fields["suggestion"] == test.suggestion and len(fields["points"]) == len(test.points)


@pytest.mark.slow
def test_the_answer_fits_a_terminal_and_its_picture_can_be_saved(told: Told, tmp_path: Path) -> None:
    lines = render(told.test)
    assert len(lines) <= 20 and max(map(len, lines)) <= 80, lines
    assert any(line.startswith("suggestion") for line in lines) and any(
        line.startswith("yours") for line in lines
    )
    text = draw(told.test).save(tmp_path / "rate.svg").read_text()
    assert "suggestion" in text and "yours 0.08" in text


@pytest.mark.slow
def test_a_script_with_fewer_steps_gets_a_sweep_of_as_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    test = range_test(script("ranged.py", "--steps", "30"), high=0.1)
    assert len(test.points) == 30 and test.points[-1].rate == pytest.approx(0.1)
    assert not test.is_diverged
    assert test.notes[0] == "The script runs 30 steps, fewer than 100, so the sweep uses 30."


@pytest.mark.slow
def test_too_few_steps_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="the script ran 7 steps, a range test needs at least 20"):
        range_test(script("ranged.py", "--steps", "7"))


@pytest.mark.slow
def test_several_optimizers_are_swept_alike_and_a_loss_that_is_no_number_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    test = range_test(script("adversaries.py"), high=0.1)
    assert test.optimizers == (Swept(name="SGD", rates=(0.01,)), Swept(name="Adam", rates=(0.001,)))
    assert "SGD and Adam were swept together; the loss is from the first one's steps." in test.notes
    assert test.is_diverged and math.isnan(test.points[-1].loss)
    assert len(test.points) == 62  # 61 steps of the first, then the loss of the second
    losses = [point.loss for point in test.points[:-1]]
    assert max(losses) < 5, "as they were before they were scaled by 1024"
    assert len(render(test)) <= 20 and test.as_fields()["points"][-1]["loss"] is None


@pytest.mark.slow
def test_a_loss_that_does_not_fall_gives_no_suggestion(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    test = range_test(script("level.py"))
    assert test.suggestion is None and test.as_fields()["readings"] is None
    assert "no suggestion  at no rate did the loss fall by more than its noise" in render(test)


@pytest.mark.slow
def test_a_script_that_fails_says_so_with_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.py").write_text("print('so far so good')\nraise KeyError('lr')\n")
    with pytest.raises(UsageError, match=r"failed after 0 steps: KeyError: 'lr'[\s\S]*so far so good"):
        range_test(watch.Script(path="broken.py"))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"low": 0.0}, "rates must rise"),
        ({"low": 1.0, "high": 0.1}, "rates must rise"),
        ({"steps": 5}, "20 steps"),
    ],
)
def test_wrong_ranges_are_refused(wrong: dict[str, float], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        range_test(script("level.py"), **wrong)  # type: ignore[arg-type]


def curve(losses: list[float]) -> list[Point]:
    rates = [rate_at(at, low=1e-6, high=1.0, steps=len(losses)) for at in range(len(losses))]
    return [Point(rate=rate, loss=loss, smoothed=loss) for rate, loss in zip(rates, losses, strict=True)]


def test_readings_of_a_curve_that_is_known() -> None:
    # Level for 30 steps, falling for 20 with its steepest part after 10 of them, then rising.
    falling = [-1 / (1 + math.exp(-(at - 10) / 2)) for at in range(20)]
    losses = [2.0 - 1e-9 * at for at in range(30)] + [2.0 + value for value in falling] + [1.5, 2.5, 4.0]
    points = curve(losses)
    readings = read_curve(points)
    assert readings is not None
    assert readings.steepest == pytest.approx(points[40].rate)
    assert readings.falls_to == points[49].rate
    assert readings.tenth == points[49].rate / 10
    assert points[30].rate < readings.falls_from < points[40].rate


def test_a_loss_below_zero_diverges_too_and_a_falling_one_does_not() -> None:
    falling = Divergence(steps=50, beta=0.0)
    assert not any(falling.is_reached(1.0 - 0.1 * at) for at in range(50))
    assert not falling.is_reached(-2.0)  # back by half of what was gained
    assert falling.is_reached(20.0)


def test_divergence_is_four_times_the_best_after_the_first_tenth() -> None:
    early = Divergence(steps=50, beta=0.0)
    assert [early.is_reached(loss) for loss in (1.0, 9.0, 9.0, 1.0, 1.0, 3.9, 4.1)] == [False] * 6 + [True]
    assert Divergence(steps=50, beta=0.9).is_reached(math.inf)


def test_the_average_is_not_pulled_to_zero() -> None:
    smooth = Smooth(0.9)
    assert [smooth.add(3.0) for _ in range(5)] == pytest.approx([3.0] * 5)
    assert Smooth(0.5).add(1.0) == 1.0


@pytest.mark.verdict("about the same")
def test_own_rates_are_put_beside_the_suggestion_in_words() -> None:
    readings = learning_rate.Readings(steepest=0.1, valley=0.1, tenth=0.1, falls_from=0.01, falls_to=1.0)
    words = {}
    for own in (1e-4, 0.03, 0.1, 0.8, 5.0):
        test = RangeTest(
            points=(), optimizers=(Swept(name="SGD", rates=(own,)),), readings=readings, is_diverged=True
        )
        words[own] = learning_rate.compare(test)
    assert words == {
        1e-4: "1000 times lower, too low for the loss to fall in this few steps",
        0.03: "3.3 times lower, inside the range in which the loss falls",
        0.1: "about the same",
        0.8: "8.0 times higher, inside the range in which the loss falls",
        5.0: "50 times higher, above every rate at which the loss fell",
    }
