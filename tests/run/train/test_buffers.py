"""Buffers of every layout that torch can save: trained, saved, resumed, with equal digests."""

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import TensorDataset

import truestep as ts
from tests.processes import run_processes
from tests.run.train.small import tracked
from truestep.errors import StateError

NUMBERS = torch.arange(12.0)
COMPLEX = torch.polar(torch.ones(4), torch.arange(4.0))

BUFFERS: dict[str, Callable[[], torch.Tensor]] = {
    "conjugate": lambda: COMPLEX.clone().conj(),
    "negative": lambda: COMPLEX.clone().conj().imag,
    "one complex element, strided": lambda: torch.conj(torch.ones(10).to(torch.complex64)[::3][:1]),
    "strided": lambda: torch.arange(10.0)[1::3],
    "transposed": lambda: NUMBERS.clone().view(3, 4).t(),
    "expanded": lambda: torch.arange(3.0).view(3, 1).expand(3, 5),
    "overlapping": lambda: torch.arange(6.0).unfold(0, 3, 1),
    "channels last": lambda: torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last),
    "no element": lambda: torch.empty(0, 3),
    "no dimension": lambda: torch.tensor(3.0),
    "COO": lambda: NUMBERS.view(3, 4).to_sparse(),
    "CSR": lambda: NUMBERS.view(3, 4).to_sparse_csr(),
    "BSR": lambda: NUMBERS.view(3, 4).to_sparse_bsr((1, 2)),
    "quantised": lambda: torch.quantize_per_tensor(NUMBERS, 0.1, 3, torch.quint8),
    "quantised by channel": lambda: torch.quantize_per_channel(
        NUMBERS.view(3, 4), torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0, 1, 2]), 0, torch.qint8
    ),
} | {
    str(dtype): lambda dtype=dtype: torch.arange(4).to(dtype)
    for dtype in (
        torch.bool,
        torch.uint64,
        torch.bfloat16,
        torch.float64,
        torch.complex128,
        torch.float8_e5m2,
        torch.float8_e8m0fnu,
    )
}


class WithBuffer(nn.Module):
    def __init__(self, buffer: torch.Tensor) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.register_buffer("buffer", buffer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


def train(folder: Path, buffer: torch.Tensor, fail_at: int | None = None) -> str:
    snapshots = ts.Snapshots(every_steps=2)
    with ts.Run(folder, seed=1, progress=False, snapshots=snapshots) as run:
        model, optimizer = tracked(run, WithBuffer(buffer))
        for step in run.steps(ts.Loader(TensorDataset(torch.ones(32, 4)), batch_size=8), steps=6):
            if step.index == fail_at:
                raise InterruptedError
            for (x,) in step:
                step.backward(model(x).pow(2).mean())
            step.update(optimizer)
        return ts.digest_state(model.state_dict())


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")  # torch's own, for making one
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize("kind", BUFFERS)
def test_a_buffer_of_any_layout_is_saved_and_resumed(tmp_path: Path, kind: str) -> None:
    whole = train(tmp_path / "whole", BUFFERS[kind]())
    with pytest.raises(InterruptedError):
        train(tmp_path / "cut", BUFFERS[kind](), fail_at=3)
    buffer = BUFFERS[kind]()
    if buffer.layout == torch.strided and not buffer.is_quantized and buffer.numel():
        once = tuple(slice(None) if step else slice(0, 1) for step in buffer.stride())
        buffer[once].copy_(torch.zeros(()).to(buffer.dtype))  # what is resumed comes from the snapshot
    assert train(tmp_path / "cut", buffer) == whole


class WithBuffers(nn.Linear):
    """Has a buffer of every kind."""

    def __init__(self) -> None:
        super().__init__(4, 1)
        for number, make in enumerate(BUFFERS.values()):
            self.register_buffer(f"buffer{number}", make())


def train_with_all(folder: str, parallel: str) -> str:
    warnings.simplefilter("ignore")  # torch's own, for making sparse and quantised ones
    with ts.Run(folder, seed=1, lanes=2, threads=1, progress=False) as run:
        model, optimizer = tracked(run, WithBuffers(), parallel=parallel)
        for step in run.steps(ts.Loader(TensorDataset(torch.ones(32, 4)), batch_size=8), steps=3):
            for (x,) in step:
                step.backward(model(x).pow(2).mean())
            step.update(optimizer)
        return ts.digest_state(model.state_dict())


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize("parallel", ["ddp", "flat"])
def test_buffers_of_any_layout_are_the_same_on_several_processes(tmp_path: Path, parallel: str) -> None:
    alone = train_with_all(str(tmp_path / "alone"), parallel)
    assert run_processes(train_with_all, str(tmp_path / "two"), parallel, size=2) == [alone] * 2


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
def test_equal_values_have_equal_digests_whatever_the_flags_and_strides() -> None:
    conjugate = COMPLEX.clone().conj()
    assert ts.digest_state(conjugate) == ts.digest_state(conjugate.resolve_conj())
    assert ts.digest_state(conjugate.imag) == ts.digest_state(conjugate.imag.resolve_neg().contiguous())
    assert ts.digest_state(conjugate) != ts.digest_state(COMPLEX)
    sparse = NUMBERS.view(3, 4).to_sparse()
    assert ts.digest_state(sparse) == ts.digest_state(sparse.clone()) != ts.digest_state(sparse * 2)


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.view_as_complex(torch.rand(4, 2)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.weight).sum(1, keepdim=True).abs()


@pytest.mark.parametrize("lanes", [1, 2])
def test_complex_parameters_are_trained_and_resumed(tmp_path: Path, lanes: int) -> None:
    def trained(folder: Path, fail_at: int | None = None) -> str:
        snapshots = ts.Snapshots(every_steps=2)
        with ts.Run(folder, seed=1, lanes=lanes, progress=False, snapshots=snapshots) as run:
            model = run.place(Complex())
            optimizer = SGD(model.parameters(), lr=0.01, momentum=0.9)
            run.track(model=model, optimizer=optimizer)
            for step in run.steps(ts.Loader(TensorDataset(torch.ones(32, 4)), batch_size=8), steps=6):
                if step.index == fail_at:
                    raise InterruptedError
                for (x,) in step:
                    step.backward(model(x).mean())
                step.update(optimizer)
            return ts.digest_state([model.state_dict(), optimizer.state_dict()])

    whole = trained(tmp_path / "whole")
    with pytest.raises(InterruptedError):
        trained(tmp_path / "cut", fail_at=3)
    assert trained(tmp_path / "cut") == whole


class OwnTensor(torch.Tensor):
    """A class that no file without code can hold."""


@pytest.mark.parametrize(
    ("buffer", "words"),
    [
        (torch.empty(3, device="meta"), "model.late is a torch.strided meta tensor"),
        (torch.ones(3).as_subclass(OwnTensor), "model.late is an OwnTensor"),
    ],
    ids=["meta", "subclass"],
)
def test_what_cannot_be_saved_is_refused_before_training(
    tmp_path: Path, buffer: torch.Tensor, words: str
) -> None:
    with ts.Run(tmp_path, seed=1, progress=False) as run:
        model = run.place(WithBuffer(torch.ones(3)))
        model.register_buffer("late", buffer)
        run.track(model=model)
        with pytest.raises(StateError, match=words):
            run.steps(ts.Loader(TensorDataset(torch.ones(32, 4)), batch_size=8), steps=6)
