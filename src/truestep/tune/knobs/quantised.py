"""Quantised evaluation: linear layers with weights of 8 bits, in passes for evaluation only."""

import copy
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from truestep.tune.knob import Choice, Knob, ScriptFacts, Skip
from truestep.tune.knobs._evaluation import in_evaluation
from truestep.watch.script.tape import Tape

Scheme = Literal["int8-weights", "int8-dynamic"]
_SCHEMES: dict[Scheme, str] = {"int8-weights": "int8 weights", "int8-dynamic": "int8"}
_CONFIGS = {
    "int8-weights": "Int8WeightOnlyConfig",
    "int8-dynamic": "Int8DynamicActivationInt8WeightConfig",
}
_NOISE = {
    "torchao": "Failed to load",  # kernels for GPUs that this machine does not have
    "torch.utils._pytree": "is an Enum subclass",  # torch telling torchao's authors something
}


def propose(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:  # noqa: ARG001
    """Propose both schemes where evaluation of linear layers was seen."""
    if not facts.evaluates:
        return Skip(reason="no evaluation (eval mode, no_grad) ran in the observed steps.")
    if facts.models and not any(model.get("has_linear", True) for model in facts.models):
        return Skip(reason="the model has no linear layer, the only kind that is quantized.")
    if find_spec("torchao") is None:
        return Skip(reason="quantization needs torchao. Install it: pip install 'truestep[quantise]'")
    return [Choice(value=scheme, words=words) for scheme, words in _SCHEMES.items()]


def lines(value: str) -> list[str]:
    """Return the call to write."""
    return [
        f"from torchao.quantization import {_CONFIGS[value]}, quantize_",
        "evaluated = copy.deepcopy(model).eval()  # for inference only",
        f"quantize_(evaluated, {_CONFIGS[value]}())  # linear layers; a weight that is shared is untied",
    ]


def apply(value: Scheme, tape: Tape) -> None:
    """Let linear layers compute with integers in passes for evaluation."""
    known: WeakKeyDictionary[nn.Module, _Quantised] = WeakKeyDictionary()

    def make(module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
        swap = known.get(module) or known.setdefault(module, _Quantised(module, value))

        def evaluate(*args: Any, **kwargs: Any) -> Any:
            swap.begin()
            try:
                return forward(*args, **kwargs)
            finally:
                swap.end()

        return evaluate

    in_evaluation(tape, make)


class _Quantised:
    """The linear layers of a model with their quantised copies, made anew once weights have changed."""

    def __init__(self, module: nn.Module, scheme: Scheme) -> None:
        uses = Counter(id(item) for part in module.modules() for item in part._parameters.values())
        self._layers = [
            part
            for part in module.modules()
            if isinstance(part, nn.Linear)
            and not isinstance(part, NonDynamicallyQuantizableLinear)  # read by attention, never called
            and uses[id(part.weight)] == 1  # one that is tied would cost memory, not save it
        ]
        self._scheme = scheme
        self._copies: list[nn.Module] = []
        self._state: list[tuple[int, int]] = []

    def begin(self) -> None:
        """Put the copies' forwards in place."""
        state = [(layer.weight.data_ptr(), layer.weight._version) for layer in self._layers]
        if state != self._state:
            self._state = state
            self._copies = self._quantise() if self._layers else []
        for layer, copied in zip(self._layers, self._copies, strict=True):
            layer.forward = copied.forward  # type: ignore[method-assign]

    def end(self) -> None:
        """Take them away again."""
        for layer in self._layers:
            vars(layer).pop("forward", None)

    def _quantise(self) -> list[nn.Module]:
        quantization = _torchao()
        with torch.no_grad():
            copies = copy.deepcopy(nn.ModuleList(self._layers)).eval()
            quantization.quantize_(copies, getattr(quantization, _CONFIGS[self._scheme])())
        return list(copies)


def _torchao() -> Any:
    with _without_noise():
        import torchao.quantization  # noqa: PLC0415 - optional, and two seconds
    return torchao.quantization


@contextmanager
def _without_noise() -> Iterator[None]:
    """Keep two known remarks off the terminal while torchao is imported; others, and errors, come through."""

    def is_news(record: logging.LogRecord) -> bool:
        return _NOISE[record.name] not in record.getMessage()

    loggers = [logging.getLogger(name) for name in _NOISE]
    for logger in loggers:
        logger.addFilter(is_news)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(is_news)


KNOB = Knob(
    priority=170,
    about="Evaluates with 8-bit linear weights. Pays for large layers; outputs change a little.",
    propose=propose,
    lines=lines,
    changes_bits=True,
    purpose="inference",
)
