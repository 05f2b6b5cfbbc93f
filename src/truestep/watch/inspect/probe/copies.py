"""Copies of models, and forward passes through them, in a copy of the process.

Owns which models can be copied, and that all passes get the same random numbers.
"""

import contextlib
import copy
import functools
import itertools
import random
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from truestep.base.memory import is_out_of_memory
from truestep.watch.inspect.probe.hosted import to_host
from truestep.watch.script import module_tree

_SEED = 0
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "OptimizedModule")
_OWN = frozenset({*vars(nn.Module()), "training"})
_PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, type),
    *(torch.dtype, torch.device, Tensor, nn.Module),
)
_MAX_DEPTH = 4
_GENERATORS = (torch.Generator, random.Random)
_NUMPY_GENERATORS = ("Generator", "BitGenerator", "RandomState")


def replicate(model: nn.Module, hosted: Mapping[int, Tensor] | None = None) -> nn.Module | None:
    """Return a copy whose forward pass touches nothing of the model's; None if that is not certain.

    `hosted` has the copies of tensors that are on another device, by their id. A large model shares its
    parameters with the copy: this process has them for itself, and a forward pass does not write to them.
    """
    try:
        shared = None if _has_others() else _shared(model)
        if shared is None:
            return None
        # What is no part of a model, such as a trainer that it knows, is not copied.
        memo: dict[int, Any] = {id(item): item for item in shared}
        if is_large(model):
            memo |= {id(item): item for item in model.parameters()}
        memo |= hosted or {}
        replica = copy.deepcopy(model, memo)
        for module, name, function in _closures(model):
            setattr(memo[id(module)], name, _rebound(function, memo))
        replica.requires_grad_(False)
    except Exception:  # noqa: BLE001 - whatever the user's classes do when they are copied
        return None
    return replica if isinstance(replica, nn.Module) else None


def _has_others() -> bool:
    """Whether a forward pass may wait for other processes."""
    dist = torch.distributed
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _shared(model: nn.Module) -> list[Any] | None:
    """Return objects that the model holds and that are no part of it; None if it cannot be copied."""
    shared: list[Any] = []
    own = {id(module) for module in model.modules()}
    for module in model.modules():
        if _is_special(module):
            return None
        for name, value in vars(module).items():
            if name in _OWN or (_is_closure(value) and all(id(item) in own for item in _held(value))):
                continue
            if not _sort_out(value, shared, depth=0):
                return None
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        if type(tensor) not in (Tensor, nn.Parameter, nn.Buffer) or nn.parameter.is_lazy(tensor):
            return None
    return shared


def _is_closure(value: Any) -> bool:
    return isinstance(value, types.FunctionType) and bool(value.__closure__)


def _held(function: Any) -> list[Any]:
    """Return what a function of the script holds; a model may keep one that calls some of its parts."""
    return [cell.cell_contents for cell in function.__closure__]


def _closures(model: nn.Module) -> list[tuple[nn.Module, str, Any]]:
    """Return the functions that modules hold and that call parts of the model, and where they are."""
    every = ((module, name, value) for module in model.modules() for name, value in vars(module).items())
    return [item for item in every if _is_closure(item[2])]


def _rebound(function: Any, memo: Mapping[int, Any]) -> Any:
    """Return a function that calls the copies of the parts that this one calls."""
    cells = tuple(types.CellType(memo[id(item)]) for item in _held(function))
    code, name = function.__code__, function.__name__
    made = types.FunctionType(code, function.__globals__, name, function.__defaults__, cells)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def is_large(model: nn.Module) -> bool:
    """Whether a copy of the model would take more memory than a probe is worth."""
    return num_values(model) > module_tree.LARGE


def num_values(model: nn.Module) -> int:
    """Return how many numbers a model's parameters and buffers hold."""
    return sum(
        item.numel() for item in itertools.chain(module_tree.parameters(model), module_tree.buffers(model))
    )


def _is_special(module: nn.Module) -> bool:
    names = {kind.__name__ for kind in type(module).__mro__}
    return (
        any(getattr(module, hooks, None) for hooks in _HOOKS)
        or not names.isdisjoint(_WRAPPERS)
        or isinstance(module, torch.jit.ScriptModule)
        or getattr(module, "_compiled_call_impl", None) is not None
        or "forward" in vars(module)
        or any(map(_is_generator, _globals_of(type(module).forward)))
    )


def _globals_of(function: Any) -> list[Any]:
    """Return what a function can reach beside its arguments, by the names in it."""
    known, code = getattr(function, "__globals__", {}), getattr(function, "__code__", None)
    return [known[name] for name in code.co_names if name in known] if code is not None else []


def _is_generator(value: Any) -> bool:
    """Whether it draws from a state of its own, which is not put back after a probe."""
    numpy = sys.modules.get("numpy")
    others = () if numpy is None else tuple(getattr(numpy.random, name) for name in _NUMPY_GENERATORS)
    return isinstance(value, (*_GENERATORS, *others))


def _sort_out(value: Any, shared: list[Any], *, depth: int) -> bool:
    """Gather what is not copied; whether calling a copy then cannot reach the original."""
    if isinstance(value, list | tuple | set | dict):
        items = [*value.values()] if isinstance(value, dict) else [*value]
        return depth < _MAX_DEPTH and all(_sort_out(item, shared, depth=depth + 1) for item in items)
    if isinstance(value, types.BuiltinFunctionType):
        return not _is_generator(value.__self__)  # a method such as `rng.random`
    if isinstance(value, _PLAIN):
        return True
    if isinstance(value, types.FunctionType):
        return not value.__closure__
    if isinstance(value, functools.partial | types.MethodType):
        return False
    shared.append(value)
    return not any(map(_is_generator, (value, *getattr(value, "__dict__", {}).values())))


def copy_inputs(values: Any, depth: int = 0) -> Any:
    """Return arguments with copies of all tensors; raise if they hold what cannot be copied safely."""
    if isinstance(values, Tensor):
        if type(values) is not Tensor:
            raise TypeError("a subclass of a tensor")
        return to_host(values)
    if isinstance(values, dict) and depth < _MAX_DEPTH:
        return {key: copy_inputs(item, depth + 1) for key, item in dict.items(values)}
    if type(values) in (list, tuple) and depth < _MAX_DEPTH:
        return type(values)(copy_inputs(item, depth + 1) for item in values)
    if values is None or isinstance(values, bool | int | float | str):
        return values
    raise TypeError("an object that a forward pass may change")


def run(  # limits: private to this package
    replica: nn.Module,
    given: tuple[Any, Any],
    see: Callable[[str, Any], None] | None = None,
    *,
    seed: int = _SEED,
) -> Any:
    """Return what the replica gives, with the same random numbers for one seed; `see` gets all operations."""
    args, kwargs = copy_inputs(given[0]), copy_inputs(given[1])
    numpy = sys.modules.get("numpy")
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if numpy is not None:
        numpy.random.seed(seed)
    try:
        with contextlib.nullcontext() if see is None else _EachOperation(see):
            return replica(*args, **kwargs)
    except Exception as error:
        if is_out_of_memory(error):
            raise _TooLittleMemoryError(str(error)) from error
        raise


class _TooLittleMemoryError(BaseException):
    """Ends the whole probe. An `Exception` could be taken for an answer of the model."""


class _EachOperation(TorchDispatchMode):
    """Tells of each operation: its name and what it gives."""

    def __init__(self, see: Callable[[str, Any], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._see = see

    def __torch_dispatch__(  # limits: torch calls it like this
        self, func: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self._see(func.overloadpacket.__name__, result)
        return result
