"""The test accelerator is like a GPU in what tests of truestep rely on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.accelerator import FOLDER, run

START = """
import copy, io, os, threading, time
import torch, toy
import torch.nn.functional as F
from torch import nn
"""


def test_backward_runs_on_a_thread_of_autograd() -> None:
    code = """
class Named(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2
    @staticmethod
    def backward(ctx, gradient):
        assert threading.current_thread() is not threading.main_thread()
        return gradient * 2
x = torch.ones(2, device="toy", requires_grad=True)
Named.apply(x).sum().backward()
assert x.grad.tolist() == [2, 2]
"""
    run(START + code)


TRAINING = """
torch.manual_seed(1)
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 16)
        self.attention = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.convolution = nn.Conv1d(16, 8, 3, padding=1)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 5)
    def forward(self, x):
        x = self.attention(self.embedding(x)).transpose(1, 2)
        return self.head(self.norm(self.convolution(x)).mean(2))
model, x, y = Model(), torch.randint(0, 20, (6, 7)), torch.randint(0, 5, (6,))
"""


def test_training_gives_the_bits_of_the_cpu_and_waits_never() -> None:
    code = """
states = []
for device in ("cpu", "toy"):
    torch.backends.cuda.enable_flash_sdp(False)  # the CPU has a kernel for attention that others have not
    own = copy.deepcopy(model).to(device)
    optimizer = torch.optim.AdamW(own.parameters(), lr=1e-2, foreach=False)
    inputs, labels = x.to(device), y.to(device)
    with toy.record_waits() as waits:
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(own(inputs), labels).backward()
            nn.utils.clip_grad_norm_(own.parameters(), 1.0, foreach=False)
            optimizer.step()
    assert waits == [], waits
    states.append({name: value.cpu() for name, value in own.state_dict().items()})
assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
"""
    run(START + TRAINING + code)


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_recurrent_layers_train(name: str) -> None:
    code = """
torch.manual_seed(1)
layer = nn.NAME(4, 8, batch_first=True)
other, x = copy.deepcopy(layer).to("toy"), torch.randn(2, 5, 4)
layer(x)[0].sum().backward()
other(x.to("toy"))[0].sum().backward()
for a, b in zip(layer.parameters(), other.parameters()):
    torch.testing.assert_close(a.grad, b.grad.cpu())  # other kernels than the CPU's: biases are added later
"""
    run(START + code.replace("NAME", name))


def test_what_makes_a_host_wait_is_recorded_with_its_line() -> None:
    code = """
x = torch.randn(5, device="toy")
def waits(action):
    toy.clear_waits()
    action()
    found = toy.waits()
    assert all(wait.line.startswith("<string>") or wait.line == "torch" for wait in found), found
    return [(wait.kind, wait.operation) for wait in found]
assert waits(lambda: x * 2) == []
assert waits(lambda: x.sum().item()) == [("item", "item")]
assert waits(lambda: bool((x > 0).all())) == [("item", "item")]
assert waits(lambda: x.cpu()) == [("copy", "copy to host")]
assert waits(lambda: x.tolist()) == [("copy", "copy to host")]
assert waits(lambda: torch.ones(3).to("toy")) == [("copy", "copy to device")]
assert waits(lambda: torch.ones(3).pin_memory().to("toy", non_blocking=True)) == []
assert waits(lambda: x.to("cpu", non_blocking=True)) == []  # into pinned memory
assert waits(lambda: torch.empty(5).copy_(x, non_blocking=True)) == [("copy", "copy to host")]
assert waits(lambda: x[x > 0]) == [("result", "aten::index")]
assert waits(lambda: x.nonzero()) == [("result", "aten::nonzero")]
assert waits(lambda: x.masked_fill_(x > 0, 0)) == waits(lambda: x.__setitem__(x > 0, 1.0)) == []
assert waits(lambda: x.unique()) == [("result", "aten::_unique2")]
assert waits(torch.accelerator.synchronize) == waits(torch.toy.synchronize) == [("synchronize", "device")]
assert waits(lambda: torch.accelerator.current_stream().synchronize()) == [("synchronize", "stream")]
assert waits(lambda: str(x))
"""
    run(START + code.replace('"<string>"', '("<string>", "/")'))


def test_the_line_is_the_scripts_and_the_step_is_counted(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import torch\n"
        "weight = torch.ones(2, device='toy', requires_grad=True)\n"
        "optimizer = torch.optim.SGD([weight], lr=0.1)\n"
        "for _ in range(3):\n"
        "    weight.sum().backward()\n"
        "    optimizer.step()\n"
        "    print(weight.sum().item())\n"
    )
    code = f"import runpy; runpy.run_path({str(script)!r})"
    run(code, TOY_LOG=str(tmp_path / "log"))
    (process,) = map(json.loads, (tmp_path / "log").read_text().splitlines())
    assert process["steps"] == 3
    assert [(wait["line"], wait["step"]) for wait in process["waits"]] == [
        (f"{script}:7", n) for n in (1, 2, 3)
    ]


def test_the_host_runs_ahead_and_a_wait_sleeps_until_the_device_is_done() -> None:
    code = """
x = torch.ones(3, device="toy")
first, last = torch.Event("toy", enable_timing=True), torch.Event("toy", enable_timing=True)
torch.accelerator.synchronize()
toy.clear_waits()
toy.set_kernel_time(us=100_000)
first.record()
for _ in range(5):
    x = x * 2
last.record()
assert not last.query()
x.sum().item()
assert last.query() and first.elapsed_time(last) >= 500
(wait,) = toy.waits()
assert 0.3e9 < wait.slept_ns <= 0.6e9
side = torch.Stream(device="toy")
with side:
    x * 2
