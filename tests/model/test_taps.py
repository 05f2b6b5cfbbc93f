"""Taps read what really happens, change nothing, and leave nothing behind."""

import copy
import gc
import io
import subprocess
import sys
import weakref
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from tests.processes import run_processes
from tests.zoo import ZOO, loss_of
from truestep.base.bits import digest_state
from truestep.errors import UsageError
from truestep.model.readings import Reading
from truestep.model.statistics import statistics_later
from truestep.model.taps import Taps, tap


def hooks_of(model: nn.Module) -> dict[str, int]:
    """Count every hook that torch knows of, by module or parameter."""
    places = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    flags = ("_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs", "_forward_hooks_always_called")
    found = {
        f"{name}:{place}": len(getattr(module, place))
        for name, module in model.named_modules()
        for place in (*places, *flags)
    }
    for name, parameter in model.named_parameters():
        found[name] = len(parameter._backward_hooks or ())
        found[f"{name}:post"] = len(getattr(parameter, "_post_accumulate_grad_hooks", None) or ())
    return found


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.mark.practice("P22")
@pytest.mark.parametrize("name", ZOO)
def test_p22_gradients_are_those_of_retain_grad_without_editing_the_model(name: str) -> None:
    """A tap reads the gradient of every layer's output, bit-for-bit equal to that of `retain_grad`."""
    model, inputs = ZOO[name]()
    model.eval()  # the same masks in both passes: none
    kept: dict[str, list[Tensor]] = {}

    def retain(label: str) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            if isinstance(output, Tensor) and output.requires_grad:
                output.retain_grad()
                kept.setdefault(label, []).append(output)

        return hook

    handles = [
        module.register_forward_hook(retain(label)) for label, module in model.named_modules() if label
    ]
    loss_of(model(**inputs)).backward()
    for handle in handles:
        handle.remove()
    with tap(model, values=True) as taps:
        loss_of(model(**inputs)).backward()
    read = {
        (item.name, item.call): item for item in taps.readings if item.kind == "gradient" and not item.path
    }
    compared = 0
    for label, tensors in kept.items():
        for call, tensor in enumerate(tensors):
            if tensor.grad is None:  # computed, but the loss does not depend on it
                assert (label, call) not in read
            else:
                assert torch.equal(read[label, call].value, tensor.grad), (label, call)
                compared += 1
    assert compared == len(read) >= 3


@pytest.mark.practice("P22")
def test_p22_any_tensor_is_read_by_a_name_of_your_own() -> None:
    """`taps.add("u", tensor)` reads a tensor that belongs to no module, and its gradient."""
    x, w, b = (torch.tensor(number, requires_grad=True) for number in (2.0, 3.0, 1.0))
    with tap(values=True) as taps:
        u = taps.add("u", x * w)
        assert taps.add("v", u + b) is not u
        (u * 5).backward()
    assert taps.output("u").value == 6
    assert taps.gradient("u").value == 5
    assert not u.retains_grad
    assert taps.add("later", x) is x and len(taps) == 3


