"""Compiled code against eager code on a script's own models and batches, in the script's process.

Owns the audit: the first training calls of each outermost model are kept, then copies of it run eagerly, in
float64 as judge, and compiled by each stage of torch's compiler. Where a stage is farther from the judge than
rounding goes (`passes`), the innermost module and its operation (`graphs`) are looked for. Then it ends.
"""

import copy
import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import process as _processes  # noqa: F401 - as below
from concurrent.futures import thread as _threads  # noqa: F401 - registers its own end, which is late then
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from truestep.watch.control import graphs, passes
from truestep.watch.control.passes import Call
from truestep.watch.script import parts
from truestep.watch.script.tape import Tape

RESULT_FILE = "compiled.json"
"""In the folder of evidence."""
_NUM_CALLS = 3
_NUM_CALLS_OF_FIRST = 12
"""Then the audit begins: models that train in turns with the first one have been called."""
_STAGES = ("eager", "aot_eager", "aot_eager_decomp_partition", "inductor")
_TRIED = _STAGES[1:]
"""In this order: a search in an early stage compiles no kernels."""
_MAX_SEARCH_S = 300.0
"""For the operation. Without one, the module is known."""


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
    # Before torch's pools of threads are closed, which is long before atexit.
    threading._register_atexit(audited.end)  # type: ignore[attr-defined]


class _Model:
    """One model as it was at its first call, and some of its calls."""

    def __init__(self, live: nn.Module) -> None:
        self.live = live
        self.copy = copy.deepcopy(live)
        self.calls: list[Call] = []
        self.num_calls = 0


