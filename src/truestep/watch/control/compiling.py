"""Compiled code against eager code on a script's own model and batches, in the script's process.

Owns the audit: the model's first training calls are kept, then copies of the model run eagerly, in float64 as
judge, and compiled by each stage of torch's compiler. Where a stage is farther from the judge than rounding
goes, the innermost module and operation that show it are looked for. The process ends with the audit.
"""

import copy
import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from truestep.watch.script.tape import Tape

RESULT_FILE = "compiled.json"
"""In the folder of evidence."""
_NUM_CALLS = 3
_STAGES = ("eager", "aot_eager", "aot_eager_decomp_partition", "inductor")
_TRIED = ("aot_eager", "inductor")
_TIMES, _ROUNDINGS = 10.0, 200.0
"""Beyond rounding: more than so many times eager code's distance from the judge, and so many roundings."""
_MAX_OPERATIONS = 40
_MAX_S = 240.0

Call = tuple[tuple[Any, ...], dict[str, Any]]
Values = dict[str, Tensor]


def audit(compare: Any, tape: Tape) -> None:
    """Keep the model's first training calls, then compare and end: by `module:function`, if one is given."""
    audited = _Audit(Path(tape.path).parent / RESULT_FILE, tape.sites.is_own)
    if isinstance(compare, str):
        home, name = compare.split(":")
        audited.compare = getattr(import_module(home), name)
    torch.compiler.set_stance("force_eager")
    call: Any = nn.Module.__call__
    depth = 0

    def observe(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        nonlocal depth
        if not depth:
            audited.take(module, args, kwargs)
        depth += 1
        try:
            return call(module, *args, **kwargs)
        finally:
            depth -= 1

    nn.Module.__call__ = observe  # type: ignore[method-assign]
    audited.restore = lambda: setattr(nn.Module, "__call__", call)
    import atexit  # noqa: PLC0415

    atexit.register(audited.end)


class _Audit:
    """One model, some of its calls, and what compiling it gives."""

    def __init__(self, path: Path, is_own: Callable[[str], bool]) -> None:
        self._path = path
        self._is_own = is_own
        self._model: nn.Module | None = None
        self._live: nn.Module | None = None
        self._calls: list[Call] = []
        self._begun = 0.0
        self.restore: Callable[[], None] = lambda: None
        self.compare: Callable[..., dict[str, Any]] | None = None
        """What is compared in place of compiled code."""
        self.said: dict[str, Any] = {"breaks": [], "recompilations": [], "found": None, "stages": {}}

    def take(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep a call of the first outermost module that trains."""
        module = getattr(module, "_orig_mod", module)
        is_trained = torch.is_grad_enabled() and module.training
        if not is_trained or self._live not in (None, module):
            return
        if not any(item.requires_grad for item in module.parameters()):
            return
        if self._live is None:
            self._live, self._model = module, copy.deepcopy(module)
        self._calls.append(_detached((args, kwargs)))
        if len(self._calls) == _NUM_CALLS:
            self.end()

    def end(self) -> None:
        """Make the comparison with what there is, write it down, and end the process."""
        self.restore()
        torch.compiler.set_stance("default")
        self._begun = time.monotonic()
        try:
            if self._model is None:
                self.said["reason"] = "no module was called for training"
            elif self.compare is not None:
                self.said = self.compare(self._model, self._calls[0], is_own=self._is_own)
            else:
                with _surroundings():
                    self._compare(self._model)
        except Exception as error:  # noqa: BLE001 - told: a model may do anything
            self.said["reason"] = f"{type(error).__name__}: {str(error)[:500]}"
        self._path.write_text(json.dumps(self.said))
        sys.stdout.flush()
        os._exit(0)

    def _compare(self, model: nn.Module) -> None:
        call = self._calls[0]
        self.said["model"] = type(model).__name__
        self._list_breaks(model)
        is_random = is_random_module(model, call)
        self.said["judge"] = "eager, with the same draws" if is_random else "float64"
        for stage in _TRIED:
            worst = _check(model, call, stage, is_random=is_random)
            self.said["stages"][stage] = worst
            if worst["is_beyond"]:
                self.said["found"] = self._locate(model, call, stage, is_random=is_random)
                return

    def _list_breaks(self, model: nn.Module) -> None:
        """List graph breaks and recompilations with the user's lines."""
        breaks, again = _Lines(), _Lines()
        with _listening({"graph_breaks": breaks, "recompiles": again}):
            compiled = torch.compile(copy.deepcopy(model), backend="eager")
            for args, kwargs in self._calls:
                compiled(*args, **kwargs)
        self.said["breaks"] = _places(breaks.texts, self._is_own)
        self.said["recompilations"] = _places(again.texts, self._is_own)

    def _locate(self, model: nn.Module, call: Call, stage: str, *, is_random: bool) -> dict[str, Any]:
        """Find the innermost module that differs when compiled alone, the operation in it, and the stage."""
        calls = _calls_of_children(model, call)
        path, module = "", model
        while True:
            inner = next(
                (
                    name
                    for name in calls
                    if name.rpartition(".")[0] == path
                    and _differs(model.get_submodule(name), calls[name], stage, is_random=is_random)
                ),
                None,
            )
            if inner is None:
                break
            path, module, call = inner, model.get_submodule(inner), calls[inner]
        found: dict[str, Any] = {"module": path, "kind": type(module).__name__, "operation": None}
        found |= _check(module, call, stage, is_random=is_random)
        found["stage"] = next(
            (name for name in _STAGES if _differs(module, call, name, is_random=is_random)), stage
        )
        return found | self._find_operation(module, call, stage)

    def _find_operation(self, module: nn.Module, call: Call, stage: str) -> dict[str, Any]:
        """Compile each operation of a module alone; return the first that is off."""
        recorder = _Recorder(self._is_own)
        with recorder:
            values_of_call(copy.deepcopy(module), call)
        for function, args, kwargs, place in recorder.calls[:_MAX_OPERATIONS]:
            if time.monotonic() - self._begun > _MAX_S:
                break
            try:
                is_off = _operation_differs(function, args, kwargs, stage)
            except Exception:  # noqa: BLE001 - not every operation can be compiled alone
                continue
            if is_off:
                return {"operation": str(function), "file": place[0], "line": place[1]}
        return {}


def _detached(value: Any) -> Any:
    return pytree.tree_map_only(
        Tensor, lambda item: item.detach().clone().requires_grad_(item.requires_grad), value
    )


def as_double(value: Any) -> Any:
    """Return a value with its floating-point tensors in float64."""

    def change(item: Tensor) -> Tensor:
        return item.detach().double() if item.is_floating_point() else item

    return pytree.tree_map_only(Tensor, change, value)


@contextmanager
def _surroundings() -> Iterator[None]:
    """No cache: what was compiled before may have been compiled by another torch, or a patched one."""
    from torch._inductor import config  # noqa: PLC0415

    with config.patch(force_disable_caches=True, fallback_random=True):
        yield


def _leaves(value: Any) -> list[Tensor]:
    found = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
    if not found and hasattr(value, "__dict__"):
        found = [leaf for leaf in pytree.tree_leaves(dict(vars(value))) if isinstance(leaf, Tensor)]
    return [leaf for leaf in found if leaf.is_floating_point()]


def values_of_call(module: nn.Module, call: Call, *, compiled: Callable[..., Any] | None = None) -> Values:
    """Run forward and backward, and return outputs, gradients and buffers."""
    args, kwargs = _detached(call)
    torch.manual_seed(0)
    compute = module if compiled is None else compiled
    outputs = _leaves(compute(*args, **kwargs))
    found = {f"output {place}": item for place, item in enumerate(outputs)}
    total = sum((item.double() * _weights(item)).sum() for item in outputs)
    if isinstance(total, Tensor) and total.requires_grad:
        total.backward()
        named = dict(module.named_parameters())
        found |= {f"gradient of {name}": item.grad for name, item in named.items() if item.grad is not None}
    found |= {f"buffer {name}": item for name, item in module.named_buffers() if item.is_floating_point()}
    return {name: item.detach().double().clone() for name, item in found.items()}


def _weights(item: Tensor) -> Tensor:
    """Fixed numbers, so that every output's gradient counts."""
    return torch.cos(torch.arange(item.numel(), dtype=torch.float64, device=item.device)).reshape(item.shape)


def is_random_module(module: nn.Module, call: Call) -> bool:
    """Whether a module gives other outputs with another seed."""
    results = []
    for seed in (0, 1):
        args, kwargs = _detached(call)
        twin = copy.deepcopy(module)
        torch.manual_seed(seed)
        results.append(_leaves(twin(*args, **kwargs)))
    return any(not torch.equal(one, other) for one, other in zip(*results, strict=True))


def _check(module: nn.Module, call: Call, stage: str, *, is_random: bool) -> dict[str, Any]:
    """Return which value of a compiled module is farthest from the judge, and whether beyond rounding."""
    eager = values_of_call(copy.deepcopy(module), call)
    judge = eager
    if not is_random:
        try:
            judge = values_of_call(copy.deepcopy(module).double(), as_double(call))
        except Exception:  # noqa: BLE001 - not every module computes in float64: eager code is the judge
            judge = eager
    torch._dynamo.reset()
    twin = copy.deepcopy(module)
    compiled = values_of_call(twin, call, compiled=torch.compile(twin, backend=stage, dynamic=False))
    return _worst(judge, eager, compiled, eps=_eps_of(module, call))


def _differs(module: nn.Module, call: Call, stage: str, *, is_random: bool) -> bool:
    try:
        return bool(_check(module, call, stage, is_random=is_random)["is_beyond"])
    except Exception:  # noqa: BLE001 - one that cannot be compiled alone is left out
        return False


def _eps_of(*values: Any) -> float:
    tensors = [item for value in values for item in _all_tensors(value) if item.is_floating_point()]
    return max((torch.finfo(item.dtype).eps for item in tensors), default=1.2e-7)


def _all_tensors(value: Any) -> list[Tensor]:
    if isinstance(value, nn.Module):
        return list(value.parameters())
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def _worst(judge: Values, eager: Values, compiled: Values, *, eps: float) -> dict[str, Any]:
    worst: dict[str, Any] = {"is_beyond": False, "value": "", "apart": 0.0, "eager_apart": 0.0}
    for name, exact in judge.items():
        if name not in compiled or compiled[name].shape != exact.shape:
            return {**worst, "is_beyond": True, "value": name, "apart": None}
        size = float(exact.norm()) or 1.0
        apart = float((compiled[name] - exact).norm()) / size
        own = float((eager[name] - exact).norm()) / size
        if math.isnan(apart) and math.isnan(own):
            continue
        excess = apart / max(_TIMES * own, _ROUNDINGS * eps)
        if not worst["value"] or not excess <= worst["excess"]:
            is_beyond = not excess <= 1.0
            found = {"is_beyond": is_beyond, "value": name, "apart": apart, "eager_apart": own}
            worst = {**found, "excess": excess}
    worst.pop("excess", None)
    return worst


def _calls_of_children(model: nn.Module, call: Call) -> dict[str, Call]:
    """Return the first call of each submodule, in the order of calls."""
    found: dict[str, Call] = {}
    twin = copy.deepcopy(model)

    def keep(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, args: Any, kwargs: Any) -> None:
            found.setdefault(name, _detached((args, kwargs)))

        return hook

    for name, module in twin.named_modules():
        if name:
            module.register_forward_pre_hook(keep(name), with_kwargs=True)
    values_of_call(twin, call)
    return found


class _Recorder(TorchDispatchMode):
    """Notes the different operations of a module's forward and backward pass, with their arguments."""

    def __init__(self, is_own: Callable[[str], bool]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._is_own = is_own
        self._known: set[str] = set()
        self.calls: list[tuple[Any, Any, Any, tuple[str | None, int | None]]] = []

    def __torch_dispatch__(  # limits: torch calls it like this
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        shapes = [tuple(leaf.shape) for leaf in pytree.tree_leaves(args) if isinstance(leaf, Tensor)]
        has_floats = any(item.is_floating_point() for item in _all_tensors(args))
        is_view = any(item.alias_info for item in func._schema.arguments)
        if has_floats and not is_view and f"{func}{shapes}" not in self._known:
            self._known.add(f"{func}{shapes}")
            self.calls.append((func, _detached(args), _detached(kwargs), own_place(self._is_own)))
        return func(*args, **kwargs)


def own_place(is_own: Callable[[str], bool]) -> tuple[str | None, int | None]:
    """Return the user's line that calls, below the call of the model by an audit."""
    frame = sys._getframe(2)  # of the module; the script's call of the model comes above our own
    while frame is not None and frame.f_code.co_filename != __file__:
        if is_own(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return None, None


def _operation_differs(function: Any, args: Any, kwargs: Any, stage: str) -> bool:
    """Whether one operation is beyond rounding when it is compiled alone."""
    flat, spec = pytree.tree_flatten((args, kwargs))
    tensors = [item.detach() if isinstance(item, Tensor) else None for item in flat]

    def call(*given: Any) -> Any:
        values = [item if item is not None else known for item, known in zip(given, flat, strict=True)]
        again, named = pytree.tree_unflatten(values, spec)
        return function(*again, **named)

    def run(compute: Callable[..., Any], inputs: list[Any]) -> Values:
        torch.manual_seed(0)
        with torch.no_grad():
            outputs = _leaves(compute(*inputs))
        return {str(place): item.double() for place, item in enumerate(outputs)}

    eager = run(call, tensors)
    try:
        judge = run(call, [item if item is None else as_double(item) for item in tensors])
    except Exception:  # noqa: BLE001 - an argument says float32: eager code is the judge
        judge = eager
    if any(judge[name].shape != eager[name].shape for name in judge):
        judge = eager
    torch._dynamo.reset()
    compiled = run(torch.compile(call, backend=stage, dynamic=False), tensors)
    return bool(_worst(judge, eager, compiled, eps=_eps_of(args))["is_beyond"])


class _Lines(logging.Handler):
    """Keeps what torch's compiler reports."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@contextmanager
def _listening(handlers: dict[str, _Lines]) -> Iterator[None]:
    """Hear the compiler's reports of some kinds, and print none."""
    homes = {"graph_breaks": "torch._dynamo.symbolic_convert.__graph_breaks"}
    homes["recompiles"] = "torch._dynamo.guards.__recompiles"
    torch._logging._internal.set_logs(graph_breaks=True, recompiles=True)
    kept = []
    for kind, handler in handlers.items():
        logger = logging.getLogger(homes[kind])
        kept.append((logger, logger.handlers[:], logger.propagate))
        logger.handlers[:], logger.propagate = [handler], False
    try:
        yield
    finally:
        for logger, before, propagate in kept:
            logger.handlers[:], logger.propagate = before, propagate


def _places(texts: list[str], is_own: Callable[[str], bool]) -> list[dict[str, Any]]:
    """Return one entry for each line; what has none is left out if the same is said of a line."""
    found = {(item["file"], item["line"]): item for item in (_first_place(text, is_own) for text in texts)}
    placed = [item for item in found.values() if item["file"]]
    return placed or list(found.values())


def _first_place(text: str, is_own: Callable[[str], bool]) -> dict[str, Any]:
    """Return what the compiler said, shortened, with the last line of the user's that it names."""
    import re  # noqa: PLC0415

    places = [*re.findall(r'File "([^"]+)", line (\d+)', text), *re.findall(r"in (/\S+?):(\d+)", text)]
    own = [(file, int(line)) for file, line in places if is_own(file)]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith("Explanation:")), lines[0] if lines else "")
    guard = next((line for line in lines if line.startswith("- ")), None)
    file, line = own[-1] if own else (None, None)
    return {"file": file, "line": line, "text": (guard or said)[:300]}
