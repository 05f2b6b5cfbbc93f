"""Loading weights: every tensor is accounted for, and no file runs code."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import truestep as ts
from tests.gathering import run_text
from tests.rule_examples import buggy
from tests.zoo import ZOO, bert, gpt2, resnet
from truestep.check import evaluate_rules
from truestep.errors import UsageError
from truestep.model import load
from truestep.rules import find_rules


def blank(model: nn.Module) -> nn.Module:
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.zero_()
    return model


def same(one: nn.Module, other: nn.Module) -> bool:
    return ts.digest_state(one.state_dict()) == ts.digest_state(other.state_dict())


def as_safetensors(state: dict[str, Tensor], path: Path) -> None:
    save_file({name: value.clone() for name, value in state.items()}, path)


WRITERS: dict[str, Callable[[Any, Path], None]] = {
    "w.safetensors": as_safetensors,
    "w.pt": torch.save,
    "w.pth": lambda state, path: torch.save(state, path, _use_new_zipfile_serialization=False),
    "w.bin": lambda state, path: torch.save({"epoch": 3, "model_state_dict": state}, path),
}


@pytest.mark.practice("P35")
@pytest.mark.parametrize("file", WRITERS)
@pytest.mark.parametrize("name", ZOO)
def test_p35_every_format_brings_back_every_bit(name: str, file: str, tmp_path: Path) -> None:
    """Weights from .safetensors, .pt, old .pth and nested files load bit for bit, and all are reported."""
    model, _ = ZOO[name]()
    WRITERS[file](model.state_dict(), tmp_path / file)
    new = blank(ZOO[name]()[0])
    report = load(new, tmp_path / file)
    assert same(new, model)
    assert report.loaded == tuple(model.state_dict()) and not report.left and not report.unused
    once = {value.data_ptr(): value.nbytes for value in model.state_dict().values()}
    assert report.size_bytes == sum(once.values())
    assert report.digest == ts.digest(sorted(model.state_dict().items()))


def in_parts(state: dict[str, Tensor], folder: Path) -> None:
    names = list(state)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, held in parts.items():
        as_safetensors({name: state[name] for name in held}, folder / file)
    places = {name: file for file, held in parts.items() for name in held}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))


def test_a_folder_and_a_file_in_parts_are_loaded(tmp_path: Path) -> None:
    model, _ = resnet()
    in_parts(model.state_dict(), tmp_path)
    for source in (tmp_path, tmp_path / "model.safetensors.index.json"):
        new = blank(resnet()[0])
        load(new, source)
        assert same(new, model)
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(UsageError, match=r"names b.safetensors, which is missing"):
        load(resnet()[0], tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_an_index_of_other_frameworks_in_the_folder_is_passed_by(name: str, tmp_path: Path) -> None:
    (tmp_path / "flax_model.msgpack.index.json").write_text("{}")
    model = nn.Linear(2, 2)
    (as_safetensors if name.endswith("tensors") else torch.save)(model.state_dict(), tmp_path / name)
    assert load(blank(nn.Linear(2, 2)), tmp_path).source == tmp_path.name


def test_a_part_that_holds_no_names_is_told(tmp_path: Path) -> None:
    torch.save([torch.ones(2)], tmp_path / "a.bin")
    (tmp_path / "model.bin.index.json").write_text(json.dumps({"weight_map": {"weight": "a.bin"}}))
    with pytest.raises(UsageError, match=r"a.bin, a part of model.bin.index.json, holds a list, not tensors"):
        load(nn.Linear(2, 2), tmp_path)


def test_an_index_cannot_name_files_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "x.index.json").write_text(json.dumps({"weight_map": {"a": "../a.safetensors"}}))
    with pytest.raises(UsageError, match=r"is not a file beside it"):
        load(nn.Linear(1, 1), tmp_path)


class Marker:
    """What a malicious file holds: unpickling it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.practice("P56")
@pytest.mark.parametrize("kind", ["zip", "old", "pickle", "pickle2"])
def test_p56_a_malicious_file_is_refused_and_runs_nothing(kind: str, tmp_path: Path) -> None:
    """A file that would run code when unpickled is refused, its classes are named, and nothing runs."""
    file, marker = tmp_path / "weights.pt", tmp_path / "marker"
    content = {"weight": torch.ones(1), "extra": Marker(marker)}
    if kind.startswith("pickle"):
        file.write_bytes(pickle.dumps(content, protocol=2 if kind == "pickle2" else 4))
    else:
        torch.save(content, file, _use_new_zipfile_serialization=kind == "zip")
    with pytest.raises(UsageError, match=r"would run code of: .*posix\.mkdir.*It was not read"):
        load(nn.Linear(1, 1), file)
    assert not marker.exists()
    torch.load(file, weights_only=False) if kind in ("zip", "old") else pickle.loads(file.read_bytes())
    assert marker.exists()  # the file was dangerous indeed


