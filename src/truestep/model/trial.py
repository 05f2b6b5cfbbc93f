"""One trial pass: a model run once, with output shapes and FLOPs per module, that leaves no trace.

Owns what is counted and to which module it belongs. How it is shown is up to others.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from truestep import rng
from truestep.errors import UsageError
from truestep.model.nests import tensors_in

Shape = tuple[int, ...]
_aten = torch.ops.aten

_MOVES = set(
    """
    _to_copy _unsafe_index _unsafe_view arange bernoulli_ cat clone constant_pad_nd copy copy_
    detach embedding empty empty_like empty_strided fill_ full full_like gather index index_select
    lift_fresh masked_fill masked_fill_ new_empty new_empty_strided new_full new_ones new_zeros ones
    ones_like repeat roll scalar_tensor scatter stack tril triu unsafe_split where zero_ zeros
    zeros_like _local_scalar_dense
    """.split()  # noqa: SIM905 - fifty lines otherwise
)
"""Operations that move or make numbers: none is a FLOP that anybody would miss."""


def _attention(query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


def _attention_backward(gradient: Shape, query: Shape, key: Shape, value: Shape, *_: Any, **__: Any) -> int:
    return int(sdpa_backward_flop_count(gradient, query, key, value))


def _recurrent(inputs: Shape, weight: Shape, hidden_weight: Shape, *_: Any, **__: Any) -> int:
    length, batch, _width = inputs
    products = weight[0] * weight[1] + hidden_weight[0] * hidden_weight[1]
    return 2 * length * batch * products


def _recurrent_backward(inputs: Shape, weight: Shape, hidden_weight: Shape, *_: Any, **__: Any) -> int:
    # Once for the gradient of what came in, once for that of the weights.
    return 2 * _recurrent(inputs, weight, hidden_weight)


# torch's counter knows these operations on GPUs and gives 0 for what the CPU runs in their place.
_FORMULAS: dict[Any, Callable[..., int]] = {
    _aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    _aten.mkldnn_rnn_layer: _recurrent,
    _aten.mkldnn_rnn_layer_backward: _recurrent_backward,
}


@dataclass(kw_only=True)
class Trial:
    """What one pass showed, by the `id` of the module; None stands for the whole pass."""

    outputs: dict[int, tuple[Shape, ...]] = field(default_factory=dict)
    flops: Counter[int | None] = field(default_factory=Counter)
    backward_flops: Counter[int | None] = field(default_factory=Counter)
    uncounted: dict[int | None, Counter[str]] = field(default_factory=dict)


def run_trial(
    model: nn.Module, inputs: tuple[Any, ...], *, batch: Mapping[str, Any], backward: bool = False
) -> Trial:
    """Run `model(*inputs, **batch)` once in eval mode and return what was seen; nothing stays changed.

    The modes, buffers, gradients, generators and the batch are afterwards what they were, also if it fails.
    Hooks of the user run, as in any call.
    """
    inputs, batch = tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), (inputs, dict(batch)))
    counter = FlopCounterMode(display=False, custom_mapping=_FORMULAS)
    recorder = _Recorder(counter.flop_registry)
    with unchanged(model), torch.set_grad_enabled(backward), recorder, recorder.calls(), counter:
        output = model(*inputs, **batch)
        if backward:
            _go_back(model, output)
    return recorder.trial


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Put the model into eval mode, and give back afterwards its modes and buffers, and the generators."""
    modules = list(model.modules())
    modes = [module.training for module in modules]
    buffers = [dict(module._buffers) for module in modules]
    copies: dict[int, Tensor] = {}
    fast_path = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.enter_context(rng.kept_generators())
        try:
            # The fused encoder layer is one operation without a formula.
            torch.backends.mha.set_fastpath_enabled(False)
            for module in modules:
                # The attribute, not `eval()`: an overridden one may change weights.
                module.training = False
                for name, buffer in module._buffers.items():
                    if buffer is not None:
                        # A copy takes its place: restoring values would leave a version counter behind.
                        module._buffers[name] = copies.setdefault(id(buffer), buffer.detach().clone())
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast_path)
            for module, mode, kept in zip(modules, modes, buffers, strict=True):
                module.training = mode
                module._buffers.clear()
                module._buffers.update(kept)


def _go_back(model: nn.Module, output: Any) -> None:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    ends = [tensor for _, tensor in tensors_in(output) if tensor.requires_grad]
    if not trained or not ends:
        raise UsageError(
            "backward=True, but the model's output does not depend on a parameter that requires a gradient. "
            "Unfreeze a parameter, or leave backward out."
        )
    # `grad` and not `backward`: the `.grad` of the parameters stays what it was.
    ones = [torch.ones_like(end) for end in ends]
    torch.autograd.grad(ends, trained, grad_outputs=ones, allow_unused=True)


class _Recorder(TorchDispatchMode):
    """Sees the operations that are left after torch's counter has decomposed the others."""

    def __init__(self, formulas: Mapping[Any, Callable[..., int]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.trial = Trial()
        self._formulas = formulas
        self._open: list[tuple[int, int]] = []
        self._spans: list[tuple[int, int, int]] = []

    @contextmanager
    def calls(self) -> Iterator[None]:
        """Follow which modules are being called. The hooks are global: the user's modules stay untouched."""
        handles = [register_module_forward_pre_hook(self._enter), register_module_forward_hook(self._leave)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module, _inputs: Any) -> None:
        self._open.append((id(module), _sequence()))

    def _leave(self, module: nn.Module, _inputs: Any, output: Any) -> None:
        key, start = self._open.pop()
        self._spans.append((key, start, _sequence()))
        self.trial.outputs[id(module)] = tuple(tuple(tensor.shape) for _, tensor in tensors_in(output))

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        packet = func._overloadpacket
        formula = self._formulas.get(packet)
        node = torch._C._current_autograd_node()
        modules = {None, *self._modules(node)}
        if formula is not None:
            count = formula(*args, **kwargs, out_val=result)
            found = self.trial.flops if node is None else self.trial.backward_flops
            found.update(dict.fromkeys(modules, count))
        elif node is None and not func.is_view and packet.__name__ not in _MOVES:
            for key in modules:
                self.trial.uncounted.setdefault(key, Counter())[packet.__name__] += 1
        return result

    def _modules(self, node: Any) -> Iterator[int]:
        """Yield the modules that are running, or whose pass forward has made this node of the graph."""
        if node is None:
            yield from (key for key, _ in self._open)
        else:
            number = node._sequence_nr()
            yield from (key for key, start, end in self._spans if start <= number < end)


def _sequence() -> int:
    # Every node of the graph is numbered as it is made, so a call of a module is a span of numbers.
    return int(torch._C._autograd._get_sequence_nr())
