"""Modes: which layers are switched to training in a forward pass, and whether a backward pass reaches it.

Owns what is kept of each outermost forward pass. Which of them are evaluation is left to the rules.
"""

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from truestep.watch.evidence.facts.optimizing import OptimizerOwns
from truestep.watch.evidence.facts.passes import (
    LayersListed,
    PassesUsed,
    PassExamined,
)
from truestep.watch.script import module_tree
from truestep.watch.script.nested_tensors import find_tensors, is_readable
from truestep.watch.script.refs import Ref
from truestep.watch.script.tape import Tape

_NUM_FIRST, _MAX_NOTED, _MAX_OUTPUTS, _MAX_INPUTS, _MAX_MODELS = 64, 512, 4, 256, 64
_MAX_NODES = 64
_MARK = "truestep pass"
_RANDOM = frozenset(
    (
        *("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout"),
        *("bernoulli", "bernoulli_", "rand", "randn", "rand_like", "randn_like", "normal_"),
    )
)
_NORMS = nn.modules.batchnorm._NormBase
_DROPS = nn.modules.dropout._DropoutNd


def watch(tape: Tape) -> None:
    """Note each forward pass that may be an evaluation, and those that backward passes reach."""
    modes = _Modes(tape)
    tape.listen(modes, "forward_begins", "backward_begins", "step_begins")
    tape.listen(modes, "forward_ends", "backward_ends", "step_ends", "stepped_by_hand", "opened")


class _Layers:
    """The layers of a model for which the mode matters, by the module itself, not kept alive."""

    def __init__(self, model: nn.Module) -> None:
        self.drops: list[weakref.ref[nn.Module]] = []
        self.norms: list[weakref.ref[nn.Module]] = []
        self.is_pretrained = False
        for module in module_tree.modules(model):
            if is_dropout(module):
                self.drops.append(weakref.ref(module))
            elif _is_norm(module):
                self.norms.append(weakref.ref(module))
            kinds = type(module).__mro__
            self.is_pretrained |= any(kind.__name__ == "PreTrainedModel" for kind in kinds)
        self.known: tuple[bool, ...] | None = None
        """The state that was noted last, as far as a quick look shows it."""

    def glance(self, model: nn.Module) -> tuple[bool, ...]:
        """Return the flags of a few layers: all are switched together, as a rule."""
        found = [module_tree.is_training(model)]
        for group in (self.drops, self.norms):
            for item in (group[:1], group[-1:]):
                module = item[0]() if item else None
                if module is not None:
                    found.append(module.training)
        return tuple(found)

    def describe(self, model: nn.Module, number: int) -> LayersListed:
        """Return how many layers of each kind are switched to training."""
        drops, norms = [*_alive(self.drops)], [*_alive(self.norms)]
        return LayersListed(
            model=number,
            class_name=type(model).__qualname__,
            num_dropouts=len(drops),
            num_dropouts_on=sum(map(_is_on, drops)),
            num_norms=len(norms),
            num_norms_on=sum(map(_is_on, norms)),
            names=sorted({type(module).__name__ for module in (*drops, *norms)}),
            names_on=sorted({type(module).__name__ for module in (*drops, *norms) if _is_on(module)}),
            is_pretrained=self.is_pretrained,
        )


def _alive(references: "list[weakref.ref[nn.Module]]") -> Iterator[nn.Module]:
    for reference in references:
        module = reference()
        if module is not None:
            yield module


def _is_on(module: nn.Module) -> bool:
    # Without momentum, statistics are averaged over all passes: that is what train mode is for there.
    return module.training and getattr(module, "momentum", 0.1) is not None


def is_dropout(module: nn.Module) -> bool:
    """Whether it drops or adds noise, in train mode only."""
    if isinstance(module, _DROPS):
        return module.p > 0
    if isinstance(module, nn.RNNBase):
        return module.dropout > 0 and module.num_layers > 1
    if isinstance(module, nn.MultiheadAttention):
        return bool(module.dropout > 0)
    if type(module).__module__.startswith("torch."):
        return isinstance(module, nn.RReLU)
    code = getattr(type(module).forward, "__code__", None)
    return code is not None and "training" in code.co_names and not _RANDOM.isdisjoint(code.co_names)


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, _NORMS) and module.running_mean is not None