@pytest.mark.practice("P56")
def test_p56_a_pickled_model_is_refused_with_the_way_to_convert_it(tmp_path: Path) -> None:
    """A pickle of a whole model is refused with the line that converts it, and that line works."""
    torch.save(nn.Sequential(nn.Linear(2, 3), nn.ReLU()), tmp_path / "model.pt")
    with pytest.raises(UsageError, match=r"torch\.nn\.modules\.linear\.Linear") as caught:
        load(nn.Sequential(nn.Linear(2, 3)), tmp_path / "model.pt")
    line = str(caught.value).partition("can be imported: ")[2]
    assert line.startswith("torch.save(torch.load('model.pt', weights_only=False).state_dict()")
    here = Path.cwd()
    os.chdir(tmp_path)
    try:
        exec(line)
    finally:
        os.chdir(here)
    assert len(load(nn.Sequential(nn.Linear(2, 3)), tmp_path / "weights.pt").loaded) == 2


@pytest.mark.practice("P56")
def test_p56_a_pickled_model_is_found_by_check() -> None:
    """`truestep check` finds `torch.save(model)`, which pickles the whole module (CKPT03)."""
    told = evaluate_rules(find_rules(), run_text(buggy("CKPT03")).evidence)
    assert "CKPT03" in {item.rule.meta.code for item in told.findings}


