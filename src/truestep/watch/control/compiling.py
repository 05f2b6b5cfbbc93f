"""Compiled code against eager code on a script's own models and batches, in the script's process.

Owns the audit: the first training call of each outermost model is kept, then copies of it run eagerly, in
float64 as judge, and compiled. Where compiled code is farther from the judge than rounding goes (`passes`),
the innermost module that is wrong when it is compiled alone is looked for. Then the process ends.
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
from torch import nn

from truestep.watch.control import passes
from truestep.watch.control.passes import Call
from truestep.watch.script import parts
from truestep.watch.script.tape import Tape

RESULT_FILE = "compiled.json"
"""In the folder of evidence."""
_NUM_CALLS_OF_FIRST = 12
"""Then the audit begins: models that train in turns with the first one have been called."""

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
        if not (torch.is_grad_enabled() and parts.is_training(module)):
            return
        if not any(item.requires_grad for item in module.parameters()):
            return
        if not any(item.live is module for item in self._models):
            call = (passes.detached((args, kwargs)), self._calling_line())
            self._models.append(_Model(module, copy.deepcopy(module), call))
        self._num_calls_of_first += self._models[0].live is module
        if self._num_calls_of_first == _NUM_CALLS_OF_FIRST:
            self.end()

    def end(self) -> None:
        """Compare what there is, write down the value that is farthest off, and end the process."""
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
        """Return the value of all models that is farthest off, with the module if it is beyond rounding."""
        farthest: dict[str, Any] = {}
        for model in self._models:
            worst = {**_check(model.copy, model.call[0]), "model": type(model.copy).__name__}
            if worst["is_beyond"]:
                return {**worst, **self._locate(model.copy, model.call)}
            if not worst["is_judged"]:
                raise RuntimeError("eager code is too far from the judge to judge compiled code by it")
            farthest = max(farthest, worst, key=lambda item: item.get("apart") or 0.0)
        return farthest

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
                found.setdefault(name, (passes.detached((args, kwargs)), self._calling_line()))

            return hook

        for name, module in twin.named_modules():
            if name:
                module.register_forward_pre_hook(keep(name), with_kwargs=True)
        passes.values_of_call(twin, call)
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
    """Return which value of a compiled module is farthest from the judge, and whether beyond rounding."""
    eager = passes.values_of_call(copy.deepcopy(module), call)
    judge, name = eager, "eager code with the same draws"
    if not passes.is_random_module(module, call):
        try:
            judge, name = passes.values_of_call(passes.doubled(module), passes.as_double(call)), "float64"
        except Exception:  # noqa: BLE001 - not every module computes in float64
            name = "eager code"
    torch._dynamo.reset()
    twin = copy.deepcopy(module)
    counted = torch._dynamo.utils.counters["stats"]
    counted["unique_graphs"] = 0
    compiled = passes.values_of_call(twin, call, compiled=torch.compile(twin, dynamic=False))
    if not counted["unique_graphs"]:
        raise RuntimeError("torch.compile finds nothing in the model that it can compile")
    others = passes.nudged_passes(module, call)
    worst = passes.compare(judge, compiled, eager=eager, others=others, eps=passes.eps_of(module, call))
    return {**worst, "judge": name}


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
