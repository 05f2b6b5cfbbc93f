"""CUDA redirected to the CPU: a script that asks for CUDA computes as if "cpu" stood there.

Owns torch's entry points that take a device, a backend or a place to load to. What `torch.cuda` answers is in
`cuda`, processes that the script starts in `children`. What is not redirected is refused with its line.
"""

import functools
from typing import Any

import torch
import torch.utils._device

from truestep.watch.control import cuda
from truestep.watch.hooks.table import Function, Hook, bound, put, resolve
from truestep.watch.script.tape import Tape

_FACTORIES = """
    arange as_tensor asarray bartlett_window blackman_window empty empty_like empty_permuted
    empty_strided eye fft.fftfreq fft.rfftfreq from_file full full_like hamming_window hann_window
    kaiser_window linspace logspace nested.as_nested_tensor nested.nested_tensor normal ones ones_like
    rand rand_like randint randint_like randn randn_like randperm range scalar_tensor sparse_bsc_tensor
    sparse_bsr_tensor sparse_compressed_tensor sparse_coo_tensor sparse_csc_tensor sparse_csr_tensor
    tensor tril_indices triu_indices zeros zeros_like
""".split()  # noqa: SIM905 - some fifty lines otherwise
_NEW = ("", "_empty", "_empty_strided", "_full", "_ones", "_tensor", "_zeros")
_AUTOCAST = ("is_autocast_enabled", "set_autocast_enabled", "get_autocast_dtype", "set_autocast_dtype")
_LOAD_FIRST = 0
"""Before all of torch's own places to load to."""


def redirect_cuda(tape: Tape) -> None:
    """Redirect CUDA if the plan says so."""
    if tape.plan.cuda_devices:
        redirect(tape.plan.cuda_devices)


def redirect(num_devices: int) -> None:
    """Redirect CUDA in this process, in which the CPU stands in for so many devices."""
    torch.utils._device._device_constructors()  # torch keeps which they are: as they were
    for name in _FACTORIES:
        _replace(make, name)
    _redirect(make_alike, *(f"torch.Tensor.new{name}" for name in _NEW))
    _redirect(move, "torch.Tensor.to", "torch.nn.Module.to", "torch.nn.utils.rnn.PackedSequence.to")
    _redirect(stay, "torch.Tensor.cuda")
    _redirect(leave_unpinned, "torch.Tensor.pin_memory")
    _redirect(ignore, "torch.Tensor.record_stream")
    _redirect(iterate, "torch.utils.data.dataloader._BaseDataLoaderIter.__init__")
    _redirect(choose_type, "torch.Tensor.type", "torch.set_default_tensor_type")
    _redirect(choose_device, "torch.utils._device.DeviceContext.__init__")
    _redirect(choose_device, "torch.amp.grad_scaler.GradScaler.__init__")
    _redirect(cast, "torch.amp.autocast_mode.autocast.__init__")
    for name in _AUTOCAST:
        _replace(ask_autocast, name)
    torch.Generator = Generator  # type: ignore[misc]
    torch.serialization.register_package(_LOAD_FIRST, lambda _: None, _load_here)
    if torch.distributed.is_available():
        _redirect_distributed()
    cuda.stand_in(num_devices)


def _redirect_distributed() -> None:
    home = "torch.distributed"
    rows = {"init_process_group": join, "new_group": join, "is_nccl_available": affirm}
    put(None, [_shared(f"{home}.distributed_c10d.{name}", act) for name, act in rows.items()])
    put(None, [_shared(f"{home}.device_mesh.init_device_mesh", move)])
    _redirect(choose_device, f"{home}.device_mesh.DeviceMesh.__init__")
    _redirect(wrap, "torch.nn.parallel.DistributedDataParallel.__init__")
    _redirect(keep_norms, "torch.nn.SyncBatchNorm.convert_sync_batchnorm")


def _shared(target: str, act: Function) -> Hook:
    """Return the hook of a function that `torch.distributed` has too."""
    return Hook(target, act, also=(f"torch.distributed.{target.rpartition('.')[2]}",), changes=True)


def _replace(act: Function, name: str) -> None:
    """Put a function in the place of one of torch's own that are written in C.

    Not by a hook: the compiler looks into this one, and stops at those.
    """
    owner, name = resolve(f"torch.{name}")
    original = getattr(owner, name, None)
    if original is None:  # not in this torch
        return

    def call(*args: Any, **kwargs: Any) -> Any:
        return act(original, *args, **kwargs)

    functools.update_wrapper(call, original)
    call.__module__, call.__qualname__ = owner.__name__, name
    setattr(owner, name, call)
    operator = torch.jit._builtins._find_builtin(original)
    if operator is not None:  # scripted code calls it past us
        torch.jit._builtins._register_builtin(call, operator)


def _redirect(act: Function, *targets: str) -> None:
    """Put a change around functions, those that this torch has."""
    put(None, [Hook(target, act, changes=True) for target in targets if hasattr(*resolve(target))])


def on_cpu(device: Any) -> Any:
    """Return a device as the script gets it: the CPU for anything on CUDA, else what was given."""
    if isinstance(device, torch.device):
        return torch.device("cpu") if device.type == "cuda" else device
    if isinstance(device, str):
        return "cpu" if device.partition(":")[0] == "cuda" else device
    return "cpu" if type(device) is int else device


