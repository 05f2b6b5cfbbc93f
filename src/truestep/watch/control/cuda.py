"""What `torch.cuda` and `torch.accelerator` answer while CUDA is redirected to the CPU.

Owns one answer for each function, streams and events. A function without one is refused at the user's line:
nothing may pass that a GPU would have done. Torch's own code and ours get the true answers.
"""

import linecache
import os
import sys
from collections import OrderedDict
from contextlib import nullcontext
from time import perf_counter
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import torch

from truestep.errors import UsageError
from truestep.watch.evidence.kinds import Place
from truestep.watch.hooks.table import Function, Hook, calling_module, put
from truestep.watch.script.sites import Sites

NAME = "CPU (cuda is redirected)"
_CAPABILITY = (8, 0)
_NOTHING = """
    init set_device synchronize empty_cache ipc_collect set_stream manual_seed manual_seed_all seed
    seed_all set_rng_state set_rng_state_all set_per_process_memory_fraction set_sync_debug_mode
    caching_allocator_enable reset_accumulated_memory_stats reset_peak_memory_stats
    reset_max_memory_allocated reset_max_memory_cached reset_accumulated_host_memory_stats
    reset_peak_host_memory_stats check_error start stop mark range_end set_device_index set_device_idx
    _sleep _record_memory_history _dump_snapshot _set_allocator_settings
""".split()  # noqa: SIM905 - some fifty lines otherwise
"""What has nothing to do. Draws on "cuda" come from the CPU's generator; as in a script for the CPU, a seed
for CUDA does not touch it."""
_ZERO = """
    memory_allocated max_memory_allocated memory_reserved max_memory_reserved memory_cached
    max_memory_cached memory_usage device_memory_used utilization temperature power_draw clock_rate
    get_sync_debug_mode range_push range_pop range_start _exchange_device _maybe_exchange_device
""".split()  # noqa: SIM905 - some fifty lines otherwise
_KEPT = ("range", "profile", "caching_allocator_disabled")
"""What works by means of the others."""
_REFUSED = ("CUDAGraph", "CUDAPluggableAllocator", "ExternalStream", "GreenContext", "MemPool", "graph")
_ANSWERED = ("torch.cuda.", "torch._subclasses.")
"""Whose calls are the script's own, carried on; the second has `Tensor.cuda` in compiled code."""
_HOMES = ("", ".memory", ".random", ".nvtx", ".graphs", ".profiler", ".streams")


class NotRedirectedError(UsageError, AssertionError):
    """Something was asked of CUDA that has no answer on the CPU; torch itself expects an AssertionError."""


def stand_in(num_devices: int) -> None:
    """Put the answers in place, for so many devices."""
    answers = _answers(num_devices)
    for name in [name for name in vars(torch.cuda) if name.endswith("Tensor") and hasattr(torch, name)]:
        setattr(torch.cuda, name, getattr(torch, name))
    classes = _classes()
    for place in _HOMES:
        module = sys.modules[f"torch.cuda{place}"]
        for name in classes.keys() & vars(module).keys():
            setattr(module, name, classes[name])
        put(None, [_hook(module, name, answers.get(name)) for name in _functions(module, answers)])
    put(None, [Hook("torch.cuda._lazy_init", refuse_start, changes=True)])
    for name in [name for name in vars(torch.accelerator) if name in answers]:
        put(None, [Hook(f"torch.accelerator.{name}", answer_instead, given=(answers[name],), changes=True)])


def _functions(module: ModuleType, answers: dict[str, Function]) -> list[str]:
    """Return which names of a module are answered, or refused."""
    found = vars(module).items()
    refused = {name for name, value in found if _is_function(value) and name[0] != "_" and name not in _KEPT}
    return [name for name, value in found if name in refused or (name in answers and callable(value))]


def _is_function(value: Any) -> bool:
    return isinstance(value, FunctionType) and value.__module__.startswith("torch.cuda")


def _classes() -> dict[str, type]:
    """Return what stands for classes: torch asks whether something is of them."""
    refused = {name: type(name, (_Refused,), {"__module__": "torch.cuda"}) for name in _REFUSED}
    contexts = {name: type(name, (nullcontext,), {}) for name in ("StreamContext", "device", "device_of")}
    return {**refused, **contexts, "Event": Event, "Stream": Stream}


def _hook(module: ModuleType, name: str, answer: Function | None) -> Hook:
    target = f"{module.__name__}.{name}"
    if answer is None:
        return Hook(target, refuse, given=(target,), changes=True)
    return Hook(target, answer_instead, given=(answer,), changes=True)


