"""Two settings of one script, in turns: the ratio is right, whatever the script does in between."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.tune.planting import knob, put
from truestep import watch
from truestep.errors import UsageError
from truestep.tune.search import compare as comparing
from truestep.tune.search import race
from truestep.tune.search.compare import Comparison, compare
from truestep.tune.search.race import Contender, Turn

pytestmark = pytest.mark.slow
FASTER = {"pause_s": 0.002}
SLOWER = {"pause_s": 0.0044}


def compare_planted(
    folder: Path, value: dict[str, Any], *arguments: str, seconds: float = 40.0
) -> Comparison:
    put(folder, "pausing.py")
    script = watch.Script(path="pausing.py", arguments=arguments)
    return compare(script, {}, {"planted": value}, seconds=seconds, knobs={"planted": knob("planted", value)})


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_setting_that_waits_less_pays(tmp_path: Path) -> None:
    found = compare_planted(tmp_path, FASTER)
    assert found.pays
    assert found.ratio is not None and 1.2 < found.ratio.median < 2.2


def test_a_setting_that_waits_more_does_not_pay(tmp_path: Path) -> None:
    found = compare_planted(tmp_path, SLOWER)
    assert not found.pays


def test_it_goes_on_for_as_many_pairs_as_are_asked_for_though_it_is_clear(tmp_path: Path) -> None:
    put(tmp_path, "pausing.py")
    script, slower = watch.Script(path="pausing.py"), {"planted": SLOWER}
    knobs = {"planted": knob("planted", SLOWER)}
    found = compare(script, {}, slower, seconds=60.0, min_pairs=14, knobs=knobs)
    assert found.ratio is not None and found.ratio.num >= 14


def test_a_setting_that_does_nothing_does_not_pay_and_gives_the_same_losses(tmp_path: Path) -> None:
    found = compare_planted(tmp_path, {})
    assert not found.pays
    num = min(len(found.base_losses), len(found.other_losses))
    assert num > 20 and found.base_losses[:num] == found.other_losses[:num]


def test_a_script_that_ends_is_started_again_and_the_users_folder_is_left_as_it_was(tmp_path: Path) -> None:
    put(tmp_path, "pausing.py")
    (tmp_path / "result.txt").write_text("mine")
    found = compare_planted(tmp_path, FASTER, "120", seconds=90.0)
    assert found.ratio is not None and found.ratio.num >= 6, found
    assert (tmp_path / "result.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pausing.py", "planted.py", "result.txt"]


def test_a_script_with_too_few_steps_is_refused_with_their_number(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ended after 3 optimizer steps.*train longer"):
        compare_planted(tmp_path, FASTER, "3")


def test_a_script_that_fails_is_refused_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="planted failure"):
        compare_planted(tmp_path, FASTER, "100", "2")


def test_a_setting_that_breaks_the_script_is_told_with_the_reason(tmp_path: Path) -> None:
    found = compare_planted(tmp_path, {"fails": True})
    assert found.ratio is None
    assert found.failed == "RuntimeError: planted: this setting cannot be used here"


def test_a_setting_that_breaks_the_script_after_some_turns_is_told_with_the_reason(tmp_path: Path) -> None:
    put(tmp_path, "pausing.py")
    value, script = {"fails_at": 120}, watch.Script(path="pausing.py")
    knobs = {"planted": knob("planted", value)}
    found = compare(script, {}, {"planted": value}, seconds=60.0, min_pairs=100, knobs=knobs)
    assert found.ratio is None and not found.pays
    assert found.failed is not None and "planted failure" in found.failed


class Fake:
    """A script of equal steps in no process: it makes so many of them, and ends with a code."""

    def __init__(self, *, num_steps: int, code: int) -> None:
        self._num, self._end = num_steps, code
        self.facts: dict[str, Any] = {}
        self.peak_bytes, self.tail = 0, "ValueError: out of memory"

    def __enter__(self) -> "Fake":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        self.num_steps, self.code = 0, None
        self.losses: list[float | None] = []

    def first(self, *, until_s: float) -> Turn | None:
        return self.advance(1, until_s=until_s)

    def advance(self, num_steps: int, *, until_s: float) -> Turn | None:
        assert until_s
        made = min(num_steps, self._num - self.num_steps)
        self.num_steps += made
        if made < num_steps:
            self.code: int | None = self._end
            return None
        return Turn(seconds=[0.01] * made, losses=[1.0] * made, peak_bytes=0)

    def stop(self) -> None:
        pass


def compare_fakes(monkeypatch: pytest.MonkeyPatch, first: Fake, second: Fake) -> Comparison:
    monkeypatch.setattr(comparing, "Contender", lambda _script, settings, **_: second if settings else first)
    return compare(watch.Script(path="none.py"), {}, {"planted": True}, seconds=60.0, knobs={})


@pytest.mark.parametrize("num_steps", range(90, 100))
def test_a_setting_is_not_blamed_for_a_failure_that_the_script_has_without_it(
    monkeypatch: pytest.MonkeyPatch, num_steps: int
) -> None:
    endless = Fake(num_steps=10**6, code=0)
    fails = {"num_steps": num_steps, "code": 1}
    found = compare_fakes(monkeypatch, endless, Fake(**fails))
    assert found.ratio is None
    assert found.failed == f"failed after {num_steps} steps: ValueError: out of memory"
    found = compare_fakes(monkeypatch, Fake(**fails), Fake(**fails))
    assert found.failed is None and found.ratio is not None


def test_a_setting_whose_steps_do_not_settle_is_told_and_the_other_trials_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = compare_fakes(monkeypatch, Fake(num_steps=100, code=0), Fake(num_steps=7, code=0))
    assert found.ratio is None
    assert found.failed == "step times did not settle in 7 steps; let the script train longer"


SLOW_TO_GO = """\
import time
import torch