class _Audit:
    """The outermost models that train, and what compiling them gives."""

    def __init__(self, path: Path, is_own: Callable[[str], bool]) -> None:
        self._path = path
        self._is_own = is_own
        self._models: list[_Model] = []
        self.restore: Callable[[], None] = lambda: None
        self.compare: Callable[..., dict[str, Any]] | None = None
        """What is compared in place of compiled code."""
        self.said: dict[str, Any] = {"breaks": [], "recompilations": [], "found": None, "stages": {}}

    def take(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Keep a call of an outermost module that trains."""
        module = getattr(module, "_orig_mod", module)
        if not (torch.is_grad_enabled() and parts.is_training(module)):
            return
        if not any(item.requires_grad for item in module.parameters()):
            return
        model = next((item for item in self._models if item.live is module), None)
        if model is None:
            model = _Model(module)
            self._models.append(model)
        model.num_calls += 1
        if len(model.calls) < _NUM_CALLS:
            model.calls.append(passes.detached((args, kwargs)))
        enough = _NUM_CALLS_OF_FIRST if self.compare is None else _NUM_CALLS
        if self._models[0].num_calls == enough:
            self.end()

    def end(self) -> None:
        """Make the comparison with what there is, write it down, and end the process."""
        self.restore()
        torch.compiler.set_stance("default")
        try:
            if not self._models:
                self.said["reason"] = "no module was called for training"
            elif self.compare is not None:
                first = self._models[0]
                self.said = self.compare(first.copy, first.calls[0], is_own=self._is_own)
            else:
                with _surroundings():
                    self._compare()
        except Exception as error:  # noqa: BLE001 - told: a model may do anything
            self.said["reason"] = f"{type(error).__name__}: {str(error)[:500]}"
        self._path.write_text(json.dumps(self.said))
        sys.stdout.flush()
        os._exit(0)

    def _compare(self) -> None:
        self.said["model"] = ", ".join(dict.fromkeys(type(item.live).__name__ for item in self._models))
        for model in self._models:
            self._list_breaks(model)
        for model in self._models:
            call = model.calls[0]
            for stage in _TRIED:
                worst = _check(model.copy, call, stage)
                self._note(stage, worst)
                if worst["is_beyond"]:
                    self.said["found"] = self._locate(model.copy, call, stage)
                    return
                if not worst["is_judged"]:
                    raise RuntimeError("eager code is too far from the judge to judge compiled code by it")

    def _note(self, stage: str, worst: dict[str, Any]) -> None:
        """Keep the farthest value of all models, and who judged it."""
        before = self.said["stages"].get(stage)
        if before is None or worst["is_beyond"] or (worst["apart"] or 0.0) > (before["apart"] or 0.0):
            self.said["stages"][stage] = worst
            self.said["judge"] = worst["judge"]

    def _list_breaks(self, model: _Model) -> None:
        """List graph breaks and recompilations with the user's lines."""
        breaks, again = _Lines(), _Lines()
        torch._dynamo.reset()
        with _listening({"graph_breaks": breaks, "recompiles": again}):
            compiled = torch.compile(copy.deepcopy(model.copy), backend="eager")
            for args, kwargs in model.calls:
                compiled(*args, **kwargs)
        self.said["breaks"] += _places(breaks.texts, self._is_own)
        self.said["recompilations"] += _places(again.texts, self._is_own)

    def _locate(self, model: nn.Module, call: Call, stage: str) -> dict[str, Any]:
        """Find the innermost module that differs when compiled alone, the operation in it, and the stage."""
        calls = _calls_of_children(model, call)
        path, module, worst = "", model, self.said["stages"][stage]
        candidates = iter(calls)
        while name := next(candidates, None):
            if _caller(name, calls) == path and (inner := _check_alone(model, name, calls[name], stage)):
                path, module, call, worst = name, model.get_submodule(name), calls[name], inner
                candidates = iter(calls)
        found = {"module": path, "kind": type(module).__name__, "model": type(model).__name__, **worst}
        earlier = (item for item in _STAGES[: _STAGES.index(stage)] if _check_alone(module, "", call, item))
        found |= {"stage": next(earlier, stage), "operation": None}
        return found | self._find_operation(module, call, stage)

    def _find_operation(self, module: nn.Module, call: Call, stage: str) -> dict[str, Any]:
        """Name the first operation with which the module is off, and the user's line that calls it."""
        end = time.monotonic() + _MAX_SEARCH_S
        try:
            node = graphs.find_operation(module, call, stage=stage, is_in_time=lambda: time.monotonic() < end)
        except Exception:  # noqa: BLE001 - not every graph can be cut: the module is known
            return {}
        if node is None:
            return {}
        place = _first_place(node.meta.get("stack_trace") or "", self._is_own)
        return {"operation": str(node.target), "file": place["file"], "line": place["line"]}


@contextmanager
def _surroundings() -> Iterator[None]:
    """An empty cache: what was compiled before may have been compiled by another torch, or a patched one."""
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


def _check(module: nn.Module, call: Call, stage: str) -> dict[str, Any]:
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
    compiled = passes.values_of_call(twin, call, compiled=torch.compile(twin, backend=stage, dynamic=False))
    if not counted["unique_graphs"]:
        raise RuntimeError("torch.compile finds nothing in the model that it can compile")
    others = passes.nudged_passes(module, call)
    worst = passes.compare(judge, compiled, eager=eager, others=others, eps=passes.eps_of(module, call))
    return {**worst, "judge": name}


def _check_alone(model: nn.Module, name: str, call: Call, stage: str) -> dict[str, Any] | None:
    """Return what is beyond rounding in a submodule that is compiled alone; None if nothing is."""
    try:
        worst = _check(model.get_submodule(name), call, stage)
    except Exception:  # noqa: BLE001 - one that cannot be compiled alone is left out
        return None
    return worst if worst["is_beyond"] else None


def _caller(name: str, calls: dict[str, Call]) -> str:
    """Return the innermost module around another that is called: a ModuleList is not."""
    while name:
        name = name.rpartition(".")[0]
        if name in calls:
            break
    return name


def _calls_of_children(model: nn.Module, call: Call) -> dict[str, Call]:
    """Return the first call of each submodule, in the order of calls."""
    found: dict[str, Call] = {}
    twin = copy.deepcopy(model)

    def keep(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, args: Any, kwargs: Any) -> None:
            found.setdefault(name, passes.detached((args, kwargs)))

        return hook

    for name, module in twin.named_modules():
        if name:
            module.register_forward_pre_hook(keep(name), with_kwargs=True)
    passes.values_of_call(twin, call)
    return found


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
    places = [*re.findall(r'File "([^"]+)", line (\d+)', text), *re.findall(r"in (/\S+?):(\d+)", text)]
    own = [(file, int(line)) for file, line in places if is_own(file)]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = next((line for line in lines if line.startswith("Explanation:")), lines[0] if lines else "")
    guard = next((line for line in lines if line.startswith("- ")), None)
    file, line = own[-1] if own else (None, None)
    return {"file": file, "line": line, "text": (guard or said)[:300]}