assert not side.query() and torch.toy.current_stream().query()
side.synchronize()
assert side.query()
"""
    run(START + code)


def test_memory_is_counted_and_limited() -> None:
    code = """
before = torch.accelerator.memory_allocated()
x = torch.zeros(1024, 1024, device="toy")
y = x.exp()
assert torch.accelerator.memory_allocated() - before == 2 * 4 * 1024**2
del x, y
assert torch.accelerator.memory_allocated() == before
assert torch.accelerator.max_memory_allocated() >= before + 8 * 1024**2
assert torch.toy.memory_reserved() >= 8 * 1024**2
torch.accelerator.reset_peak_memory_stats()
assert torch.accelerator.max_memory_allocated() == before
assert torch.toy.mem_get_info() == (16 * 1024**2 - before, 16 * 1024**2)
for make in (lambda: torch.empty(5 * 1024**2, device="toy"), lambda: torch.ones(5 * 1024**2).to("toy:1")):
    try:
        make()
        assert False
    except torch.OutOfMemoryError as error:
        assert "Tried to allocate 20971520 bytes" in str(error)
"""
    run(START + code, TOY_MEMORY_BYTES=str(16 * 1024**2))


def test_each_device_has_a_generator_which_the_cpu_does_not_share() -> None:
    code = """
torch.manual_seed(5)
on_cpu = torch.get_rng_state()
first, dropped = torch.rand(4, device="toy"), F.dropout(torch.ones(64, device="toy"))
assert torch.equal(on_cpu, torch.get_rng_state())
state = torch.toy.get_rng_state()
assert state.shape == (16,) and state.device.type == "cpu"
second = torch.randn(4, device="toy")
torch.toy.set_rng_state(state)
assert torch.equal(second, torch.randn(4, device="toy"))
torch.manual_seed(5)
assert torch.equal(first.cpu(), torch.rand(4, device="toy:1").cpu())
assert torch.equal(first, torch.rand(4, device="toy"))
assert torch.equal(dropped, F.dropout(torch.ones(64, device="toy")))
own = torch.Generator("toy").manual_seed(5)
assert torch.equal(first, torch.rand(4, device="toy", generator=own))
"""
    run(START + code)


def test_tensors_are_saved_and_loaded_with_their_device() -> None:
    code = """
layer, file = nn.Linear(3, 3).to("toy:1"), io.BytesIO()
torch.save(layer.state_dict(), file)
for where, expected in ((None, "toy:1"), ("cpu", "cpu"), ("toy:0", "toy:0")):
    file.seek(0)
    loaded = torch.load(file, map_location=where)["weight"]
    assert str(loaded.device) == expected and torch.equal(loaded.cpu(), layer.weight.cpu())
assert copy.deepcopy(layer).weight.device == layer.weight.device
"""
    run(START + code)


def test_autocast_lowers_products_and_the_scaler_scales() -> None:
    code = """
model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)).to("toy")
optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("toy")
with torch.autocast("toy", dtype=torch.float16):
    hidden = model[0](torch.ones(2, 4, device="toy"))
    loss = F.mse_loss(model(torch.ones(2, 4, device="toy")), torch.zeros(2, 4, device="toy"))
assert hidden.dtype == torch.float16 and loss.dtype == torch.float32
scaler.scale(loss).backward()
scaler.step(optimizer)
scaler.update()
assert model[0].weight.grad.dtype == torch.float32 and scaler.get_scale() == 65536
"""
    run(START + code)


def test_devices_do_not_mix_and_a_fork_cannot_use_them() -> None:
    code = """
x, y = torch.ones(2, device="toy:0"), torch.ones(2, device="toy:1")
for other in (y, torch.ones(2)):
    try:
        x + other
        assert False
    except RuntimeError as error:
        assert "Expected all tensors to be on the same device" in str(error)
assert (x + torch.tensor(1.0)).tolist() == (x.to("toy:1") + y).tolist() == [2, 2]
with torch.toy.device(1):
    assert torch.ones(1, device="toy").device.index == 1 == torch.accelerator.current_device_index()
child = os.fork()
if child == 0:
    try:
        torch.ones(2, device="toy")
    except RuntimeError as error:
        os._exit(3 if "forked subprocess" in str(error) and torch.toy._is_in_bad_fork() else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
"""
    run(START + code)


def test_batches_are_pinned_and_copied_without_a_wait() -> None:
    code = """
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(torch.ones(8, 2)), batch_size=4, pin_memory=True)
toy.clear_waits()
for x, in loader:
    assert x.is_pinned()
    x = x.to("toy", non_blocking=True)
assert toy.waits() == []
"""
    run(START + code)


@pytest.mark.cold
def test_torch_finds_the_device_when_it_is_imported() -> None:
    printed = run(
        "import torch; print(torch.accelerator.current_accelerator(), torch.accelerator.device_count())"
    )
    assert printed == "toy 2\n"


def test_compiler_that_fails_is_reported(tmp_path: Path) -> None:
    code = f"""
import sys; sys.path.insert(0, {str(FOLDER)!r})
from pathlib import Path
import importlib.util
spec = importlib.util.spec_from_file_location("build", {str(FOLDER / "toy/build.py")!r})
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)
build.SOURCE = Path({str(tmp_path)!r})
(build.SOURCE / "wrong.cpp").write_text("int f( {{")
try:
    build.library()
except RuntimeError as error:
    assert "does not compile" in str(error) and "wrong.cpp:1" in str(error)
else:
    assert False
"""
    variables = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    subprocess.run([sys.executable, "-c", code], check=True, env=variables)
