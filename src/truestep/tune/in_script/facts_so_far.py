"""What is seen of a script while it takes its first steps: loaders, optimizers, models, settings.

Owns the facts of `ScriptFacts` that only the script's own process knows. Runs there.
"""

import inspect
import sys
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from truestep.base.bits import matmul_precision
from truestep.watch.hooks.table import Hook, put
from truestep.watch.script.orders import order_of
from truestep.watch.script.tape import Tape

_CONV = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d)


class FactsSoFar:
    """Facts as they become known; `changed` has what is new since the last call."""

    def __init__(self, tape: Tape) -> None:
        self._facts: dict[str, list[dict[str, Any]]] = {"loaders": [], "optimizers": [], "models": []}
        self._met: set[int] = set()
        self._is_autocast = False
        self._device = "cpu"
        self._sent: dict[str, Any] = {}
        tape.listen(
            epoch=self._meet_loader, forward_begins=self._meet_model, step_begins=self._meet_optimizer
        )
        put(tape, _HOOKS, self)

    def changed(self) -> dict[str, Any]:
        """Return the facts, if they are not as they were sent before."""
        facts = self.facts()
        if facts == self._sent:
            return {}
        self._sent = facts
        return {"facts": facts}

    def facts(self) -> dict[str, Any]:
        """Return what was seen so far."""
        return {
            **{name: list(items) for name, items in self._facts.items()},
            "device": self._device,
            "threads": torch.get_num_threads(),
            "is_autocast": self._is_autocast,
            "matmul_precision": matmul_precision(),
            "uses_run": "truestep.run.train.run" in sys.modules,
        }

    def _meet_loader(self, loader: Any, _number: int) -> None:
        if id(loader) in self._met:
            return
        self._met.add(id(loader))
        try:
            length = len(loader)
        except (TypeError, NotImplementedError):
            length = None
        self._facts["loaders"].append(
            {
                "class": type(loader).__qualname__,
                "workers": loader.num_workers,
                "pin_memory": loader.pin_memory,
                "persistent": loader.persistent_workers,
                "prefetch": loader.prefetch_factor,
                "length": length,
                "is_training": self._is_shuffled(loader),
                "is_ours": type(loader.dataset).__module__.startswith("truestep.run.data"),
            }
        )

    @staticmethod
    def _is_shuffled(loader: Any) -> bool:
        return not isinstance(order_of(loader), torch.utils.data.SequentialSampler)

    def _meet_model(self, module: nn.Module, _args: Any, _kwargs: Any) -> None:
        if id(module) in self._met or not torch.is_grad_enabled():
            return
        parameters = [item for item in module.parameters() if not nn.parameter.is_lazy(item)]
        if not any(parameter.requires_grad for parameter in parameters):
            return
        self._met.add(id(module))
        self._device = parameters[0].device.type
        parts = list(module.modules())
        self._facts["models"].append(
            {
                "class": type(module).__qualname__,
                "has_conv": any(isinstance(part, _CONV) for part in parts),
                "has_conv2d": any(isinstance(part, nn.Conv2d) for part in parts),
                "has_matmul": any(parameter.dim() > 1 for parameter in parameters),
                "is_compiled": _is_compiled(module),
                "dtype": str(parameters[0].dtype).removeprefix("torch."),
                "has_sparse": any(getattr(part, "sparse", False) is True for part in parts),
            }
        )

    def _meet_optimizer(self, optimizer: Optimizer, _number: int) -> None:
        if id(optimizer) in self._met:
            return
        self._met.add(id(optimizer))
        known = inspect.signature(type(optimizer).__init__).parameters
        group = optimizer.param_groups[0] if optimizer.param_groups else {}
        self._facts["optimizers"].append(
            {
                "class": type(optimizer).__qualname__,
                "fused": group.get("fused"),
                "foreach": group.get("foreach"),
                "can_fuse": "fused" in known,
                "can_foreach": "foreach" in known,
            }
        )

    def observe_autocast(self, context: Any) -> None:
        """Note who enters autocast: it may be the model itself, or its framework."""
        self._is_autocast = self._is_autocast or bool(context._enabled)


_HOOKS = (Hook("torch.amp.autocast_mode.autocast.__enter__", FactsSoFar.observe_autocast),)


def _is_compiled(module: nn.Module) -> bool:
    return module._compiled_call_impl is not None or type(module).__name__ == "OptimizedModule"
