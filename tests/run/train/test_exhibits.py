"""What `run.log` writes: distributions, pictures, texts."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import SGD

import truestep as ts
from tests.processes import run_processes
from tests.run.train.small import data, net
from truestep.errors import UsageError
from truestep.picture import Picture
from truestep.record import Record, read
from truestep.run.train.exhibits import histogram, write_exhibit

COLOURS = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)
NOTHING = {"low": "nan", "high": "nan", "mean": "nan", "std": "nan"}


def _write(folder: Path, name: str, thing: Any, *, cursor: int = 120) -> dict[str, Any]:
    record = Record(folder / "record.jsonl")
    write_exhibit(name, thing, record=record, folder=folder, cursor=cursor)
    record.close()
    event = list(read(folder / "record.jsonl"))[-1]
    return {key: value for key, value in event.items() if key != "time_s"}


def _pixels(path: Path) -> Any:
    image = pytest.importorskip("PIL.Image")
    return np.asarray(image.open(path))


def test_a_tensor_is_recorded_as_a_histogram(tmp_path: Path) -> None:
    values = torch.arange(128, dtype=torch.float32).reshape(2, 64).requires_grad_()
    found = _write(tmp_path, "activations/relu1", values)
    fields = {"kind": "histogram", "name": "activations/relu1", "cursor": 120, "low": 0.0, "high": 127.0}
    assert found == fields | {
        "counts": [2] * 64,
        "num": 128,
        "num_nonfinite": 0,
        "mean": 63.5,
        "std": pytest.approx(float(values.detach().std(correction=0)), rel=1e-6),  # 32 bits there, 64 here
    }


NUMBERS = st.lists(st.floats(width=64), min_size=1, max_size=40)


@settings(max_examples=200)
@given(NUMBERS)
def test_a_histogram_counts_what_numpy_counts_whatever_the_numbers(numbers: list[float]) -> None:
    values = np.array(numbers)
    found, finite = histogram(values), values[np.isfinite(values)]
    assert found["num"] == len(values) and found["num_nonfinite"] == len(values) - len(finite)
    assert sum(found["counts"]) == len(finite) and len(found["counts"]) == 64
    if not len(finite):
        return
    assert (found["low"], found["high"]) == (finite.min(), finite.max())
    scale = max(abs(found["low"]), abs(found["high"])) or 1.0
    exact = sum(value / scale for value in finite.tolist()) / len(finite)
    assert found["mean"] / scale == pytest.approx(exact, abs=1e-12)  # sums of another order
    assert np.isfinite([found["mean"], found["std"]]).all()
    assert found["counts"][-1] > 0 or found["low"] == found["high"]
    assert repr(histogram(torch.tensor(numbers, dtype=torch.float64))) == repr(found)


def test_large_tensors_are_counted_piece_by_piece() -> None:
    values = torch.linspace(-1, 1, (1 << 21) + 5)
    found = histogram(values)
    expected, _ = np.histogram(values.double().numpy(), bins=64, range=(-1, 1))
    assert np.abs(np.array(found["counts"]) - expected).max() <= 2  # values on an edge
    assert found["std"] == pytest.approx(float(values.double().std(correction=0)))


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.bfloat16, torch.float16, torch.uint8])
def test_every_real_dtype_has_a_histogram(dtype: torch.dtype) -> None:
    found = histogram(torch.tensor([0, 1, 1, 1]).to(dtype))
    assert (found["counts"][0], found["counts"][-1], found["mean"]) == (1, 3, 0.75)


@pytest.mark.parametrize("values", [[], [float("nan"), float("inf")]])
def test_a_tensor_without_a_finite_number_stops_nothing(tmp_path: Path, values: list[float]) -> None:
    found = _write(tmp_path, "a", torch.tensor(values))
    assert found | NOTHING == found
    assert found["num_nonfinite"] == found["num"] == len(values)


@pytest.mark.parametrize("pixels", [COLOURS, COLOURS[..., 0], torch.tensor(COLOURS)])
def test_pixels_become_a_png_file_that_others_read(tmp_path: Path, pixels: Any) -> None:
    found = _write(tmp_path, "sample", pixels)
    file = "pictures/sample-000000000120.png"
    assert found == {"kind": "picture", "name": "sample", "cursor": 120, "file": file}
    assert (_pixels(tmp_path / file) == np.asarray(pixels)).all()
    assert [path.name for path in (tmp_path / "pictures").iterdir()] == ["sample-000000000120.png"]


def test_a_picture_and_the_path_of_a_png_are_kept_in_the_folder(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = Picture(width=1, height=1)
    first = _write(tmp_path, "drawn", picture)
    second = _write(tmp_path, "copied", tmp_path / first["file"])
    picture.save(tmp_path / "own.png")
    for event in (first, second):
        assert (tmp_path / event["file"]).read_bytes() == (tmp_path / "own.png").read_bytes()


@pytest.mark.parametrize("name", ["../../up", "/etc/passwd", "a/b", "ü\0\n", "..", "A", "x" * 500])
def test_no_name_leads_out_of_the_folder_or_onto_another_picture(tmp_path: Path, name: str) -> None:
    files = [_write(tmp_path, each, COLOURS)["file"] for each in (name, "a_b", "a", "_")]
    assert len({file.lower() for file in files}) == 4
    assert {path.parent for path in tmp_path.rglob("*.png")} == {tmp_path / "pictures"}
    assert all((tmp_path / file).is_file() for file in files)


def test_a_text_is_recorded_as_it_is(tmp_path: Path) -> None:
    found = _write(tmp_path, "sample", "<b>Once\nupon</b>")
    assert found == {"kind": "text", "name": "sample", "cursor": 120, "text": "<b>Once\nupon</b>"}


def test_a_picture_that_cannot_be_written_does_not_end_the_training(tmp_path: Path) -> None:
    (tmp_path / "pictures").write_text("no folder")
    record = Record(tmp_path / "record.jsonl")
    write_exhibit("a", COLOURS, record=record, folder=tmp_path, cursor=1)
    assert record.num_lost == 1 and list(read(tmp_path / "record.jsonl")) == []


def test_a_picture_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    in_the_way = tmp_path / "pictures/a-000000000001.png"
    in_the_way.mkdir(parents=True)
    record = Record(tmp_path / "record.jsonl")
    write_exhibit("a", COLOURS, record=record, folder=tmp_path, cursor=1)
    assert record.num_lost == 1 and list((tmp_path / "pictures").iterdir()) == [in_the_way]


@pytest.mark.parametrize(
    ("name", "thing", "words"),
    [
        ("loss", 0.5, r"no single number, got 0.5. Use step.log\(loss=...\)"),
        ("loss", torch.tensor(0.5), r"no single number.* Use step.log\(loss=...\)"),
        ("a/b", np.float32(1), r"Use step.log\(name=...\)"),
        ("a", [1, 2], r"takes a tensor, .* got list for 'a'"),
        ("a", torch.ones(2, dtype=torch.complex64), r"real numbers, got torch.complex64 for 'a'"),
        ("a", np.array(["b"]), r"real numbers, got <U1 for 'a'"),
        ("a", Path(__file__), r"pictures as PNG files, and .* is none"),
        ("a", Path("not there.png"), r"cannot read the picture not there.png \(No such file"),
        ("", "text", r"needs a name as its first argument, got ''"),
    ],
)
def test_what_cannot_be_shown_is_told_with_advice(tmp_path: Path, name: str, thing: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        write_exhibit(name, thing, record=Record(tmp_path / "record.jsonl"), folder=tmp_path, cursor=0)


def test_a_picture_need_be_there_only_for_the_process_that_writes() -> None:
    write_exhibit("a", Path("not there.png"), record=Record(None), folder=None, cursor=0)


def _train(folder: str, is_logged: bool) -> str:
    with ts.Run(folder, seed=1, lanes=2, progress=False) as run:
        model = run.place(net())
        optimizer = SGD(model.parameters(), lr=0.4)
        run.track(model=model, optimizer=optimizer)
        for step in run.steps(ts.Loader(data(), batch_size=16), steps=4):
            for x, y in step:
                output = model(x)
                if is_logged:
                    run.log("output", output)
                step.backward(F.cross_entropy(output, y))
            step.update(optimizer)
            if is_logged:
                run.log("weight", model[0].weight)  # type: ignore[index]
                run.log("words", f"after {run.cursor}")
                run.log("by the first" if run.is_first else "by another", COLOURS)
        return ts.digest_state(model.state_dict())


def test_training_gives_the_same_bits_with_exhibits_and_without(tmp_path: Path) -> None:
    assert _train(str(tmp_path / "a"), True) == _train(str(tmp_path / "b"), False)
    events = [event for event in read(tmp_path / "a/record.jsonl") if "cursor" in event]
    cursors = {
        name: [event["cursor"] for event in events if event.get("name") == name]
        for name in ("output", "weight", "words")
    }
    # Before its update a step is not done; two lanes are two passes.
    assert cursors == {"output": [0, 0, 1, 1, 2, 2, 3, 3], "weight": [1, 2, 3, 4], "words": [1, 2, 3, 4]}


def test_only_the_first_of_several_processes_writes(tmp_path: Path) -> None:
    digests = run_processes(_train, str(tmp_path), True, size=2)
    assert digests[0] == digests[1]
    written = [event["cursor"] for event in read(tmp_path / "record.jsonl") if event.get("name") == "words"]
    assert written == [1, 2, 3, 4]
    assert {path.name.partition("-")[0] for path in (tmp_path / "pictures").iterdir()} == {"by_the_first"}