@pytest.mark.practice("P33")
def test_p33_the_channels_of_a_layer_are_kept_as_images() -> None:
    """With `values=True` a tap keeps what each channel of a layer gives for an image, ready to be drawn."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(inplace=True))
    image = torch.randn(1, 1, 8, 8)
    with torch.no_grad(), tap(model, "0", values=True) as taps:
        model(image)
        channels = taps.output("0").value
        assert channels is not None and channels.shape == (1, 6, 6, 6)
        assert torch.equal(channels, model[0](image))  # not what the ReLU made of it in place


@pytest.mark.practice("P32")
@pytest.mark.parametrize("name", ZOO)
def test_p32_no_hook_is_left_at_the_end_of_with(name: str) -> None:
    """After `with ts.model.tap(...)` a model has exactly the hooks that it had before."""
    model, inputs = ZOO[name]()
    mine = model.register_forward_hook(lambda *_: None)
    before = hooks_of(model)
    with tap(model, ["*", ""], inputs=True, parameters=True) as taps:  # held: no collection takes them off
        during = hooks_of(model)
        loss_of(model(**inputs)).backward()
    assert hooks_of(model) == before
    assert len(taps) > 5
    assert sum(during.values()) > sum(before.values()) + 5
    mine.remove()


@pytest.mark.practice("P32")
def test_p32_no_hook_is_left_when_an_error_passes_through() -> None:
    """An exception in the forward pass, the backward pass or a callback takes the hooks off as well."""
    model = mlp()
    before = hooks_of(model)

    def refuse(reading: Reading) -> None:
        if reading.kind == "gradient":
            raise FloatingPointError(reading.label)

    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"), tap(model) as first:
        model(torch.ones(1, 5))
    assert hooks_of(model) == before
    with pytest.raises(FloatingPointError, match="2"), tap(model, parameters=True, on=refuse) as second:
        model(torch.ones(1, 4)).sum().backward()
    assert hooks_of(model) == before
    assert len(first) == 0 and len(second) == 4  # both are still held
    with pytest.raises(UsageError, match="no module of Sequential has a name like 'first'"):
        tap(model, ["0", "first"])
    assert hooks_of(model) == before


@pytest.mark.practice("P32")
def test_p32_no_hook_is_left_when_the_tap_is_no_longer_used() -> None:
    """A tap that was placed without `with` takes its hooks off when the last reference to it is gone."""
    model = mlp()
    before = hooks_of(model)
    gc.collect()
    gc.disable()  # without a reference cycle the collector is not needed
    try:
        taps = tap(model, parameters=True)
        model(torch.ones(1, 4)).sum().backward()
        assert hooks_of(model) != before
        alive = weakref.ref(taps)
        del taps
        assert alive() is None
        assert hooks_of(model) == before
    finally:
        gc.enable()


def test_hooks_on_tensors_are_gone_at_the_end_too() -> None:
    leaf = torch.ones(2, requires_grad=True)
    with tap() as taps:
        loss = taps.add("leaf", leaf).sum() + taps.add("square", leaf.square()).sum()
    loss.backward()
    assert not leaf._backward_hooks
    assert [reading.kind for reading in taps.readings] == ["output", "output"]


def test_no_graph_is_kept_alive() -> None:
    model = mlp()
    with tap(model, inputs=True, parameters=True, values=True) as taps:
        output = model(torch.ones(3, 4))
        alive = weakref.ref(output)
        loss = output.sum()
        loss.backward(retain_graph=True)
        del output, loss
        assert alive() is None
        assert all(reading.value is None or reading.value.grad_fn is None for reading in taps.readings)
        for _ in range(20):
            model(torch.ones(3, 4))
        assert len(taps._on_tensors) <= 2 * 3


def test_statistics_keep_no_tensor() -> None:
    model = mlp()
    with tap(model) as taps:
        for _ in range(3):
            model(torch.ones(1000, 4)).sum().backward()
    gc.collect()
    held = gc.get_referents(*taps.readings)
    assert len(taps) == 3 * 6
    assert not any(isinstance(item, Tensor) for item in held)


def train(name: str, *, tapped: bool, options: dict[str, Any]) -> tuple[str, Tensor]:
    model, inputs = ZOO[name]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1)
    taps = tap(model, ["*", ""], **options) if tapped else None
    for _ in range(5):
        optimizer.zero_grad()
        loss_of(model(**inputs)).backward()
        optimizer.step()
    if taps is not None:
        assert len(taps) > 5
        taps.close()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    return digest_state(state), torch.get_rng_state()


@pytest.mark.practice("P32")
@pytest.mark.parametrize(
    "options", [{}, {"inputs": True, "parameters": True, "values": True}], ids=["", "all"]
)
@pytest.mark.parametrize("name", ZOO)
def test_p32_training_gives_the_same_bits(name: str, options: dict[str, Any]) -> None:
    """Five steps of training with dropout give bit-for-bit identical weights with taps and without."""
    bare, bare_generator = train(name, tapped=False, options={})
    read, generator = train(name, tapped=True, options=options)
    assert read == bare
    assert torch.equal(generator, bare_generator)


def test_versions_and_modes_are_left_alone() -> None:
    model, x = mlp(), torch.ones(2, 4)
    model[1].eval()
    versions = [tensor._version for tensor in (x, *model.parameters())]
    with tap(model, values=True), torch.no_grad():
        y = model(x)
    assert y._version == 0 and not y.requires_grad
    assert [tensor._version for tensor in (x, *model.parameters())] == versions
    assert model.training and not model[1].training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_layer_that_works_in_place_does_not_change_what_was_read() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True))
    x = torch.randn(3, 4)
    before = F.linear(x, model[0].weight, model[0].bias)
    with tap(model, values=True) as taps:
        model(x).sum().backward()
    assert torch.equal(taps.output("0").value, before)
    assert torch.equal(taps.gradient("0").value, (before > 0).float())


class Loop(nn.Module):
    """One layer that is called three times, under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)
        self.same = self.layer

    def forward(self, x: Tensor) -> Tensor:
        return self.same(self.layer(torch.relu(self.layer(x))))