@pytest.mark.practice("P55")
def test_p55_a_file_saved_on_a_gpu_is_loaded_where_the_model_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was saved on a GPU loads into a model on the CPU, without `map_location`."""
    if torch.cuda.is_available():
        pytest.skip("shows what happens without a GPU")
    model, _ = resnet()
    monkeypatch.setattr(torch.serialization, "location_tag", lambda _: "cuda:0")
    torch.save(model.state_dict(), tmp_path / "gpu.pt")
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match=r"deserialize object on a CUDA device"):
        torch.load(tmp_path / "gpu.pt")
    new = blank(resnet()[0])
    load(new, tmp_path / "gpu.pt")
    assert same(new, model)


@pytest.mark.practice("P55")
def test_p55_a_change_of_dtype_is_told() -> None:
    """The model keeps its dtype, and the report shows how many tensors were rounded to it."""
    model, _ = bert()
    new = bert()[0].to(torch.bfloat16)
    report = load(new, model.state_dict())
    assert report.converted == {"float32 to bfloat16": len(list(model.parameters()))}
    assert "float32 to bfloat16" in str(report)
    for name, value in model.state_dict().items():
        found = new.state_dict()[name]
        assert torch.equal(found, value.to(found.dtype))
        assert found.dtype == (torch.bfloat16 if value.is_floating_point() else value.dtype)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "module._orig_mod.", "net.backbone."])
def test_a_prefix_is_found_and_told(prefix: str) -> None:
    model, _ = resnet()
    new = blank(resnet()[0])
    report = load(new, {prefix + name: value for name, value in model.state_dict().items()})
    assert same(new, model)
    assert report.how and report.how[0].endswith(("was taken off", "were taken off"))
    assert report.renamed[prefix + "fc.weight"] == "fc.weight"


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # compile's own import
def test_a_real_compiled_and_wrapped_model_loads_both_ways() -> None:
    model, _ = resnet()
    model.layer1 = torch.compile(model.layer1)
    wrapped = nn.DataParallel(model)
    plain = blank(resnet()[0])
    load(plain, wrapped.state_dict())
    assert torch.equal(plain.fc.weight, model.fc.weight)
    assert torch.equal(plain.layer1[0].conv1.weight, model.layer1._orig_mod[0].conv1.weight)
    target = nn.DataParallel(blank(resnet()[0]))
    report = load(target, plain.state_dict())
    assert report.how == ("the prefix 'module.' was put before",)
    assert same(target.module, plain)


def test_the_body_of_a_model_is_loaded_into_the_whole() -> None:
    model, _ = bert()
    new = blank(bert()[0])
    with pytest.raises(UsageError, match=r"2 of the model's tensors get nothing. Nothing was loaded"):
        load(new, model.bert.state_dict())
    assert not any(parameter.any() for parameter in new.parameters())
    report = load(new, model.bert.state_dict(), allow_missing="classifier.*")
    assert same(new.bert, model.bert)
    assert report.left == ("classifier.weight", "classifier.bias")
    assert report.how == ("the prefix 'bert.' was put before",)


@pytest.mark.practice("P35")
def test_p35_what_does_not_fit_is_an_error_and_nothing_is_loaded() -> None:
    """Where `strict=False` is silent, `load` raises an error with a report; the model does not change."""
    state = resnet()[0].state_dict()
    state["head.weight"] = state.pop("fc.weight")
    new = blank(resnet()[0])
    with pytest.raises(UsageError, match=r"1 of the model's .* 1 of the file's have no place") as caught:
        load(new, state)
    assert "Is head.weight in the file meant for fc.weight? Then pass rename." in str(caught.value)
    assert not any(parameter.any() for parameter in new.parameters())
    new.load_state_dict(state, strict=False)  # plain torch: silent, and the last layer is still blank
    assert not new.fc.weight.any()


@pytest.mark.practice("P35")
def test_p35_partial_tells_what_was_loaded_skipped_and_left() -> None:
    """`partial=True` loads what matches and reports the rest: other shapes, unused, unchanged."""
    state = resnet()[0].state_dict()
    state["fc.weight"] = torch.zeros(3, 32)
    state["extra"] = torch.zeros(1)
    del state["bn1.running_mean"]
    new, _ = resnet()
    with pytest.raises(RuntimeError, match=r"size mismatch for fc.weight"):
        new.load_state_dict(state, strict=False)  # shapes raise in spite of strict=False
    report = load(new, state, partial=True)
    assert report.other_shapes == {"fc.weight": "[3, 32] in the file and [10, 32] in the model"}
    assert report.unused == ("extra",)
    assert report.left == ("bn1.running_mean", "fc.weight")
    assert set(report.loaded) | set(report.left) == set(new.state_dict())
    text = str(report)
    assert all(
        word in text for word in ("fc.weight is [3, 32]", "unused     extra", "left       bn1.running")
    )
    assert len(text.splitlines()) < 24


def test_a_new_head_needs_one_pattern() -> None:
    state = resnet()[0].state_dict()
    new, _ = resnet()
    new.fc = nn.Linear(32, 3)
    kept = new.fc.weight.clone()
    report = load(new, state, allow_missing="fc.*")
    assert report.left == ("fc.weight", "fc.bias") and torch.equal(new.fc.weight, kept)
    assert torch.equal(new.conv1.weight, state["conv1.weight"])


def test_patterns_rename_and_a_wrong_one_shows_the_nearest() -> None:
    model, _ = resnet()
    state = {name.replace("layer", "stage_"): value for name, value in model.state_dict().items()}
    new = blank(resnet()[0])
    report = load(new, state, rename={"stage_*.*": "layer*.*"})
    assert same(new, model) and report.renamed["stage_1.0.conv1.weight"] == "layer1.0.conv1.weight"
    with pytest.raises(
        UsageError, match=r"'stage_1.0.conv.\*', which is not a name in the file. It has stage_1"
    ):
        load(new, state, rename={"stage_1.0.conv.*": "layer1.0.conv.*"})
    with pytest.raises(
        UsageError, match=r"allow_missing='fc.wieght' is not a tensor of the model. It has fc.weight"
    ):
        load(new, state, allow_missing="fc.wieght")
    with pytest.raises(UsageError, match=r"would both be fc.weight in the model"):
        load(new, model.state_dict(), rename={"conv1.weight": "fc.weight"})


@pytest.mark.practice("P29")
def test_p29_tied_weights_are_covered_and_never_untied() -> None:
    """A file with one of two tied names covers both; one with two different values for them is refused."""
    model, _ = gpt2()
    state = model.state_dict()
    del state["lm_head.weight"]
    new = blank(gpt2()[0])
    report = load(new, state)
    assert same(new, model) and not report.left and new.lm_head.weight is new.transformer.wte.weight
    state["lm_head.weight"] = torch.randn(60, 32)
    with pytest.raises(UsageError, match=r"transformer.wte.weight and lm_head.weight are one weight"):
        load(new, state)
    new.load_state_dict(state)  # plain torch: silent, the last one wins
    assert torch.equal(new.transformer.wte.weight, state["lm_head.weight"])


def test_rows_are_resized_only_if_asked() -> None:
    small, large = nn.Embedding(5, 3), nn.Embedding(8, 3)
    before = large.weight.detach().clone()
    with pytest.raises(UsageError, match=r"weight is \[5, 3\] in the file and \[8, 3\] in the model"):
        load(large, small.state_dict())
    report = load(large, small.state_dict(), resize="weight")
    assert torch.equal(large.weight[:5], small.weight) and torch.equal(large.weight[5:], before[5:])
    assert report.resized == {"weight": "5 rows of the file's 5, the model has 8"}
    load(small, large.state_dict(), resize="weight")
    assert torch.equal(small.weight, large.weight[:5])
    with pytest.raises(UsageError, match=r"Only the number of rows may differ"):
        load(nn.Embedding(5, 4), small.state_dict(), resize="*")
    with pytest.raises(UsageError, match=r"bias cannot be resized: it is \[\] in the file and \[2\]"):
        load(nn.Linear(2, 2), {**nn.Linear(2, 2).state_dict(), "bias": torch.tensor(1.0)}, resize="bias")


def test_the_right_state_of_several_is_found_or_asked_for() -> None:
    model, _ = resnet()
    average = {name: value * 0 for name, value in model.state_dict().items()}
    optimizer = torch.optim.Adam(model.parameters()).state_dict()
    content = {"ema": average, "model": model.state_dict(), "optimizer": optimizer, "epoch": 3}
    new = blank(resnet()[0])
    report = load(new, content)
    assert same(new, model)
    assert report.how == ("the weights are under 'model'; ema would fit too, pass key for it",)
    load(new, content, key="ema")
    assert not new.fc.weight.any()
    with pytest.raises(UsageError, match=r"several states that fit: ema, last. Pass key='ema'"):
        load(new, {"ema": average, "last": average})
    with pytest.raises(UsageError, match=r"no tensors by name under 'best'. It holds ema, model"):
        load(new, content, key="best")


def test_rename_is_for_the_state_that_is_loaded() -> None:
    model, _ = resnet()
    state = {name.replace("fc.", "head."): value for name, value in model.state_dict().items()}
    new = blank(resnet()[0])
    load(new, {"statistics": {"mean": torch.ones(3)}, "net": state}, rename={"head.*": "fc.*"})
    assert same(new, model)


def test_what_is_no_tensor_does_not_fit_a_tensor() -> None:
    state = {**nn.Linear(2, 2).state_dict(), "bias": 3.0}
    report = load(nn.Linear(2, 2), state, partial=True)
    assert report.other_shapes == {"bias": "float in the file and [2] in the model"}


def test_an_old_file_without_batch_counters_is_loaded() -> None:
    model, _ = resnet()
    state = {name: value for name, value in model.state_dict().items() if not name.endswith("_tracked")}
    report = load(blank(resnet()[0]), state)
    assert len(report.left) == 15 and all(name.endswith("num_batches_tracked") for name in report.left)


class Odd(nn.Module):
    """Has state that is no tensor, and a buffer that is not saved."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.linear = nn.Linear(2, 2)
        self.register_buffer("made", torch.ones(3), persistent=False)

    def get_extra_state(self) -> float:
        return self.scale

    def set_extra_state(self, state: float) -> None:
        self.scale = state


