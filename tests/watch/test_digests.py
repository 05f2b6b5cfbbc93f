"""The chain's digests see every bit and its place; evidence survives what happens to processes."""

import json
import random
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from truestep import watch
from truestep.watch.digests.chain import settings_of
from truestep.watch.digests.fold import fold, fold_nest
from truestep.watch.evidence.facts.surroundings import GeneratorSeeded
from truestep.watch.script.nested_tensors import outline, walk
from truestep.watch.script.tape import Tape

LARGE = 9000


def changed(tensor: torch.Tensor, change: str, place: int) -> torch.Tensor:
    other = tensor.clone()
    bits = other.view(torch.int32)
    if change == "last bit":
        bits[place] ^= 1
    elif change == "last bit of two neighbours":
        bits[place : place + 2] ^= 1
    elif change == "sign":
        bits[place] ^= -(2**31)
    else:
        other[place], other[place + 1] = tensor[place + 1], tensor[place]
    return other


@pytest.mark.parametrize("change", ["last bit", "last bit of two neighbours", "sign", "two swapped"])
@pytest.mark.parametrize("size", [7, LARGE])
def test_a_change_anywhere_is_seen(change: str, size: int) -> None:
    source = torch.Generator().manual_seed(1)
    tensor = torch.randn(size, generator=source)
    places = {0, size // 2, size - 2} | set(random.Random(1).sample(range(size - 1), 5))
    for place in places:
        other = changed(tensor, change, place)
        assert not torch.equal(other.view(torch.int32), tensor.view(torch.int32))
        assert fold([("", other)]) != fold([("", tensor)])
    assert fold([("", tensor.clone())]) == fold([("", tensor)])


def test_rows_in_another_order_are_another_batch() -> None:
    batch = torch.randn(64, 512)
    assert fold_nest([batch]) != fold_nest([batch.flip(0)])
    assert torch.hash_tensor(batch) == torch.hash_tensor(batch.flip(0))  # why that one is not used


@given(
    offset=st.integers(0, 9),
    size=st.sampled_from([1, 3, 4097, LARGE]),
    dtype=st.sampled_from(["float32", "bfloat16", "int8"]),
)
def test_where_a_tensor_lies_does_not_matter(offset: int, size: int, dtype: str) -> None:
    whole = torch.arange(size + offset, dtype=torch.float32).to(getattr(torch, dtype))
    part = whole[offset:]
    assert fold([("", part)]) == fold([("", part.clone())])
    spread = torch.stack([part, part], dim=1)[:, 1]
    assert fold([("", spread)]) == fold([("", part)])


def test_names_shapes_and_kinds_count() -> None:
    zero = torch.zeros(4)
    different = [
        [("a", zero)],
        [("b", zero)],
        [("a", zero.reshape(2, 2))],
        [("a", zero.int())],
        [("a", -zero)],
        [("a", zero.to_sparse())],
        [("a", torch.empty(0))],
        [("a", None)],
        [("a", "text")],
        [("a", 1)],
        [("a", 1.0)],
    ]
    assert len({fold(named) for named in different}) == len(different)  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:torch.quantize_per_tensor")
def test_every_part_of_a_quantized_or_nested_tensor_counts() -> None:
    def quantized(*values: float, scale: float = 0.1, zero_point: int = 0) -> torch.Tensor:
        return torch.quantize_per_tensor(torch.tensor(values), scale, zero_point, torch.qint8)

    def nested(*sizes: int, last: float = 1.0) -> torch.Tensor:
        parts = [torch.ones(size, 2) for size in sizes]
        parts[-1][-1, -1] = last
        return torch.nested.nested_tensor(parts)

    different = [
        quantized(0.1, 0.2),
        quantized(0.1, 0.3),
        quantized(0.2, 0.4, scale=0.2),
        quantized(0.1, 0.2, zero_point=1),
        nested(2, 3),
        nested(3, 2),
        nested(2, 3, last=2.0),
        nested(5),
    ]
    assert len({fold_nest(tensor) for tensor in different}) == len(different)
    assert fold_nest(different[0]) == fold_nest(quantized(0.1, 0.2))
    assert fold_nest(different[4]) == fold_nest(nested(2, 3))


def test_looking_changes_nothing() -> None:
    model = nn.Sequential(nn.Linear(300, 300), nn.BatchNorm1d(300))
    state = torch.get_rng_state(), random.getstate()
    versions = [item._version for item in model.state_dict(keep_vars=True).values()]
    fold_nest({"x": [torch.ones(2), "a"], "model": list(model.parameters())})
    assert torch.equal(torch.get_rng_state(), state[0]) and random.getstate() == state[1]
    assert [item._version for item in model.state_dict(keep_vars=True).values()] == versions


class Bag:
    def __init__(self) -> None:
        self.x = torch.ones(2)


def test_nests_are_walked() -> None:
    names = [name for name, _ in walk({"a": [1, (torch.ones(1), None)], "b": Bag()})]
    assert names == [".a.0", ".a.1.0", ".a.1.1", ".b.x"]
    assert outline((torch.ones(2, 3), 4)) == (((2, 3), torch.float32), None)
    assert outline({"x": torch.ones(1)}) == ((".x", (1,), torch.float32),)


def test_torn_and_foreign_lines_are_passed_over(tmp_path: Path) -> None:
    tape = Tape(str(tmp_path), watch.Plan())
    tape.note(GeneratorSeeded("torch", "seed", 3, None))
    tape.flush()
    (path,) = tmp_path.glob("process-*.jsonl")
    with path.open("a") as file:
        file.write('{"kind":"moments","si')
    (process,) = watch.read(tmp_path)
    tape.leave()
    assert process.ended is None
    (moment,) = process.moments
    assert moment.facts == GeneratorSeeded("torch", "seed", 3, None)
    assert (moment.file, moment.function) == (__file__, "test_torn_and_foreign_lines_are_passed_over")
    assert json.loads(path.read_text().splitlines()[0])["version"] == 1


def test_a_thing_keeps_its_number_and_is_not_kept_alive(tmp_path: Path) -> None:
    tape = Tape(str(tmp_path), watch.Plan())
    first, second = nn.Linear(1, 1), nn.Linear(1, 1)
    assert tape.number("model", first) == 0
    assert tape.number("model", second) == 1
    assert tape.number("model", first) == 0
    del first
    assert tape.number("model", nn.Linear(1, 1)) == 2
    tape.leave()


def test_a_setting_that_another_torch_does_not_know_counts_only_if_it_is_on() -> None:
    def digest(**more: object) -> str:
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1)
        optimizer.param_groups[0].update(more)
        return fold(settings_of(optimizer))

    assert digest(new=False) == digest(new=None) == digest()
    assert len({digest(), digest(new=True), digest(new=0), digest(lr=0.2)}) == 4