class _Modes:
    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._models = tape.things("model")
        self._layers: dict[int, _Layers] = {}
        self._ordinal = 0
        self._since_step = 0
        self._num_noted: dict[tuple[Any, ...], int] = {}
        self._used: list[int] = []
        self._is_needed = False
        """Whether the pass under way has made a backward pass of its own, as for forces."""
        self._inputs: dict[int, tuple[Any, int, int]] = {}
        self._num_inputs = 0
        self._owned: dict[int, int] = {}
        self._met: set[tuple[int, int]] = set()

    def forward_begins(self, model: nn.Module, _args: Any, _kwargs: Any) -> None:
        number = self._models[id(model)][0]
        self._is_needed = False
        layers = self._layers.get(number)
        if layers is None:
            layers = self._layers[number] = _Layers(model)
        if layers.drops or layers.norms:
            self._look_at_layers(model, layers)

    def _look_at_layers(self, model: nn.Module, layers: _Layers) -> None:
        glance = layers.glance(model)
        if glance != layers.known:
            number = self._models[id(model)][0]
            layers = self._layers[number] = _Layers(model)  # some may have been replaced since
            layers.known = layers.glance(model)
            self._tape.note(layers.describe(model, number))

    def forward_ends(self, model: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        ordinal, self._ordinal = self._ordinal, self._ordinal + 1
        since, self._since_step = self._since_step, self._since_step + 1
        number = self._models[id(model)][0]
        has_grad = torch.is_grad_enabled()
        key = (self._tape.under_way.forward_site, number, module_tree.is_training(model), has_grad)
        num = self._num_noted.get(key, 0)
        if num >= (_MAX_NOTED if since else _NUM_FIRST):
            return
        self._num_noted[key] = num + 1
        given = _first_tensor((args, kwargs))
        is_tracked = has_grad and self._track(output, ordinal)
        size = 0 if given is None or not given.dim() else given.shape[0]
        facts = PassExamined(
            model=number,
            is_training=module_tree.is_training(model),
            is_grad_enabled=has_grad,
            number=ordinal,
            has_graph=is_tracked,
            given=self._input_number(given),
            size=size,
        )
        self._tape.note(facts)
        if self._is_needed:
            self._tape.note(PassesUsed([ordinal]))

    def _track(self, output: Any, ordinal: int) -> bool:
        """Have the backward pass say that it reaches this output. The graph is not kept alive by it."""
        nodes = []
        for _, leaf in find_tensors(output):
            if leaf.grad_fn is not None:
                nodes.append(leaf.grad_fn)
                if len(nodes) == _MAX_OUTPUTS:
                    break
        used = self._used

        def reached(_gradients: Any) -> None:
            used.append(ordinal)

        for node in nodes:
            node.register_prehook(reached)
            marks: Any = node.metadata
            marks[_MARK] = ordinal
        return bool(nodes)

    def _input_number(self, given: Tensor | None) -> int:
        """Return a number for a tensor: the same one as long as it lives and is not written to."""
        if given is None:
            return -1
        version = -1 if type(given) is not Tensor or given.is_inference() else given._version
        known = self._inputs.get(id(given))
        if known is not None and known[0]() is given and known[1] == version:
            return known[2]
        if len(self._inputs) >= _MAX_INPUTS:
            self._inputs = {key: item for key, item in self._inputs.items() if item[0]() is not None}
            if len(self._inputs) >= _MAX_INPUTS:
                return -1
        self._num_inputs += 1
        self._inputs[id(given)] = (Ref(given), version, self._num_inputs)
        return self._num_inputs

    def backward_begins(self, losses: tuple[Tensor, ...], how: str) -> None:
        """Gradients of inputs alone pass by what these are compared with, as in an attack: it is used too."""
        self._is_needed = self._tape.under_way.is_inside
        if how != "grad":
            return
        waiting: list[Any] = [loss.grad_fn for loss in losses if loss.grad_fn is not None]
        num = 0
        while waiting and num < _MAX_NODES:
            node, num = waiting.pop(0), num + 1
            if _MARK in node.metadata:
                self._used.append(node.metadata[_MARK])
            else:
                waiting += [after for after, _ in node.next_functions if after is not None]

    def backward_ends(self, _losses: tuple[Tensor, ...], _how: str) -> None:
        if self._used:
            self._tape.note(PassesUsed(sorted(set(self._used))))
            self._used.clear()

    def step_begins(self, optimizer: Optimizer, number: int) -> None:
        if self._used:  # reached in a way that is not observed, as by a closure
            self.backward_ends((), "")
        if self._owned.get(number) != len(self._models):
            self._owned[number] = len(self._models)
            self._note_owners(optimizer, number)

    def _note_owners(self, optimizer: Optimizer, number: int) -> None:
        optimized = {id(item) for group in optimizer.param_groups for item in group["params"]}
        for _, (model, kept) in list(self._models.items())[:_MAX_MODELS]:
            module = kept() if isinstance(kept, weakref.ref) else kept
            if module is None or (number, model) in self._met:
                continue
            self._met.add((number, model))
            own = list(module_tree.parameters(module))
            mine = [item for item in own if id(item) in optimized]
            if mine:
                trained = sum(item.numel() for item in mine if item.requires_grad)
                self._tape.note(OptimizerOwns(number, model, trained, sum(item.numel() for item in own)))

    def step_ends(self, _optimizer: Optimizer, _number: int) -> None:
        self._since_step = 0

    def opened(self) -> None:
        """All calls are observed again, after steps that were only counted."""
        self._since_step = 0
        self._used.clear()

    def stepped_by_hand(self, owner: Any, number: int) -> None:
        """The script has updated its weights itself."""
        self._since_step = 0
        if self._owned.get(number) != len(self._models):
            self._owned[number] = len(self._models)
            self._note_owners(owner, number)


def _first_tensor(values: Any) -> Tensor | None:
    for value in values[0]:
        if is_readable(value):
            return value  # type: ignore[no-any-return]
    return next((leaf for _, leaf in find_tensors(values)), None)