def test_calls_of_a_shared_module_are_kept_apart() -> None:
    torch.manual_seed(0)
    model, x = Loop(), torch.randn(2, 3)
    with tap(model, "*", values=True, keep=2) as taps:
        model(x).sum().backward()
        model(x + 1).sum().backward()
    assert [reading.label for reading in taps.readings[:3]] == ["layer", "layer[1]", "layer[2]"]
    assert {reading.forward for reading in taps.readings} == {0, 1}
    with torch.no_grad():
        first = model.layer(x)
        assert torch.equal(taps.output("layer", forward=0, call=0).value, first)
        assert torch.equal(taps.output("layer", forward=0, call=1).value, model.layer(first.relu()))
    assert torch.equal(taps.gradient("layer", call=2).value, torch.ones(2, 3))
    with pytest.raises(UsageError, match=r"3 outputs of 'layer' fit, one was expected\. There are call=0"):
        taps.output("layer")
    with pytest.raises(
        UsageError, match=r"there are 2 forward passes with outputs of 'layer', got forward=2"
    ):
        taps.output("layer", forward=2)


Pair = namedtuple("Pair", ["left", "right"])


@dataclass
class Result:
    score: Tensor
    rest: Any


class Nested(nn.Module):
    def forward(self, x: Tensor, *, scale: Tensor) -> Any:
        return Result(x * scale, {"pair": Pair(x + 1, [x + 2]), "text": "no tensor", 3: (None, x + 4)})


def test_nested_outputs_and_keyword_inputs_have_paths() -> None:
    model = Nested()
    with tap(model, "", inputs=True) as taps:
        model(torch.ones(2), scale=torch.tensor(3.0))
    found = {(reading.kind, reading.path): reading.statistics.mean for reading in taps}
    assert found == {
        ("input", "0"): 1,
        ("input", "scale"): 3,
        ("output", "score"): 3,
        ("output", "rest.pair.left"): 2,
        ("output", "rest.pair.right.0"): 3,
        ("output", "rest.3.1"): 5,
    }
    assert taps.input("", path="scale").label == "(model).scale"
    assert taps.output("", path="score").statistics.mean == 3


def test_outputs_of_transformers_and_of_an_lstm_have_paths() -> None:
    model, inputs = ZOO["bert"]()
    with tap(model, "bert") as taps:
        model(**inputs)
    assert [reading.path for reading in taps] == ["last_hidden_state", "pooler_output"]
    model, inputs = ZOO["lstm"]()
    with tap(model, nn.LSTM) as taps:
        model(**inputs)
    assert [reading.label for reading in taps] == ["lstm.0", "lstm.1.0", "lstm.1.1"]


def test_keep_bounds_what_is_kept_and_the_callback_still_sees_all() -> None:
    model, seen = mlp(), []
    with tap(model, "2", keep=2, on=seen.append) as taps:
        for _ in range(5):
            model(torch.ones(1, 4)).sum().backward()
    assert [reading.forward for reading in taps] == [3, 3, 4, 4]
    assert len(seen) == 10
    with tap(model, "2", values=True) as last:
        for number in range(3):
            model(torch.full((1, 4), float(number)))
    assert [reading.forward for reading in last] == [2]
    with tap(model, keep=0, on=seen.append) as none:
        model(torch.ones(1, 4))
    assert len(none) == 0 and len(seen) == 13
    with pytest.raises(UsageError, match="keep is -1"):
        tap(model, keep=-1)


def test_gradients_of_accumulated_passes_belong_to_their_pass() -> None:
    model = mlp()
    with tap(model, "2") as taps:
        losses = [model(torch.ones(1, 4)).sum() * factor for factor in (1, 3)]
        (losses[0] + losses[1]).backward()
    assert [taps.gradient("2", forward=number).statistics.mean for number in (0, 1)] == [1, 3]


