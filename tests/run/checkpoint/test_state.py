"""States go into JSON and tensors and come back with the same types and bits."""

import json
import math
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from enum import IntFlag
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from torch import nn

from truestep.errors import StateError
from truestep.run.checkpoint.state import copy, pack, unpack


def round_trip(state: Any) -> Any:
    packed = pack(state)
    text = json.dumps(packed.structure, allow_nan=False)
    return unpack(json.loads(text), packed.tensors)


def odd_nan() -> float:
    return float(struct.unpack("<d", struct.pack("<Q", 0xFFF8_0000_0000_1234))[0])


ODD_VALUES: dict[str, Any] = {
    "none": None,
    "bools": [True, False],
    "ints": [0, -1, 2**53, 2**53 + 1, -(2**64), 10**5000],
    "floats": [0.0, -0.0, 0.1, 5e-324, 1e308, 1e22, math.inf, -math.inf, math.nan, odd_nan()],
    "strings": ["", "é", "\0", "\ud800", "\ud83d\ude00", "😀", "type"],
    "bytes": [b"", b"\x00\xff"],
    "tuples": ((), (1,), ([],), [()]),
    "int keys": {0: "a", -3: "b", "0": "c", 2**70: "d"},
    "looks encoded": {"type": "tensor", "key": "x"},
    "counter": Counter({30: 1, 80: 2}),
    "dtypes": [torch.float32, torch.bfloat16, torch.float8_e8m0fnu],
    "sizes": [torch.Size([]), torch.Size([2, 3])],
    "numpy scalars": [
        numpy.float64(0.1),
        numpy.float32("nan"),
        numpy.int8(-3),
        numpy.bool_(True),
        numpy.uint64(2**64 - 1),
    ],
    "numpy random": numpy.random.RandomState(3).get_state(legacy=True),
    "numpy generator": numpy.random.default_rng(3).bit_generator.state,
    "numpy arrays": [
        numpy.zeros((0, 3)),
        numpy.array(2.5),
        numpy.arange(6, dtype=">i4").reshape(2, 3),
        numpy.asfortranarray(numpy.arange(6.0).reshape(2, 3)),
        numpy.arange(10)[::3],
        numpy.array(["a", "bcd"]),
        numpy.array(["2024-01-01"], dtype="datetime64[ns]"),
        numpy.array([1 + 2j], dtype=numpy.complex128),
    ],
}


@pytest.mark.parametrize("name", ODD_VALUES)
def test_values_come_back_with_their_types(name: str, find_difference: Any) -> None:
    value = {name: ODD_VALUES[name]}
    assert find_difference(value, round_trip(value)) is None
    assert find_difference(value, copy(value)) is None


DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64),
    *(torch.complex128, torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu),
]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_every_dtype_and_shape_come_back(
    dtype: torch.dtype, shape: Any, find_difference: Any
) -> None:
    num_bytes = math.prod(shape) * dtype.itemsize
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (num_bytes,), dtype=torch.uint8)
    flat = raw.view(dtype) if num_bytes else torch.empty(0, dtype=dtype)
    state = {"x": flat.reshape(shape)}
    assert find_difference(state, round_trip(state)) is None


