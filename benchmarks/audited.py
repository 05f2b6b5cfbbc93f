"""Runs a script under torch-audit without editing it, for check_corpus.py to compare with.

Usage: python audited.py RESULT.json SCRIPT. The first model that is called with gradients and the first
optimizer that holds parameters of it are given to `autopatch`, which audits every step.
"""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch_audit import autopatch


class Audit:
    """Waits for a model and its optimizer, then hands them over."""

    def __init__(self) -> None:
        self.auditor: Any = None
        self._optimizers: list[torch.optim.Optimizer] = []
        self._call = nn.Module.__call__
        self._init = torch.optim.Optimizer.__init__

    def begin(self) -> None:
        audit, call, init = self, self._call, self._init

        def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
            init(self, *args, **kwargs)
            audit._optimizers.append(self)

        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807
            audit.meet(self)
            return call(self, *args, **kwargs)

        torch.optim.Optimizer.__init__ = __init__  # type: ignore[method-assign]
        nn.Module.__call__ = __call__  # type: ignore[method-assign]

    def meet(self, model: nn.Module) -> None:
        own = {id(item) for item in model.parameters()}
        for optimizer in self._optimizers:
            held = {id(item) for group in optimizer.param_groups for item in group["params"]}
            if own & held and torch.is_grad_enabled() and self.auditor is None:
                nn.Module.__call__ = self._call  # type: ignore[method-assign]
                self.auditor = autopatch(
                    model, optimizer=optimizer, every_n_steps=1, suppress_internal_errors=True
                )

    def result(self) -> list[dict[str, str]]:
        if self.auditor is None:
            return []
        findings = self.auditor.finish(report=False).findings
        return [{"rule": item.rule_id, "severity": item.severity.name} for item in findings]


def main() -> None:
    out, script = sys.argv[1:]
    sys.argv = [script]
    sys.path[0] = str(Path(script).parent)
    audit = Audit()
    audit.begin()
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        Path(out).write_text(json.dumps(audit.result()))


if __name__ == "__main__":
    main()