def test_a_module_that_is_called_outside_of_its_model_begins_a_pass_each_time() -> None:
    model = mlp()
    with tap(model, keep=1) as taps:
        for _ in range(3):
            model[2](model[0](torch.ones(1, 4)))
    assert {reading.forward for reading in taps} == {2}
    assert [reading.name for reading in taps] == ["0", "2"]


def test_parameter_gradients_are_those_of_this_backward_pass() -> None:
    model = mlp()
    with tap(model, "2", parameters=True, values=True, keep=2) as taps:
        for _ in range(2):
            model(torch.ones(3, 4)).sum().backward()
    one = taps.gradient("2.bias", forward=0).value
    assert torch.equal(one, torch.full((2,), 3.0))
    assert torch.equal(model[2].bias.grad, 2 * one)


def test_errors_say_what_was_read() -> None:
    model = mlp()
    with tap(model) as taps:
        with pytest.raises(UsageError, match=r"no output of '0' was read\. It was not called while the tap"):
            taps.output("0")
        assert str(taps) == "nothing was read of 3 names: none of them was called"
        model(torch.ones(1, 4))
    with pytest.raises(UsageError, match=r"no gradient of '0' was read\. No backward pass reached it"):
        taps.gradient("0")
    with pytest.raises(UsageError, match=r"no output of '00' was read\. The nearest that were are '0'"):
        taps.output("00")
    with pytest.raises(UsageError, match=r"Pass inputs=True"):
        taps.input("0")
    with tap(model, gradients=False) as taps:
        model(torch.ones(1, 4)).sum().backward()
    with pytest.raises(UsageError, match=r"no gradient of '0' was read\. Pass gradients=True to tap\."):
        taps.gradient("0")


def test_taps_print_as_a_table() -> None:
    model = nn.Sequential(nn.ReLU())
    with tap(model) as taps:
        model(torch.tensor([[-1.0, 0.0, 3.0, 2.0]], requires_grad=True)).sum().backward()
    assert str(taps).splitlines() == [
        "name  what      shape  mean  std  min  max  zero  not finite",
        "0     output    1x4    1.25  1.3    0    3   50%       0.00%",
        "0     gradient  1x4       1    0    1    1    0%       0.00%",
    ]
    assert str(taps.output("0")) == "output of 0 [1, 4]: mean 1.25, std 1.299, 0 to 3, 50.0% zero"
    from rich.console import Console

    console = Console(width=100, file=io.StringIO())
    console.print(taps)
    assert "forward pass 0" in console.file.getvalue()


def test_the_functions_over_models_are_imported_without_rich() -> None:
    code = "import sys, truestep.model; sys.exit('rich' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class Checkpointed(nn.Module):
    """Blocks with dropout, each computed again in the backward pass; the second one runs twice."""

    def __init__(self, *, mode: bool | None) -> None:
        super().__init__()
        self.mode = mode
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3), nn.Tanh()) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in (self.blocks[0], self.blocks[1], self.blocks[1]):
            x = block(x) if self.mode is None else checkpoint(block, x, use_reentrant=self.mode)
        return x


def read_checkpointed(mode: bool | None, what: str = "blocks*") -> tuple[Taps, str]:
    torch.manual_seed(0)
    model = Checkpointed(mode=mode)
    x = torch.randn(5, 6, requires_grad=True)
    with tap(model if what else None, what, values=True, keep=3) as taps:
        for _ in range(3):
            model(x).square().sum().backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return taps, digest_state(gradients)


@pytest.mark.parametrize("mode", [False, True], ids=["plain", "reentrant"])
def test_checkpointing_is_no_second_call_and_gradients_find_theirs(mode: bool) -> None:
    plain, _ = read_checkpointed(None)
    again, bits = read_checkpointed(mode)
    assert bits == read_checkpointed(mode, "")[1]

    def all_of(taps: Taps) -> dict[Any, Tensor | None]:
        return {
            (item.name, item.kind, item.forward, item.call, item.path): item.value for item in taps.readings
        }

    expected, found = all_of(plain), all_of(again)
    assert len(again) == len(plain) and found.keys() == expected.keys()
    for key, value in expected.items():
        assert torch.equal(found[key], value), key


