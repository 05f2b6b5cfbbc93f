"""The test accelerator as a script sees it: `import toy`, then `tensor.to("toy")` and `torch.toy`.

It behaves like a GPU where that matters to tests; `tests/accelerator/__init__.py` says where it does not.
Variables set it up: TOY_KERNEL_US (how long an operator takes on the device), TOY_MEMORY_BYTES (what each
device has), TOY_LOG (a file to which the process appends its waits when it ends, as JSON lines).
"""

import atexit
import contextlib
import ctypes
import json
import os
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from toy.build import library

_NAME = "toy"
_CODE = ctypes.PyDLL(str(library()), mode=ctypes.RTLD_GLOBAL)
_CODE.toy_default_generator.restype = ctypes.py_object
_CODE.toy_waits.restype = ctypes.c_char_p
_CODE.toy_operators.restype = _CODE.toy_step.restype = ctypes.c_int64
_CODE.toy_is_bad_fork.restype = _CODE.toy_is_initialized.restype = ctypes.c_bool


@dataclass(frozen=True)
class Wait:
    """One time that the host waited for the device."""

    kind: str
    """`item`, `copy`, `result` (an operator whose result's size the host needs) or `synchronize`."""
    operation: str
    step: int
    """How many optimizer steps were done before it; see `count_steps`."""
    slept_ns: int
    frames: tuple[tuple[str, int], ...]
    """Files and lines of Python that led to it, innermost first. None on autograd's threads."""

    @property
    def line(self) -> str:
        """The innermost file and line that is not torch's."""
        own = (f"{file}:{line}" for file, line in self.frames if not _is_torch(file))
        return next(own, "autograd's thread" if not self.frames else "torch")


def _is_torch(file: str) -> bool:
    return file.startswith((_TORCH, "<"))


_TORCH = str(Path(torch.__file__).parent) + os.sep


def waits() -> list[Wait]:
    """Return every wait so far."""
    lines = _CODE.toy_waits().decode(errors="replace").splitlines()
    found = [json.loads(line) for line in lines]
    return [Wait(**{**wait, "frames": tuple(map(tuple, wait["frames"]))}) for wait in found]


def clear_waits() -> None:
    """Forget the waits so far."""
    _CODE.toy_clear_waits()


@contextlib.contextmanager
def record_waits() -> Iterator[list[Wait]]:
    """Collect the waits of a block into a list, which is filled when the block ends."""
    before, found = len(waits()), []
    yield found
    found.extend(waits()[before:])


def num_operators() -> int:
    """Return how many operators the device was asked for."""
    return _CODE.toy_operators()


def set_kernel_time(us: float) -> None:
    """Set how long each operator takes on the device, in microseconds, besides the time for its bytes."""
    _CODE.toy_set_kernel_ns(ctypes.c_int64(int(us * 1000)))


def set_memory(num_bytes: int) -> None:
    """Set how much memory each device has."""
    _CODE.toy_set_limit(ctypes.c_int64(num_bytes))


def count_steps() -> None:
    """Let `Wait.step` count the steps of torch's optimizers from now on."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(lambda *_: _CODE.toy_next_step())


def _index(device: Any = None) -> int:
    if isinstance(device, int):
        return device
    index = None if device is None else torch.device(device).index
    return _CODE.toy_current_device() if index is None else index


def _generator(device: Any = None) -> torch.Generator:
    return _MODULE.default_generators[_index(device)]


def _seed_all(seed: int) -> None:
    for generator in _MODULE.default_generators:
        generator.manual_seed(seed)


class _Device(torch.accelerator.device_index):
    """`with torch.toy.device(1):`."""

    def __init__(self, device: Any) -> None:
        super().__init__(_index(device))


@contextlib.contextmanager
def _stream(stream: torch.Stream | None) -> Iterator[None]:
    if stream is None:
        yield
    else:
        with stream:
            yield


def _properties(device: Any = None) -> types.SimpleNamespace:
    total = _memory_info(device)[1]
    return types.SimpleNamespace(name="Test accelerator", total_memory=total, major=1, minor=0)


def _memory_info(device: Any = None) -> tuple[int, int]:
    return torch.accelerator.get_memory_info(_index(device))


class _Module(types.ModuleType):
    @property
    def _initialized(self) -> bool:  # torch.utils.checkpoint keeps a device's generators if this is true
        return _CODE.toy_is_initialized()


def _make_module() -> types.ModuleType:
    """Return `torch.toy`: what torch and scripts ask of a device's module, named as in `torch.cuda`."""
    module = _Module(f"torch.{_NAME}")
    same = ("empty_cache", "memory_stats", "memory_allocated", "max_memory_allocated", "memory_reserved")
    same += ("max_memory_reserved", "reset_peak_memory_stats", "current_stream", "set_stream", "synchronize")
    vars(module).update({name: getattr(torch.accelerator, name) for name in same})
    vars(module).update(
        is_available=lambda: True,
        is_initialized=_CODE.toy_is_initialized,
        init=lambda: None,
        _lazy_init=lambda: None,
        _is_in_bad_fork=_CODE.toy_is_bad_fork,
        device_count=_CODE.toy_device_count,
        current_device=_CODE.toy_current_device,
        set_device=lambda device: torch.accelerator.set_device_index(_index(device)),
        device=_Device,
        get_device_name=lambda device=None: _properties(device).name,
        get_device_properties=_properties,
        get_device_capability=lambda device=None: (1, 0),
        mem_get_info=_memory_info,
        OutOfMemoryError=torch.OutOfMemoryError,
        default_generators=tuple(map(_CODE.toy_default_generator, range(_CODE.toy_device_count()))),
        manual_seed=lambda seed: _generator().manual_seed(seed),
        manual_seed_all=_seed_all,
        seed=lambda: _generator().seed(),
        initial_seed=lambda: _generator().initial_seed(),
        get_rng_state=lambda device=None: _generator(device).get_state(),
        set_rng_state=lambda state, device=None: _generator(device).set_state(state),
        get_rng_state_all=lambda: [generator.get_state() for generator in module.default_generators],
        Stream=lambda device=None, **options: torch.Stream(torch.device(_NAME, _index(device)), **options),
        Event=lambda enable_timing=False: torch.Event(_NAME, enable_timing=enable_timing),
        stream=_stream,
        get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16],
        is_bf16_supported=lambda: True,
        num_waits=lambda: len(waits()),
    )
    return module


def _append_log(path: str) -> None:
    found = [vars(wait) | {"line": wait.line} for wait in waits()]
    process = {
        "process": os.getpid(),
        "script": sys.argv[0],
        "steps": _CODE.toy_step(),
        "operators": num_operators(),
        "waits": found,
    }
    with Path(path).open("a") as file:
        file.write(json.dumps(process) + "\n")


torch.utils.rename_privateuse1_backend(_NAME)
_CODE.toy_register()
_MODULE = _make_module()
torch._register_device_module(_NAME, _MODULE)
torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
if torch.distributed.is_available():
    from toy.group import register

    register(_NAME)
if "TOY_KERNEL_US" in os.environ:
    set_kernel_time(float(os.environ["TOY_KERNEL_US"]))
if "TOY_MEMORY_BYTES" in os.environ:
    set_memory(int(os.environ["TOY_MEMORY_BYTES"]))
if "TOY_LOG" in os.environ:
    count_steps()
    atexit.register(_append_log, os.environ["TOY_LOG"])
