"""Compiled code against eager code on a script's own models and batches, in the script's process.

Owns the audit: the first training call of each outermost model is kept, then copies of it run eagerly, in
float64 as judge, and compiled. Where torch's own comparison finds more than rounding, the innermost module
that is wrong when it is compiled alone is looked for. Then the process ends.
"""

import copy
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import process as _processes  # noqa: F401 - as below
from concurrent.futures import thread as _threads  # noqa: F401 - registers its own end, which is late then
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from truestep.watch.script import module_tree
from truestep.watch.script.tape import Tape

RESULT_FILE = "compiled.json"
"""In the folder of evidence."""
_NUM_CALLS_OF_FIRST = 12
"""Then the audit begins: models that train in turns with the first one have been called."""

_TOLERANCE = 1e-4
"""As in torch's own tests of its compiler: what is closer is rounding, whatever eager code has."""

Call = tuple[tuple[Any, ...], dict[str, Any]]
Values = dict[str, Tensor]
PlacedCall = tuple[Call, tuple[str | None, int | None]]
"""A call of a module, and the user's line that makes it."""


def audit(_asked: Any, tape: Tape) -> None:
    """Keep the first training call of each outermost model, then compare and end."""
    audited = _Audit(Path(tape.path).parent / RESULT_FILE, tape.sites.is_own)
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
    # Before torch's pools of threads are closed, which is long before atexit.
    threading._register_atexit(audited.end)  # type: ignore[attr-defined]


class _Model(NamedTuple):
    """A model as it was at its first call."""

    live: nn.Module
    copy: nn.Module
    call: PlacedCall