class Last:
    def __del__(self, sleep=time.sleep):
        sleep(60)

last = Last()
weight = torch.nn.Parameter(torch.ones(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(4):
    weight.pow(2).sum().backward()
    optimizer.step()
FAILS
"""


@pytest.mark.parametrize(("last", "has_failed"), [("", False), ("raise SystemExit", False), ("1 / 0", True)])
def test_a_script_that_is_slow_to_go_has_not_failed_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str, has_failed: bool
) -> None:
    monkeypatch.setattr(race, "_GRACE_S", 0.5)
    (tmp_path / "train.py").write_text(SLOW_TO_GO.replace("FAILS", last))
    with Contender(watch.Script(path="train.py"), {}, knobs={}) as runner:
        runner.start()
        until_s = time.monotonic() + 60
        assert runner.first(until_s=until_s) is not None, runner.tail
        assert runner.advance(10, until_s=until_s) is None
        assert (runner.code != 0) is has_failed, runner.tail


SEEDED = """\
import random
import torch

SEED
weight = torch.nn.Parameter(torch.randn(4) + random.random())
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(4):
    weight.pow(2).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "seeding",
    [
        "torch.manual_seed(0); random.seed(0)",
        "torch.manual_seed(seed=0); random.seed(0)",
        "torch.manual_seed(0); random.seed(a=0)",
        "import truestep; truestep.Run('runs/seeded', seed=0, progress=False)",
    ],
)
def test_other_seeds_are_others_however_the_script_sets_them(tmp_path: Path, seeding: str) -> None:
    (tmp_path / "train.py").write_text(SEEDED.replace("SEED", seeding))
    losses = []
    for offset in (0, 1, 1):
        script = watch.Script(path="train.py")
        with Contender(script, {}, knobs={}, seed_offset=offset, num_first=2) as runner:
            runner.start()
            assert runner.first(until_s=time.monotonic() + 60) is not None, runner.tail
            losses.append(runner.losses)
    assert losses[0] != losses[1] == losses[2]


def test_between_its_turns_a_process_and_its_workers_stand_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = tmp_path / "counts"
    counts.mkdir()
    monkeypatch.setenv("COUNTS", str(counts))
    put(tmp_path, "workers.py")
    with Contender(watch.Script(path="workers.py"), {}, knobs={}) as runner:
        runner.start()
        until_s = time.monotonic() + 60
        assert runner.first(until_s=until_s) is not None
        assert runner.advance(3, until_s=until_s) is not None
        time.sleep(0.1)
        before = _counted(counts)
        time.sleep(0.5)
        assert len(before) == 2 and _counted(counts) == before
        assert runner.advance(5, until_s=until_s) is not None
        assert sum(_counted(counts).values()) > sum(before.values())


def _counted(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in folder.iterdir()}


def test_nothing_is_left_when_the_one_who_measures_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNTS", str(tmp_path / "counts"))
    (tmp_path / "counts").mkdir()
    put(tmp_path, "workers.py")
    code = (
        "import time; from truestep import watch; from truestep.tune.search.race import Contender\n"
        "runner = Contender(watch.Script(path='workers.py'), {}, knobs={}); runner.start()\n"
        "runner.first(until_s=time.monotonic() + 60); print(runner._process.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as measuring:
        assert measuring.stdout is not None
        pids = [int(measuring.stdout.readline()), *map(int, _counted(tmp_path / "counts"))]
        assert len(pids) == 3
        measuring.kill()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