def test_reentrant_checkpointing_without_restored_generator_still_gives_each_call_a_gradient() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    x = torch.randn(2, 3, requires_grad=True)
    with tap(model, "1") as taps:
        for _ in range(2):
            checkpoint(model, x, use_reentrant=True, preserve_rng_state=False).sum().backward()
    assert [(reading.kind, reading.forward) for reading in taps] == [
        ("output", 0),
        ("gradient", 0),
        ("output", 1),
        ("gradient", 1),
    ]


def _train_in_processes(tapped: bool) -> Any:
    import torch.distributed as dist

    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(10 + dist.get_rank())
    taps = tap(model, parameters=True, values=True) if tapped else None
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(5, 4)).square().mean()
        loss.backward()
        optimizer.step()
    found: dict[str, Any] = {"bits": digest_state(model.state_dict())}
    if taps is not None:
        taps.close()
        found["outputs"] = taps.output("module.0").value.tolist()
        found["local"] = taps.gradient("module.2.bias", forward=-1).value.tolist()
        found["averaged"] = model.module[2].bias.grad.tolist()
        found["hooks"] = sum(hooks_of(model).values())
    return found


def test_taps_read_their_own_process_under_ddp_and_change_no_bit() -> None:
    bare = run_processes(_train_in_processes, False, size=2)
    read = run_processes(_train_in_processes, True, size=2)
    assert {item["bits"] for item in [*bare, *read]} == {bare[0]["bits"]}
    assert read[0]["outputs"] != read[1]["outputs"]
    assert read[0]["averaged"] == read[1]["averaged"]
    mean = (torch.tensor(read[0]["local"]) + torch.tensor(read[1]["local"])) / 2
    assert mean.tolist() == read[0]["averaged"]
    assert read[0]["hooks"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.filterwarnings("ignore:The .grad attribute")  # dynamo asks at every break of a graph
def test_a_model_compiled_under_a_tap_is_read_with_a_broken_graph(backend: str) -> None:
    model, x = mlp(), torch.ones(3, 4)
    expected = copy.deepcopy(model)
    torch._dynamo.reset()
    with tap(model, values=True) as taps:
        compiled = torch.compile(model, backend=backend)
        compiled(x).sum().backward()
        compiled(x).sum().backward()
    with tap(expected, values=True) as plain:
        expected(x).sum().backward()
        expected(x).sum().backward()
    for name in ("0", "1", "2"):
        assert torch.equal(taps.output(name).value, plain.output(name).value)
        assert torch.equal(taps.gradient(name).value, plain.gradient(name).value)
    torch._dynamo.reset()
    with tap(model, "0"), pytest.raises(Exception, match=r"torch\.compiler\.disable"):
        torch.compile(model, backend=backend, fullgraph=True)(x)


@pytest.mark.slow
def test_a_compiled_model_is_refused_and_one_compiled_elsewhere_is_told_when_asked_for() -> None:
    model, x = mlp(), torch.ones(3, 4)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="eager")
    compiled(x)
    with pytest.raises(
        UsageError, match=r"'_orig_mod' is part of 'a model', which is compiled.*Tap the model"
    ):
        tap(compiled)
    with tap(compiled, "") as whole:
        compiled(x)
    assert whole.output("").shape == (3, 2)
    with tap(model) as taps:
        compiled(x)
    with pytest.raises(UsageError, match="or its model was compiled before"):
        taps.output("0")
    parted = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)))
    parted[1].compile(backend="eager")
    with pytest.raises(UsageError, match=r"'1.0' is part of '1', which is compiled"):
        tap(parted, "1.*")
    with tap(parted, "0") as outside:
        parted(x)
    assert len(outside) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_an_exported_or_traced_model_holds_nothing_of_taps() -> None:
    model, x = mlp().eval(), torch.ones(1, 4)
    bare = [str(node) for node in torch.export.export(model, (x,)).graph.nodes]
    with tap(model) as taps:
        tapped = [str(node) for node in torch.export.export(model, (x,)).graph.nodes]
        traced = torch.jit.trace(model, x, check_trace=False)
    assert tapped == bare
    assert "linalg" not in str(traced.inlined_graph) and "linear" in str(traced.inlined_graph)
    assert len(taps) == 0


def test_a_sparse_gradient_is_read() -> None:
    model = nn.Embedding(50, 3, sparse=True)
    with tap(model, "", parameters=True) as taps:
        model(torch.tensor([1, 4])).sum().backward()
    assert taps.gradient("weight").statistics == statistics_later(torch.ones(2, 3))()
