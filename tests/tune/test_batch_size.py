"""Batch sizes on real scripts: which loader is changed, how memory grows, and the largest that fits."""

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from truestep import watch
from truestep.base.memory import available_bytes
from truestep.errors import UsageError
from truestep.tune.search import batch_size
from truestep.tune.search.batch_size import BatchSizes, Size, batch_sizes, draw, render
from truestep.tune.search.intervals import Interval
from truestep.tune.search.solo import Solo, run_alone
from truestep.watch.launch.scratch import Scratch

SCRIPTS = Path(__file__).parent / "scripts"
LIMIT = 800_000_000
OWN = 32


def run_sized(name: str, *arguments: str, value: dict[str, object], max_bytes: int | None = None) -> Solo:
    """Run a script with another batch size, as the search does."""
    given = {"loaders": [], "num": 1, "den": 1, "min_steps": 6, "max_steps": 6, "seconds": 0.0, **value}
    script = watch.Script(path=str(SCRIPTS / name), arguments=arguments)
    with tempfile.TemporaryDirectory() as folder, Scratch(Path(folder)) as scratch:
        setting = ("truestep.tune.in_script.resizing:resize", given)
        return run_alone(script, scratch, setting=setting, kind="sized", max_bytes=max_bytes)


@pytest.fixture(scope="module")
def found() -> Iterator[BatchSizes]:
    """The sizes of a script that needs some megabytes for each sample, within a limit."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        script = watch.Script(path=str(SCRIPTS / "wide.py"), arguments=("--batch-size", str(OWN)))
        yield batch_sizes(script, limit_bytes=LIMIT, seconds=0.1)
        assert list(Path(folder).iterdir()) == []


@pytest.mark.slow
@pytest.mark.practice("P45")
def test_p45_the_largest_batch_that_fits_is_found_and_a_tenth_more_does_not_fit(found: BatchSizes) -> None:
    """The largest batch that fits in memory is found by runs that never exceed the limit."""
    largest = found.of(found.largest)
    assert largest.fits and largest.peak_bytes is not None and largest.peak_bytes <= LIMIT
    assert found.too_large is not None and found.largest < found.too_large <= found.largest * 1.1 + 1
    more = int(found.largest * 1.1) + 1
    solo = run_sized("wide.py", "--batch-size", str(OWN), value={"loaders": [1], "num": more, "den": OWN})
    assert solo.tail.splitlines() == ["validation 64", f"training {more}"]
    assert solo.lines[-1]["peak_bytes"] > LIMIT


@pytest.mark.slow
def test_sizes_are_halved_and_doubled_with_speed_and_growing_memory(found: BatchSizes) -> None:
    assert found.own == OWN
    sizes = [size.batch_size for size in found.sizes if size.fits]
    assert sizes[:2] == [OWN // 2, OWN] and sizes == sorted(sizes)
    # Below its own size tensors are small enough for the allocator to keep what they leave.
    peaks = [size.peak_bytes or 0 for size in found.sizes if size.fits and size.batch_size >= OWN]
    assert peaks[0] < peaks[-1] == max(peaks) and 0 < (found.sizes[0].before_bytes or 0) < peaks[0]
    assert all(size.samples_per_s is not None and size.samples_per_s.low > 0 for size in found.sizes[:2])


@pytest.mark.slow
def test_the_answer_fits_a_terminal_and_warns_of_learning(found: BatchSizes, tmp_path: Path) -> None:
    lines = render(found)
    assert len(lines) <= 20 and max(map(len, lines)) <= 80, lines
    assert "A different batch size changes learning, so tune the learning rate again." in lines
    assert f"largest that fits in 800 MB: {found.largest}" in lines
    assert json.loads(json.dumps(found.as_fields()))["largest"] == found.largest
    assert "samples per second" in draw(found).save(tmp_path / "sizes.svg").read_text()


@pytest.mark.slow
def test_a_process_that_passes_the_limit_is_ended() -> None:
    solo = run_sized("wide.py", value={"loaders": [1], "num": 1 << 11, "den": 32}, max_bytes=LIMIT)
    assert solo.is_over_limit and solo.code == -9 and solo.lines[-1]["what"] == "loader"


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["0", "1"])
def test_our_own_loader_is_changed_too(workers: str) -> None:
    solo = run_sized("with_run.py", workers, value={"loaders": [0], "num": 24, "den": 8})
    assert "lane 12" in solo.tail, solo.tail
    assert solo.lines[0]["is_global"] and solo.lines[0]["batch_size"] == 24
    assert solo.lines[-1]["trained"] == [0] and len(solo.lines[-1]["seconds"]) == 5
    assert solo.lines[-1]["before_bytes"] < solo.lines[-1]["peak_bytes"]


@pytest.mark.slow
def test_a_loader_that_accelerate_makes_of_another_is_changed_there() -> None:
    pytest.importorskip("accelerate")
    solo = run_sized(
        "accelerated.py", value={"loaders": [1], "num": 3, "den": 1, "max_steps": 15, "min_steps": 15}
    )
    lines = set(solo.tail.splitlines())
    assert {"training 24", "validation 16"} >= lines and "training 8" not in lines, solo.tail
    assert solo.lines[-1]["trained"] == [1]
    assert set(solo.lines[-1]["batches"]) >= {2}, "two batches are accumulated for a step"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loader", "words"),
    [
        ("sampler", r"DataLoader cannot be changed: it uses a batch_sampler \(BatchSampler\)"),
        ("none", "no DataLoader feeds training"),
    ],
)
def test_what_cannot_be_changed_is_said(
    loader: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = watch.Script(path=str(SCRIPTS / "wide.py"), arguments=("--loader", loader, "--steps", "12"))
    with pytest.raises(UsageError, match=words):
        batch_sizes(script, seconds=0.1)


@pytest.mark.slow
def test_a_dataset_that_is_too_small_ends_the_doubling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    script = watch.Script(
        path=str(SCRIPTS / "wide.py"), arguments=("--batch-size", "1", "--samples", "1", "--steps", "30")
    )
    told: list[str] = []
    sizes = batch_sizes(script, seconds=0.1, on_status=told.append)
    assert sizes.stopped == "the dataset has 1 samples, fewer than 2"
    assert (sizes.largest, sizes.too_large, told) == (1, None, ["the script's batch size"])


def speed(median: float) -> Interval:
    return Interval(median=median, low=median * 0.98, high=median * 1.02, num=9)


def size(number: int, per_s: float, megabytes: int, *, fits: bool = True) -> Size:
    return Size(
        batch_size=number,
        fits=fits,
        samples_per_s=speed(per_s),
        peak_bytes=megabytes * 1_000_000,
        before_bytes=100_000_000,
        num_warm=2,
    )


def trials(*sizes: Size, limit: int = 10**9) -> batch_size._Trials:
    made = batch_size._Trials(
        script=watch.Script(path="x.py"),
        scratch=None,  # type: ignore[arg-type]
        seconds=1.0,
        limit_bytes=limit,
        on_status=print,
        own=sizes[0].batch_size,
    )
    made.sizes.extend(sizes)
    return made


def test_memory_is_predicted_by_a_line_through_sizes_that_lie_apart() -> None:
    near = trials(size(8, 1, 180), size(16, 1, 260), size(17, 1, 290))
    assert near.predict(32) == pytest.approx(290e6 + 15 * 110e6 / 9, rel=1e-6)
    assert trials(size(4, 1, 300)).predict(8) == 500_000_000  # all above what was held before is for samples


def test_the_search_ends_at_the_largest_that_fits() -> None:
    needs = {number: 100 + 3 * number for number in range(1, 400)}
    made = trials(size(32, 1, needs[32]), size(64, 1, needs[64]), limit=512_000_000)
    tried = []

    def run(number: int, **_: int) -> Size:
        tried.append(number)
        made.sizes.append(size(number, 1, needs[number], fits=needs[number] <= 512))
        return made.sizes[-1]

    made._try = run  # type: ignore[method-assign]
    assert made.reach(256) == 138 and made.largest.batch_size >= 131 and len(tried) <= 2
    assert 100 + 3 * 137 <= 512 < 100 + 3 * 138


def test_how_far_memory_would_reach_is_told_only_if_it_grows() -> None:
    growing, level = trials(size(8, 1, 180), size(16, 1, 260)), trials(size(8, 1, 180), size(16, 1, 182))
    assert growing.grows() and not level.grows()
    found = BatchSizes(
        own=8,
        sizes=tuple(growing.sizes),
        limit_bytes=10**9,
        memory="the process",
        stopped="it is enough",
        largest=16,
        too_large=None,
        predicted=growing.first_too_large() - 1,
    )
    assert found.predicted == 90 and "about 90 would fit in 1.00 GB (untested)" in render(found)
    told = render(replace(found, predicted=None))
    assert "memory hardly grows with the batch size, so it is not a limit" in told


def test_the_fastest_is_the_smallest_that_is_not_told_apart_from_the_best() -> None:
    found = BatchSizes(
        own=8,
        sizes=(size(4, 50, 1), size(8, 90, 1), size(16, 99, 1), size(32, 100, 1)),
        limit_bytes=10**9,
        memory="the process",
        stopped="",
        largest=32,
        too_large=None,
    )
    assert found.fastest == 16


@pytest.mark.skipif(sys.platform != "linux", reason="reads what Linux tells")
def test_available_memory_is_that_of_the_machine_or_less() -> None:
    assert 10**8 < available_bytes() < 10**14


def test_wrong_limits_are_refused() -> None:
    with pytest.raises(UsageError, match="limit_bytes must be above 0"):
        batch_sizes(watch.Script(path="x.py"), limit_bytes=0)
    with pytest.raises(UsageError, match="seconds must be above 0"):
        batch_sizes(watch.Script(path="x.py"), seconds=0)
