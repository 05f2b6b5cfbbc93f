"""Runs a script bare and writes down what its training did: losses, weights, outputs, and which lines ran.

Usage: python mutant_trace.py OUT SEED LINES SCRIPT ARGS... Generators are seeded before the script starts,
and SEED is added to every seed that it sets: with one SEED two runs differ only by what is in the script.
"""

import ast
import json
import random
import sys
import types
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch.nn.modules.module import register_module_forward_hook
from torch.optim.optimizer import register_optimizer_step_post_hook

MAX_KEPT = 400


class Trace:
    """What was observed."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.weights: list[float] = []
        self.outputs: list[float] = []
        self.num_graphs = 0
        self.lines: set[int] = set()
        self.kept_lines: set[int] = set()
        """Those that ask a tensor with a graph for its number."""

    def watch_backward(self) -> None:
        plain = torch.autograd.backward

        def backward(tensors: Any, *others: Any, **named: Any) -> None:
            first = tensors if torch.is_tensor(tensors) else next(iter(tensors))
            if len(self.losses) < MAX_KEPT:
                self.losses.append(float(first.detach().sum()))
            plain(tensors, *others, **named)

        torch.autograd.backward = backward

    def after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if len(self.weights) < MAX_KEPT:
            parameters = [one for group in optimizer.param_groups for one in group["params"]]
            self.weights.append(float(sum(one.detach().double().abs().sum() for one in parameters)))

    def after_forward(self, _module: torch.nn.Module, _given: Any, output: Any) -> None:
        if torch.is_tensor(output) and output.is_floating_point():
            self.num_graphs += output.requires_grad
            if len(self.outputs) < 10 * MAX_KEPT:
                self.outputs.append(float(output.detach().double().abs().sum()))

    def watch_lines(self, path: str) -> None:
        names: dict[int, set[str]] = {}
        for call in ast.walk(ast.parse(Path(path).read_text())):
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr == "item"
            ):
                inside_of = {node.id for node in ast.walk(call.func.value) if isinstance(node, ast.Name)}
                names.setdefault(call.lineno, set()).update(inside_of)

        def inside(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line":
                line = frame.f_lineno
                self.lines.add(line)
                if line in names and line not in self.kept_lines:
                    known = {**frame.f_globals, **frame.f_locals}
                    values = [known.get(name) for name in names[line]]
                    if any(torch.is_tensor(value) and value.requires_grad for value in values):
                        self.kept_lines.add(line)
            return inside

        def tracer(frame: FrameType, _event: str, _: Any) -> Any:
            if frame.f_code.co_filename != path:
                return None
            self.lines.add(frame.f_lineno)
            return inside

        sys.settrace(tracer)

    def as_fields(self) -> dict[str, Any]:
        return {
            "losses": self.losses,
            "weights": self.weights,
            "outputs": self.outputs,
            "num_graphs": self.num_graphs,
            "lines": sorted(self.lines),
            "kept_lines": sorted(self.kept_lines),
        }


def shift_seeds(seed: int) -> None:
    """Seed all generators, and add to what the script seeds them with."""
    plain_torch, plain_numpy, plain_python = torch.manual_seed, np.random.seed, random.seed
    plain_torch(seed)
    plain_numpy(seed)
    plain_python(seed)
    torch.manual_seed = torch.random.manual_seed = lambda given: plain_torch(int(given) + seed)
    np.random.seed = lambda given=0: plain_numpy((int(given or 0) + seed) % 2**32)
    random.seed = lambda given=0, *_: plain_python((given or 0) + seed)


def main() -> None:
    """Run the script."""
    out, seed, lines, script, *_ = sys.argv[1:]
    sys.argv = sys.argv[4:]
    sys.path[0] = str(Path(script).parent)
    shift_seeds(int(seed))
    trace = Trace()
    trace.watch_backward()
    register_optimizer_step_post_hook(trace.after_step)
    register_module_forward_hook(trace.after_forward)
    sys.modules["__main__"] = module = types.ModuleType("__main__")
    vars(module).update(__file__=script, __builtins__=__builtins__)
    code = compile(Path(script).read_bytes(), script, "exec", dont_inherit=True)
    if lines == "1":
        trace.watch_lines(script)
    try:
        exec(code, vars(module))
    finally:
        sys.settrace(None)
        Path(out).write_text(json.dumps(trace.as_fields()))


if __name__ == "__main__":
    main()