def make(create: Function, /, *args: Any, **kwargs: Any) -> Any:
    """Create a tensor on the CPU, in memory that is not pinned."""
    if "device" in kwargs:
        kwargs["device"] = on_cpu(kwargs["device"])
    if kwargs.get("pin_memory"):
        kwargs["pin_memory"] = False
    return create(*args, **kwargs)


def make_alike(create: Function, /, *args: Any, **kwargs: Any) -> Any:
    """Create a tensor by a method of another one; a hook's own function, because hooks hide theirs."""
    return make(create, *args, **kwargs)


def move(act: Function, /, *args: Any, **kwargs: Any) -> Any:
    """Move to the CPU what would move to CUDA; all that else could be a device is no integer and no text."""
    kwargs = {name: on_cpu(value) if name.startswith("device") else value for name, value in kwargs.items()}
    return act(*[on_cpu(arg) for arg in args], **kwargs)


def stay(  # limits: as the method itself
    _cuda: Function, tensor: Any, device: Any = None, non_blocking: bool = False, **kwargs: Any
) -> Any:
    """Leave a tensor where it is, whatever the device."""
    del device
    return torch._C.TensorBase.to(tensor, "cpu", non_blocking=non_blocking, **kwargs)


def leave_unpinned(_pin: Function, tensor: Any, *_: Any, **__: Any) -> Any:
    """Return the tensor itself, as for one that is pinned already."""
    return tensor


def iterate(init: Function, iterator: Any, loader: Any) -> None:  # limits: as the method itself
    """Begin an epoch without pinned memory: torch would warn that there is none."""
    is_pinning, loader.pin_memory = loader.pin_memory, False
    try:
        init(iterator, loader)
    finally:
        loader.pin_memory = is_pinning


def ignore(_act: Function, /, *_: Any, **__: Any) -> None:
    """Do nothing."""


def affirm(_ask: Function) -> bool:
    """Let the script ask for nccl."""
    return True


def choose_type(act: Function, /, *args: Any, **kwargs: Any) -> Any:
    """Take `torch.FloatTensor` for "torch.cuda.FloatTensor"."""
    given = [arg.replace("torch.cuda.", "torch.") if isinstance(arg, str) else arg for arg in args]
    return act(*given, **kwargs)


def choose_device(init: Function, thing: Any, *args: Any, **kwargs: Any) -> None:
    """Let an object that is made for CUDA be made for the CPU; its first argument is the device."""
    name = "device_type" if "device_type" in kwargs else "device"
    device, *rest = args or (kwargs.pop(name, "cuda"),)
    init(thing, on_cpu(device), *rest, **kwargs)


def cast(init: Function, context: Any, *args: Any, **kwargs: Any) -> None:
    """Let autocast run on the CPU, in bfloat16: there float16 is ten times slower."""
    given = dict(zip(("device_type", "dtype", "enabled", "cache_enabled"), args, strict=False)) | kwargs
    if given["device_type"] == "cuda":
        is_half = given.get("dtype") in (None, torch.float16)
        given |= {"device_type": "cpu", "dtype": torch.bfloat16 if is_half else given["dtype"]}
    init(context, **given)


def ask_autocast(ask: Function, /, *args: Any) -> Any:
    """Answer for the CPU what is asked of CUDA, which is what is meant if no device is named."""
    named = args if args and isinstance(args[0], str) else ("cuda", *args)
    return ask(on_cpu(named[0]), *named[1:])


def join(act: Function, /, *args: Any, **kwargs: Any) -> Any:
    """Join or make a process group with gloo in the place of nccl."""
    given = bound(act, args, kwargs)
    if given is None:
        return act(*args, **kwargs)
    backend = given.arguments.get("backend")
    if isinstance(backend, str) and "nccl" in backend.lower():
        given.arguments["backend"] = "gloo"
    for name in ("device_id", "pg_options"):
        given.arguments.pop(name, None)
    return act(*given.args, **given.kwargs)


def wrap(init: Function, /, *args: Any, **kwargs: Any) -> None:
    """Make a model parallel whose devices are named: on the CPU there are none to name."""
    given = bound(init, args, kwargs)
    if given is not None:
        given.arguments.pop("device_ids", None)
        given.arguments.pop("output_device", None)
        args, kwargs = given.args, given.kwargs
    init(*args, **kwargs)


def keep_norms(_convert: Function, module: Any, *_: Any, **__: Any) -> Any:
    """Leave BatchNorm as it is: there is no SyncBatchNorm on the CPU."""
    return module


def _load_here(storage: Any, location: str) -> Any:
    """Leave on the CPU what a file has from CUDA, or is loaded to it."""
    return storage if location.partition(":")[0] == "cuda" else None


class _Generators(type):
    def __instancecheck__(cls, thing: Any) -> bool:
        return isinstance(thing, torch._C.Generator)


class Generator(metaclass=_Generators):
    """Stands for `torch.Generator`, whose type is closed: makes those of CUDA on the CPU."""

    def __new__(cls, device: Any = "cpu") -> Any:
        """Make one of torch's own."""
        return torch._C.Generator(on_cpu(device))