def answer_instead(answer: Function, ask: Function, /, *args: Any, **kwargs: Any) -> Any:
    """Answer in the place of torch, except to torch itself, which would use what is not there, and to us."""
    caller = calling_module()
    is_inside = caller.startswith(("torch.", "truestep.")) and not caller.startswith(_ANSWERED)
    return ask(*args, **kwargs) if is_inside else answer(*args, **kwargs)


def refuse(call: str, _act: Function, /, *_: Any, **__: Any) -> None:
    """End the script at what is not redirected."""
    place = _user_place()
    raise NotRedirectedError(
        f"--device cpu does not redirect {call}, called at {place.file}:{place.line}. Make the script leave "
        "it out on such a run, or run it on a machine with CUDA."
    )


def refuse_start(start: Function) -> None:
    """End the script where torch would start CUDA: something has come past all that is redirected."""
    place = _user_place()
    refuse(f"the use of CUDA in `{linecache.getline(place.file, place.line).strip()}`", start)


def _user_place() -> Place:
    sites = Sites()
    return sites.table[sites.here()]


def _answers(num_devices: int) -> dict[str, Function]:
    """Return what is called for each function."""
    constants = {
        **dict.fromkeys(_NOTHING, None),
        **dict.fromkeys(_ZERO, 0),
        "can_device_access_peer": False,
        "current_accelerator": torch.device("cuda"),
        "device_count": num_devices,
        "get_allocator_backend": "native",
        "get_arch_list": ["sm_80"],
        "get_device_capability": _CAPABILITY,
        "get_device_name": NAME,
        "get_gencode_flags": "",
        "get_per_process_memory_fraction": 1.0,
        "is_available": True,
        "is_bf16_supported": True,
        "is_current_stream_capturing": False,
        "is_initialized": True,
        "is_tf32_supported": True,
        "list_gpu_processes": "",
        "memory_summary": "",
    }
    current = _Current()
    functions: dict[str, Function] = {
        "default_stream": lambda *_: current.stream,
        "current_stream": lambda *_: current.stream,
        "get_device_properties": lambda *_: _properties(),
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "get_rng_state_all": lambda: [torch.get_rng_state() for _ in range(num_devices)],
        "initial_seed": torch.initial_seed,
        "mem_get_info": lambda *_: (_host_bytes(), _host_bytes()),
        "memory_snapshot": lambda *_, **__: [],
        "memory_stats": lambda *_: OrderedDict(),
        "memory_stats_as_nested_dict": lambda *_: {},
        "stream": nullcontext,
    }
    for end in ("", "_index", "_idx"):
        functions |= {f"current_device{end}": current.get, f"set_device{end}": current.set}
    return {name: _giving(value) for name, value in constants.items()} | functions


def _giving(value: Any) -> Function:
    return lambda *_, **__: value


def _host_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _properties() -> SimpleNamespace:
    major, minor = _CAPABILITY
    return SimpleNamespace(
        name=NAME,
        major=major,
        minor=minor,
        total_memory=_host_bytes(),
        multi_processor_count=os.cpu_count(),
        is_integrated=False,
        is_multi_gpu_board=False,
        warp_size=32,
    )


class _Current:
    """Which device is the current one: only its number is of use."""

    def __init__(self) -> None:
        self._index = 0
        self.stream = Stream()

    def get(self) -> int:
        """Return its number."""
        return self._index

    def set(self, device: Any) -> None:
        """Set it; the CPU, where all tensors are, and a device without a number change nothing."""
        if isinstance(device, str):
            device = torch.device(device)
        index = getattr(device, "index", device)
        self._index = self._index if index is None else int(index)


class _Refused:
    """A class of which there are no objects on the CPU."""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        """Refuse to make one."""
        refuse(f"torch.cuda.{cls.__name__}", cls)


class Event:
    """A moment on the host's clock: what the CPU was asked to do is done."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self._at_s = perf_counter()

    def record(self, _stream: Any = None) -> None:
        """Take the time."""
        self._at_s = perf_counter()

    def elapsed_time(self, end_event: "Event") -> float:
        """Return the milliseconds until another event."""
        return (end_event._at_s - self._at_s) * 1000

    def query(self) -> bool:
        """Whether it has happened."""
        return True

    def wait(self, stream: Any = None) -> None:
        """Wait for nothing."""

    synchronize = wait


class Stream:
    """A stream in which everything is done at once."""

    cuda_stream = stream_id = device_index = priority = 0
    device = torch.device("cuda", 0)

    def __init__(self, *_: Any, **__: Any) -> None:
        """Take what torch takes."""

    def record_event(self, event: Any = None) -> Any:
        """Record an event."""
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Whether all is done."""
        return True

    def wait(self, other: Any = None) -> None:
        """Wait for nothing."""

    synchronize = wait_event = wait_stream = wait

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing behind."""