class _Audit:
    """The outermost models that train, and what compiling them gives."""

    def __init__(self, path: Path, is_own: Callable[[str], bool]) -> None:
        self._path = path
        self._is_own = is_own
        self._models: list[_Model] = []
        self._num_calls_of_first = 0
        self.restore: Callable[[], None] = lambda: None

    def take(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep the first call of an outermost module that trains."""
        module = getattr(module, "_orig_mod", module)
        if not (torch.is_grad_enabled() and module_tree.is_training(module)):
            return
        if not any(item.requires_grad for item in module.parameters()):
            return
        if not any(item.live is module for item in self._models):
            call = (_detached((args, kwargs)), self._calling_line())
            self._models.append(_Model(module, copy.deepcopy(module), call))
        self._num_calls_of_first += self._models[0].live is module
        if self._num_calls_of_first == _NUM_CALLS_OF_FIRST:
            self.end()

    def end(self) -> None:
        """Compare what there is, write down what is beyond rounding, and end the process."""
        self.restore()
        torch.compiler.set_stance("default")
        try:
            if not self._models:
                raise RuntimeError("no module was called for training")
            with _empty_caches():
                found = self._compare()
        except Exception as error:  # noqa: BLE001 - reported: a model may do anything
            found = {"reason": f"{type(error).__name__}: {str(error)[:500]}"}
        self._path.write_text(json.dumps(found))
        sys.stdout.flush()
        os._exit(0)

    def _compare(self) -> dict[str, Any]:
        """Return what of the models is beyond rounding, with the module; if nothing is, who judged it."""
        found: dict[str, Any] = {}
        for model in self._models:
            found = {**_check(model.copy, model.call[0]), "model": type(model.copy).__name__}
            if found["is_beyond"]:
                return {**found, **self._locate(model.copy, model.call)}
        return found

    def _locate(self, model: nn.Module, call: PlacedCall) -> dict[str, Any]:
        """Return the innermost module that differs when it is compiled alone, and the line that calls it."""
        calls = self._calls_of_children(model, call[0])
        path, place = "", call[1]
        found: dict[str, Any] = {"module": "", "kind": type(model).__name__}
        candidates = iter(calls)
        while name := next(candidates, None):
            if _caller(name, calls) != path:
                continue
            child, (inner_call, inner_place) = model.get_submodule(name), calls[name]
            if (inner := _check_alone(child, inner_call)) is not None:
                path, place, candidates = name, inner_place, iter(calls)
                found = {"module": name, "kind": type(child).__name__, **inner}
        return {**found, "file": place[0], "line": place[1]}

    def _calls_of_children(self, model: nn.Module, call: Call) -> dict[str, PlacedCall]:
        """Return the first call of each submodule, in the order of calls."""
        found: dict[str, PlacedCall] = {}
        twin = copy.deepcopy(model)

        def keep(name: str) -> Callable[..., None]:
            def hook(_module: nn.Module, args: Any, kwargs: Any) -> None:
                found.setdefault(name, (_detached((args, kwargs)), self._calling_line()))

            return hook

        for name, module in twin.named_modules():
            if name:
                module.register_forward_pre_hook(keep(name), with_kwargs=True)
        values_of_call(twin, call)
        return found

    def _calling_line(self) -> tuple[str | None, int | None]:
        """Return the innermost line of the user's that is running."""
        frame = sys._getframe(2)
        while frame is not None:
            if self._is_own(frame.f_code.co_filename):
                return frame.f_code.co_filename, frame.f_lineno
            frame = frame.f_back  # type: ignore[assignment]
        return None, None


@contextmanager
def _empty_caches() -> Iterator[None]:
    """Compile anew: what a cache holds may have been compiled by another torch, or a patched one."""
    from torch._dynamo import config as capturing  # noqa: PLC0415
    from torch._functorch import config as differentiating  # noqa: PLC0415
    from torch._inductor import config  # noqa: PLC0415
    from torch._inductor.utils import fresh_cache  # noqa: PLC0415

    with (
        fresh_cache(),
        config.patch(fx_graph_cache=False, fx_graph_remote_cache=False, fallback_random=True),
        differentiating.patch(enable_autograd_cache=False),
        capturing.patch(automatic_dynamic_local_pgo=False),
    ):
        yield


def _check(module: nn.Module, call: Call) -> dict[str, Any]:
    """Return whether a value of a compiled module is beyond rounding, which, how far off, and who judges."""
    eager, judge, name = values_of_call(module, call), None, "eager code with the same draws"
    if same(eager, values_of_call(module, call, seed=1), judge=None)[0]:
        try:
            judge, name = values_of_call(_doubled(module), _mapped(call, _to_double)), "float64"
        except Exception:  # noqa: BLE001 - not every module computes in float64
            name = "eager code"
    torch._dynamo.reset()
    counted = torch._dynamo.utils.counters["stats"]
    counted["unique_graphs"] = 0
    compiled = values_of_call(module, call, is_compiled=True)
    if not counted["unique_graphs"]:
        raise RuntimeError("torch.compile finds nothing in the model that it can compile")
    is_same, words = same(eager, compiled, judge=judge)
    return {"is_beyond": not is_same, "distance": words, "judge": name}


def same(eager: Values, compiled: Values, *, judge: Values | None) -> tuple[bool, str]:
    """Return whether values are the same but for rounding, and if not, which is not and how far off it is."""
    told: list[str] = []
    is_same = eager.keys() == compiled.keys() and torch._dynamo.utils.same(
        eager,
        compiled,
        judge,
        tol=_TOLERANCE,
        equal_nan=True,
        log_error=lambda text, *values: told.append(text % values if values else text),
    )
    return is_same, "; ".join(reversed(told))


def values_of_call(module: nn.Module, call: Call, *, seed: int = 0, is_compiled: bool = False) -> Values:
    """Run a copy forward and backward; return outputs, buffers, and gradients of parameters and inputs."""
    module = copy.deepcopy(module)
    args, kwargs = _detached(call)
    inputs = [item for item in pytree.tree_leaves((args, kwargs)) if isinstance(item, Tensor)]
    # A module may change its input in place, which a leaf that needs a gradient does not allow.
    args, kwargs = _mapped((args, kwargs), lambda item: item.clone() if item.requires_grad else item)
    torch.manual_seed(seed)
    compute = torch.compile(module, dynamic=False) if is_compiled else module
    outputs = [_as_real(item) for item in _leaves(compute(*args, **kwargs))]
    found = {f"output {place}": item for place, item in enumerate(outputs)}
    total = sum((item.double() * _weights(item)).sum() for item in outputs)
    if isinstance(total, Tensor) and total.requires_grad:
        total.backward()
        named: dict[str, Tensor] = dict(module.named_parameters())
        named |= {f"input {place}": item for place, item in enumerate(inputs)}
        found |= {f"gradient of {name}": item.grad for name, item in named.items() if item.grad is not None}
    found |= {f"buffer {name}": item for name, item in module.named_buffers()}
    return {name: _as_real(item.detach()).clone() for name, item in found.items()}


def _mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    return pytree.tree_map_only(Tensor, change, value)


def _detached(value: Any) -> Any:
    """Return a value with copies of its tensors, which need gradients as before."""
    return _mapped(value, lambda item: item.detach().clone().requires_grad_(item.requires_grad))


def _doubled(module: nn.Module) -> nn.Module:
    """Return a copy of a module in float64."""
    twin = copy.deepcopy(module).double()
    for item in (*twin.parameters(), *twin.buffers()):
        item.data = _to_double(item.data)  # double() leaves complex tensors
    return twin


def _to_double(item: Tensor) -> Tensor:
    if item.is_complex():
        return item.to(torch.complex128)
    return item.detach().double().requires_grad_(item.requires_grad) if item.is_floating_point() else item


def _leaves(value: Any) -> list[Tensor]:
    found = pytree.tree_leaves(value)
    if not any(isinstance(leaf, Tensor) for leaf in found) and hasattr(value, "__dict__"):
        found = pytree.tree_leaves(dict(vars(value)))
    tensors = [leaf for leaf in found if isinstance(leaf, Tensor)]
    return [leaf for leaf in tensors if leaf.is_floating_point() or leaf.is_complex()]


def _as_real(item: Tensor) -> Tensor:
    item = item.to_dense() if item.is_sparse else item
    return torch.view_as_real(item.resolve_conj()) if item.is_complex() else item


def _weights(item: Tensor) -> Tensor:
    """Fixed numbers, so that every output's gradient counts."""
    return torch.cos(torch.arange(item.numel(), dtype=torch.float64, device=item.device)).reshape(item.shape)


def _check_alone(module: nn.Module, call: Call) -> dict[str, Any] | None:
    """Return what is beyond rounding in a submodule that is compiled alone; None if nothing is."""
    try:
        worst = _check(module, call)
    except Exception:  # noqa: BLE001 - one that cannot be compiled alone is left out
        return None
    return worst if worst["is_beyond"] else None


def _caller(name: str, calls: dict[str, PlacedCall]) -> str:
    """Return the innermost module around another that is called: a ModuleList is not."""
    while name:
        name = name.rpartition(".")[0]
        if name in calls:
            break
    return name