def test_extra_state_is_loaded_and_a_buffer_that_the_model_makes_is_not_missed() -> None:
    new = Odd(1.0)
    report = load(new, {**Odd(2.0).state_dict(), "made": torch.ones(3)})
    assert new.scale == 2.0 and report.unused == ("made",)
    state = {f"module.{name}": value for name, value in Odd(3.0).state_dict().items()}
    report = load(new, {**state, "module.made": torch.ones(3)})
    assert new.scale == 3.0 and report.unused == ("module.made",)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"a": 1}, "no tensors by name. It holds a"),
        (
            {"x": torch.ones(1)},
            "no tensor of a state_dict has a name of the model: the file has x; the model has",
        ),
        ({"weight": torch.ones(1)}, r"no tensor of a state_dict fits: weight is \[1\] in the file"),
        (
            "nowhere.pt",
            r"there is no file nowhere.pt\. Pass the path of a \.safetensors, .*, \.ckpt or \.tar",
        ),
        (nn.Linear(2, 2), r"got Linear. Of a model, pass model.state_dict\(\)"),
    ],
)
def test_what_cannot_be_loaded_is_told(source: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(nn.Linear(2, 2), source, partial=True)


def test_damaged_files_are_told_and_not_read(tmp_path: Path) -> None:
    for name in ("a.safetensors", "a.pt"):
        (tmp_path / name).write_bytes(b"not a file of weights")
        with pytest.raises(UsageError, match=r"a.safetensors is not a complete|a.pt is not a file that"):
            load(nn.Linear(1, 1), tmp_path / name)
    torch.save(nn.Linear(50, 50).state_dict(), tmp_path / "cut.pt")
    whole = (tmp_path / "cut.pt").read_bytes()
    (tmp_path / "cut.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match=r"cut.pt"):
        load(nn.Linear(50, 50), tmp_path / "cut.pt")
    with pytest.raises(UsageError, match=r"several weight files|a.safetensors"):
        load(nn.Linear(1, 1), tmp_path)


def test_a_model_without_memory_is_refused() -> None:
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    with pytest.raises(UsageError, match=r"weight is on the meta device"):
        load(model, nn.Linear(2, 2).state_dict())