LAYOUTS = {
    "transposed": lambda: torch.randn(3, 5).t(),
    "channels_last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "channels_last with one pixel": lambda: torch.empty_strided((4, 3, 1, 1), (3, 1, 3, 3)).normal_(),
    "complex transposed": lambda: torch.randn(3, 5, dtype=torch.complex64).t(),
    "conjugated": lambda: torch.randn(3, dtype=torch.complex64).conj(),
    "negated": lambda: torch.randn(3, dtype=torch.complex64).conj().imag,
    "large": lambda: torch.randn(40_000)[1:],
    "large transposed": lambda: torch.randn(300, 200, dtype=torch.float64).t()[:, 10:],
    "large complex": lambda: torch.randn(200, 300, dtype=torch.complex64).t(),
    "large bool": lambda: torch.randn(300, 200) > 0,
    "needs grad": lambda: torch.randn(3, requires_grad=True) * 2,
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_dense_layouts_keep_bits_and_strides(name: str, find_difference: Any) -> None:
    tensor = LAYOUTS[name]()
    for back in (round_trip({"x": tensor}), copy({"x": tensor})):
        assert find_difference({"x": tensor}, back) is None
        if name != "negated":
            assert back["x"].stride() == tensor.stride()
        assert not back["x"].requires_grad


@pytest.mark.parametrize("tensor", [torch.randn(8, 8)[::2, 1::3], torch.randn(3, 1).expand(3, 4)])
def test_layouts_with_holes_or_overlap_become_contiguous(tensor: torch.Tensor) -> None:
    back = round_trip(tensor)
    assert torch.equal(back, tensor)
    assert back.is_contiguous()


def test_tied_weights_are_stored_once_and_stay_tied() -> None:
    weight = nn.Parameter(torch.randn(4, 4))
    state = {
        "a": weight,
        "b": {"c": weight.detach()},
        "view": weight.detach()[:2],
        "transposed": weight.detach().t(),
    }
    packed = pack(state)
    assert list(packed.tensors) == ["a", "view", "transposed"]
    back = unpack(packed.structure, packed.tensors)
    assert back["a"] is back["b"]["c"]
    assert back["a"].data_ptr() != weight.data_ptr()
    copied = copy(state)
    assert copied["a"] is copied["b"]["c"]


def test_empty_tensors_are_not_taken_for_tied() -> None:
    back = round_trip([torch.empty(0), torch.empty(0)])
    assert back[0] is not back[1]


def test_paths_that_read_the_same_get_names_of_their_own() -> None:
    state = {"a.b": torch.tensor(1), "a": {"b": torch.tensor(2)}, "0": torch.tensor(3), 0: torch.tensor(4)}
    state["__metadata__"] = torch.tensor(5)
    state["\ud800"] = torch.tensor(6)
    packed = pack(state)
    assert len(packed.tensors) == 6
    assert "__metadata__" not in packed.tensors
    assert round_trip(state) == state


class Pair(NamedTuple):
    x: int
    y: int


CONTAINERS: dict[str, Any] = {
    "ordered": OrderedDict(b=1, a=OrderedDict()),
    "deque": deque([1, (2,), torch.ones(2)], maxlen=3),
    "endless deque": deque([deque()]),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers_come_back_with_their_types_and_what_they_do(name: str, find_difference: Any) -> None:
    value = CONTAINERS[name]
    for back in (round_trip(value), copy(value)):
        assert find_difference(value, back) is None
        assert getattr(back, "maxlen", None) == getattr(value, "maxlen", None)
        assert getattr(back, "default_factory", None) is getattr(value, "default_factory", None)


class Registry(dict[str, int]):
    pass


class Chain(list[int]):
    pass


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (defaultdict(int), r"m is a defaultdict.*Return dict\(\.\.\.\) of it"),
        (Registry(a=1), r"m is a Registry.*Return dict\(\.\.\.\) of it"),
        (Chain([1]), r"m is a Chain.*Return list\(\.\.\.\) of it"),
        (Pair(1, 2), r"m is a Pair.*Return tuple\(\.\.\.\) of it"),
        ({1, 2}, r"m is a set.*Return sorted\(\.\.\.\) of it"),
        (bytearray(b"a"), "m is a bytearray"),
        (IntFlag("Mode", ["TRAIN"])(1), r"m is a Mode.*Return int\(\.\.\.\) of it"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_containers_that_would_change_are_refused(value: Any, message: str) -> None:
    with pytest.raises(StateError, match=message):
        pack({"m": value})


def test_versions_of_modules_come_back(find_difference: Any) -> None:
    state: Any = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).state_dict()
    for back in (round_trip(state), copy(state)):
        assert find_difference(state, back) is None
        assert back._metadata == state._metadata


def optimizers_and_schedulers() -> dict[str, Any]:
    parameters = [nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(3))]
    objects: dict[str, Any] = {
        name: getattr(torch.optim, name)(parameters, lr=0.01)
        for name in (
            "SGD",
            "Adam",
            "AdamW",
            "RMSprop",
            "Adagrad",
            "NAdam",
            "RAdam",
            "Adadelta",
            "Rprop",
            "ASGD",
        )
    }
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    for optimizer in objects.values():
        optimizer.step()
    sgd, schedulers = objects["SGD"], torch.optim.lr_scheduler
    for group in sgd.param_groups:
        group["momentum"] = 0.9
    warm, cosine = schedulers.LinearLR(sgd), schedulers.CosineAnnealingLR(sgd, 10)
    objects |= {
        "multi step": schedulers.MultiStepLR(sgd, [3, 7]),
        "lambda": schedulers.LambdaLR(sgd, lambda step: 0.9**step),
        "sequential": schedulers.SequentialLR(sgd, [warm, cosine], [5]),
        "plateau": schedulers.ReduceLROnPlateau(sgd),
        "one cycle": schedulers.OneCycleLR(sgd, max_lr=0.1, total_steps=10),
        "cyclic": schedulers.CyclicLR(sgd, 0.01, 0.1),
        "warm restarts": schedulers.CosineAnnealingWarmRestarts(sgd, 5),
        "scaler": torch.amp.GradScaler("cpu"),
    }
    return objects


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_optimizers_and_schedulers_of_torch_can_be_stored(find_difference: Any) -> None:
    for name, thing in optimizers_and_schedulers().items():
        state = {name: thing.state_dict()}
        back = round_trip(state)
        assert find_difference(state, back) is None
        thing.load_state_dict(back[name])


def contains_itself() -> dict[str, Any]:
    state: dict[str, Any] = {}
    state["again"] = state
    return state


REFUSED = {
    "function": (
        print,
        r"opt\.state\.3\.it is a builtin_function_or_method: it cannot be stored without pickling\. ",
    ),
    "lambda": (
        lambda: 0,
        r"opt\.state\.3\.it is a function: it cannot be stored without pickling\. A state may",
    ),
    "object": (object(), r"opt\.state\.3\.it is an object: "),
    "module": (nn.Linear(1, 1), r"it is a Linear: "),
    "set": ({1}, r"it is a set: "),
    "namedtuple": (Pair(1, 2), r"it is a Pair: "),
    "string subclass": (torch.__version__, r"it is a TorchVersion: "),
    "object array": (numpy.array([print]), r"it is a ndarray: an array of object cannot be stored"),
    "structured array": (numpy.zeros(2, dtype=[("a", "i4")]), r"it is a ndarray: an array of"),
    "numpy string": (numpy.str_("a"), r"it is a str_: "),
    "meta": (torch.empty(2, device="meta"), r"it is a torch\.strided meta tensor: only dense"),
    "tensor subclass": (torch.nn.UninitializedParameter(), r"it is an UninitializedParameter: .*Unwrap it"),
    "bool key": ({True: 1}, r"opt\.state\.3\.it has the key True of type bool: keys must be str or int"),
    "tuple key": ({(1, 2): 1}, r"has the key \(1, 2\) of type tuple"),
    "cycle": (contains_itself(), r"nested more than 100 deep, or contains itself"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_anything_else_is_refused_with_its_path(name: str) -> None:
    value, message = REFUSED[name]
    state = {"opt": {"state": {3: {"it": value}}}}
    with pytest.raises(StateError, match=message):
        pack(state)
    with pytest.raises(StateError, match=message):
        copy(state)


def test_a_dtensor_that_one_process_holds_whole_is_a_plain_tensor(tmp_path: Any) -> None:
    from torch.distributed import destroy_process_group, init_process_group
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, distribute_tensor

    init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        packed = pack({"model": {"weight": distribute_tensor(torch.ones(4), mesh)}})
        assert packed.parts == {} and type(packed.tensors["model.weight"]) is torch.Tensor
        unsummed = DTensor.from_local(torch.ones(4), mesh, [Partial()])
        with pytest.raises(StateError, match=r"^model\.weight is a DTensor with .*Partial.* Redistribute it"):
            pack({"model": {"weight": unsummed}})
    finally:
        destroy_process_group()


@pytest.mark.parametrize(
    "structure",
    [
        {"type": "unknown"},
        {"no": "type"},
        {"type": "tensor", "key": "absent"},
        {"type": "tensor", "key": "x", "stride": [0, 1]},
        {"type": "tensor", "key": "x", "stride": [1]},
        {"type": "dtype", "name": "load"},
        {"type": "scalar", "dtype": "O", "hex": "0011223344556677"},
        {"type": "array", "key": "x", "dtype": "O", "shape": [1], "order": "C"},
        {"type": "array", "key": "x", "dtype": "<f8", "shape": [100], "order": "C"},
    ],
    ids=str,
)
def test_a_structure_that_pack_cannot_have_made_is_refused(structure: Any) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        unpack(structure, {"x": torch.zeros(2, 2)})


def test_a_copy_is_independent_and_uses_memory_again(find_difference: Any) -> None:
    state: Any = {
        "w": torch.randn(16, 16),
        "c": torch.randn(3, dtype=torch.complex64),
        "n": numpy.arange(3),
        "l": [1],
    }
    first = copy(state)
    state["w"].zero_()
    state["n"][0] = 9
    state["l"].append(2)
    assert first["w"].abs().sum() > 0 and first["n"][0] == 0 and first["l"] == [1]
    where = first["w"].data_ptr(), first["c"].data_ptr()
    state["extra"] = torch.ones(2)
    second = copy(state, into=first)
    assert find_difference(state, second) is None
    assert (second["w"].data_ptr(), second["c"].data_ptr()) == where
    state["w"] = torch.ones(3, dtype=torch.int64)
    assert find_difference(state, copy(state, into=second)) is None


def test_a_copy_is_plain_cpu_memory_whatever_the_caller_switched_on(find_difference: Any) -> None:
    state = {"w": torch.randn(4), "n": numpy.arange(3)}
    with torch.device("meta"), torch.inference_mode():
        copied = copy(state)
    assert find_difference(state, copied) is None
    assert not copied["w"].is_inference()


def tensors() -> st.SearchStrategy[torch.Tensor]:
    dtypes = st.sampled_from(["f4", "f8", "f2", "i8", "u1", "c8", "?"])
    arrays = dtypes.flatmap(
        lambda dtype: st_numpy.arrays(dtype, st_numpy.array_shapes(min_dims=0, min_side=0))
    )
    return arrays.map(lambda array: torch.from_numpy(array.copy()))


def states() -> st.SearchStrategy[Any]:
    characters = st.characters(exclude_categories=())
    leaves = st.one_of(
        *(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(),
            st.text(characters, max_size=5),
            st.binary(max_size=5),
        ),
        *(tensors(), tensors().map(lambda tensor: tensor.numpy())),
    )
    keys = st.text(characters, max_size=4) | st.integers()
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=3).map(tuple),
            st.dictionaries(keys, inner, max_size=3),
        ),
        max_leaves=10,
    )


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(state=states())
def test_any_state_comes_back(state: Any, find_difference: Any) -> None:
    assert find_difference(state, round_trip(state)) is None
    assert find_difference(state, copy(state)) is None
