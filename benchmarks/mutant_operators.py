"""Mistakes that can be planted in a training script: each operator finds places and says what to write there.

Which rules are about its mistake is listed with it, read generously. What a mutant does, and whether it is
found, is left to `mutants`.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from mutant_source import LOSSES, OPTIMIZERS, Edit, Planted, Source, called, is_call, one, owner_of


def drop_zero_grad(source: Source) -> Iterator[Planted]:
    """`zero_grad()` is missing."""
    for statement in source.statements("zero_grad"):
        yield one(statement, "pass")


def zero_grad_after_backward(source: Source) -> Iterator[Planted]:
    """`zero_grad()` comes after the backward pass."""
    for first, backward in _pairs(source, "zero_grad", "backward"):
        text = f"{source.piece(backward)}; {source.piece(first)}"
        yield Planted(edits=(Edit(backward, text), Edit(first, "pass")))


def step_before_backward(source: Source) -> Iterator[Planted]:
    """The optimizer steps before the backward pass."""
    for backward, step in _pairs(source, "backward", "step"):
        if source.is_step(step):
            yield Planted(edits=(Edit(step, source.piece(backward)), Edit(backward, source.piece(step))))


def drop_step(source: Source) -> Iterator[Planted]:
    """The optimizer is never stepped."""
    for statement in source.statements("step"):
        if source.is_step(statement):
            yield one(statement, "pass")


def double_step(source: Source) -> Iterator[Planted]:
    """The optimizer steps twice on the same gradients."""
    for statement in source.statements("step"):
        if source.is_step(statement):
            yield one(statement, f"{source.piece(statement)}; {source.piece(statement)}")


def double_backward(source: Source) -> Iterator[Planted]:
    """Gradients of two passes are summed and not divided."""
    for statement in source.statements("backward"):
        call = statement.value
        if (
            isinstance(call, ast.Call)
            and not call.args
            and not call.keywords
            and (owner := owner_of(statement))
        ):
            text = source.piece(owner)
            yield one(statement, f"{text}.backward(retain_graph=True); {text}.backward()")


def detach_loss(source: Source) -> Iterator[Planted]:
    """The loss is cut from its graph."""
    for statement in source.statements("backward"):
        if owner := owner_of(statement):
            yield one(owner, f"{source.piece(owner)}.detach().requires_grad_()")


def keep_loss(source: Source) -> Iterator[Planted]:
    """Losses are collected with their graphs."""
    for node in source.nodes:
        kept = node.value if isinstance(node, ast.AugAssign) else None
        kept = node.args[0] if is_call(node, "append") and node.args else kept
        inside = [*ast.walk(kept)] if kept is not None else []
        for call, owner in source.methods("item"):
            if call in inside and "loss" in source.piece(owner).lower():
                yield one(call, source.piece(owner))


def average_twice(source: Source) -> Iterator[Planted]:
    """A mean loss is divided once more."""
    for statement in () if source.sums_losses else source.statements("backward"):
        if owner := owner_of(statement):
            yield one(owner, f"({source.piece(owner)} / 64)")


def drop_clip(source: Source) -> Iterator[Planted]:
    """Gradients are no longer clipped."""
    for name in CLIPS:
        for statement in source.statements(name):
            yield one(statement, "pass")


def clip_after_step(source: Source) -> Iterator[Planted]:
    """Gradients are clipped after the step."""
    for name in CLIPS:
        for clip, step in _pairs(source, name, "step"):
            yield Planted(
                edits=(Edit(step, f"{source.piece(step)}; {source.piece(clip)}"), Edit(clip, "pass"))
            )


def clip_before_backward(source: Source) -> Iterator[Planted]:
    """Gradients are clipped before there are any."""
    for name in CLIPS:
        for backward, clip in _pairs(source, "backward", name):
            text = f"{source.piece(clip)}; {source.piece(backward)}"
            yield Planted(edits=(Edit(backward, text), Edit(clip, "pass")))


CLIPS = ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm")


def _pairs(source: Source, first: str, second: str) -> Iterator[tuple[ast.Expr, ast.Expr]]:
    """Yield statements of one block of which the second follows the first, with the nearest first."""
    firsts, seconds = [*source.statements(first)], [*source.statements(second)]
    for block in source.blocks:
        for number, statement in enumerate(block):
            if statement in seconds:
                before = [item for item in block[:number] if item in firsts]
                if before:
                    yield before[-1], statement  # type: ignore[misc]


def drop_schedule(source: Source) -> Iterator[Planted]:
    """The scheduler is never stepped."""
    for statement in source.statements("step"):
        if source.is_schedule(statement):
            yield one(statement, "pass")


def schedule_every_batch(source: Source) -> Iterator[Planted]:
    """A scheduler that counts epochs is stepped at every batch."""
    steps = [
        item for item in source.statements("step") if source.is_step(item) and not source.is_schedule(item)
    ]
    for statement in source.statements("step"):
        if source.is_schedule(statement) and steps:
            text = f"{source.piece(steps[0])}; {source.piece(statement)}"
            yield Planted(edits=(Edit(steps[0], text), Edit(statement, "pass")))


def schedule_first(source: Source) -> Iterator[Planted]:
    """The scheduler is stepped at the start, before any step of the optimizer."""
    steps = [
        item for item in source.statements("step") if source.is_step(item) and not source.is_schedule(item)
    ]
    for statement in source.statements("step"):
        if source.is_schedule(statement) and steps:
            text = f"{source.piece(statement)}; {source.piece(steps[0])}"
            yield Planted(edits=(Edit(steps[0], text), Edit(statement, "pass")))


def warmup_not_applied(source: Source) -> Iterator[Planted]:
    """A learning rate is computed and never set."""
    for node in source.nodes:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith("['lr']"):
            yield one(node, "pass")


def _rates(source: Source) -> Iterator[ast.expr]:
    for call in source.calls:
        if called(call) in OPTIMIZERS:
            yield from (word.value for word in call.keywords if word.arg == "lr")
            yield from call.args[1:2]


def rate_too_high(source: Source) -> Iterator[Planted]:
    """The learning rate is a thousand times too high."""
    for node in _rates(source):
        yield one(node, f"1000 * ({source.piece(node)})")


def rate_zero(source: Source) -> Iterator[Planted]:
    """The learning rate is zero."""
    for node in _rates(source):
        yield one(node, f"0 * ({source.piece(node)})")


def drop_eval(source: Source) -> Iterator[Planted]:
    """`eval()` is missing."""
    for statement in source.statements("eval"):
        yield one(statement, "pass")


def drop_train(source: Source) -> Iterator[Planted]:
    """`train()` is missing."""
    for statement in source.statements("train"):
        if owner_of(statement) is not None:
            yield one(statement, "pass")


def train_for_eval(source: Source) -> Iterator[Planted]:
    """`train()` is written where `eval()` was meant."""
    for statement in source.statements("eval"):
        if owner := owner_of(statement):
            yield one(statement, f"{source.piece(owner)}.train()")


def eval_for_train(source: Source) -> Iterator[Planted]:
    """`eval()` is written where `train()` was meant."""
    for statement in source.statements("train"):
        call = statement.value
        if (owner := owner_of(statement)) and isinstance(call, ast.Call) and not call.args:
            yield one(statement, f"{source.piece(owner)}.eval()")


def drop_no_grad(source: Source) -> Iterator[Planted]:
    """`no_grad()` is missing."""
    for node in source.nodes:
        if isinstance(node, ast.With) and is_call(call := node.items[0].context_expr, *NO_GRAD):
            yield one(call, "__import__('contextlib').nullcontext()")
        for mark in getattr(node, "decorator_list", ()):
            if is_call(mark, *NO_GRAD):
                yield one(mark, "(lambda function: function)")


NO_GRAD = ("no_grad", "inference_mode")


def undying_dropout(source: Source) -> Iterator[Planted]:
    """Functional dropout is always on."""
    for call in source.calls:
        if called(call) == "dropout" and (
            words := [word for word in call.keywords if word.arg == "training"]
        ):
            yield one(words[0].value, "True")


def drop_detach(source: Source) -> Iterator[Planted]:
    """`detach()` is missing."""
    for call, owner in source.methods("detach"):
        yield one(call, source.piece(owner))


def detach_prediction(source: Source) -> Iterator[Planted]:
    """What a loss gets is cut from the graph."""
    for call, _ in source.losses():
        yield one(call.args[0], f"({source.piece(call.args[0])}).detach()")


def round_prediction(source: Source) -> Iterator[Planted]:
    """A prediction is rounded inside the loss."""
    for call, kind in source.losses():
        if kind in ("MSELoss", "BCELoss", "SmoothL1Loss", "L1Loss"):
            yield one(call.args[0], f"({source.piece(call.args[0])}).round()")


def share_target(source: Source) -> Iterator[Planted]:
    """The target network is the policy itself."""
    for call, owner in source.methods("load_state_dict"):
        given = call.args[0] if call.args else None
        if (
            is_call(given, "state_dict")
            and isinstance(given.func, ast.Attribute)
            and "target" in source.piece(owner)
        ):
            yield one(call, f"{source.piece(owner)} = {source.piece(given.func.value)}")


def _optimized(source: Source) -> Iterator[ast.Call]:
    for call in source.calls:
        given = call.args[0] if called(call) in OPTIMIZERS and call.args else None
        if is_call(given, "parameters"):
            yield given


def optimize_first_only(source: Source) -> Iterator[Planted]:
    """The optimizer misses the last parameters."""
    for call in _optimized(source):
        yield one(call, f"[*{source.piece(call)}][:-2]")


def optimize_last_only(source: Source) -> Iterator[Planted]:
    """The optimizer misses the first parameters."""
    for call in _optimized(source):
        yield one(call, f"[*{source.piece(call)}][2:]")


def optimize_a_copy(source: Source) -> Iterator[Planted]:
    """The optimizer holds the parameters of another object."""
    for call in _optimized(source):
        if isinstance(call.func, ast.Attribute):
            yield one(call, f"__import__('copy').deepcopy({source.piece(call.func.value)}).parameters()")


def plain_list(source: Source) -> Iterator[Planted]:
    """Layers are in a plain list."""
    for call in source.calls:
        if called(call) == "ModuleList" and call.args:
            yield one(call.func, "list")


def repeat_layer(source: Source) -> Iterator[Planted]:
    """One layer stands where several were meant."""
    for call in source.calls:
        if called(call) == "ModuleList" and call.args and isinstance(made := call.args[0], ast.ListComp):
            yield one(
                call.args[0], f"[{source.piece(made.elt)}] * len({source.piece(made.generators[0].iter)})"
            )


def zero_weights(source: Source) -> Iterator[Planted]:
    """Weights all start at zero."""
    for call in source.calls:
        if called(call) in INITS and call.args and called(call) not in ("zeros_", "constant_"):
            yield one(call, f"torch.nn.init.zeros_({source.piece(call.args[0])})")


INITS = {
    f"{name}_"
    for name in ("normal", "uniform", "xavier_normal", "xavier_uniform", "kaiming_normal", "kaiming_uniform")
}


def softmax_twice(source: Source) -> Iterator[Planted]:
    """Softmax comes before a loss that applies it."""
    for call, kind in source.losses():
        if kind == "CrossEntropyLoss":
            yield one(call.args[0], f"({source.piece(call.args[0])}).softmax(1)")


def softmax_without_log(source: Source) -> Iterator[Planted]:
    """A loss over logarithms gets probabilities."""
    for call, owner in source.methods("log_softmax", "LogSoftmax"):
        new = "softmax" if called(call) == "log_softmax" else "Softmax"
        yield one(call.func, f"{source.piece(owner)}.{new}")


def softmax_over_batch(source: Source) -> Iterator[Planted]:
    """Softmax runs over the batch."""
    for call in source.calls:
        if called(call) in ("log_softmax", "softmax", "LogSoftmax", "Softmax"):
            axes = [word.value for word in call.keywords if word.arg == "dim"] or call.args[-1:]
            if axes and ast.unparse(axes[0]) in ("1", "-1"):
                yield one(axes[0], "0")


def sigmoid_twice(source: Source) -> Iterator[Planted]:
    """A sigmoid comes before a loss that applies it."""
    for call, kind in source.losses():
        if kind in ("BCEWithLogitsLoss", "BCELoss"):
            yield one(call.args[0], f"({source.piece(call.args[0])}).sigmoid()")


def broadcast_target(source: Source) -> Iterator[Planted]:
    """The target has another shape, and is broadcast."""
    for call, kind in source.losses():
        if kind in ("MSELoss", "SmoothL1Loss", "L1Loss"):
            yield one(call.args[1], f"({source.piece(call.args[1])}).reshape(-1)")


def sum_for_mean(source: Source) -> Iterator[Planted]:
    """The loss is summed over the batch."""
    for call in source.calls:
        if called(call) in LOSSES and not call.args and not call.keywords:
            yield one(call, f"{source.piece(call.func)}(reduction='sum')")


def predict_itself(source: Source) -> Iterator[Planted]:
    """The target is the prediction."""
    for call, kind in source.losses():
        if kind in ("MSELoss", "SmoothL1Loss", "L1Loss"):
            yield one(call.args[1], f"({source.piece(call.args[0])}).detach()")


def swap_arguments(source: Source) -> Iterator[Planted]:
    """Prediction and target are swapped."""
    for call, kind in source.losses():
        if kind not in ("MSELoss", "L1Loss", "SmoothL1Loss"):
            first, second = call.args[:2]
            yield Planted(edits=(Edit(first, source.piece(second)), Edit(second, source.piece(first))))


def roll_labels(source: Source) -> Iterator[Planted]:
    """Labels belong to other samples."""
    for call, _ in source.losses():
        yield one(call.args[1], f"({source.piece(call.args[1])}).roll(1, 0)")


def clamp_logits(source: Source) -> Iterator[Planted]:
    """A ReLU comes after the last layer."""
    for call, kind in source.losses():
        if kind in ("CrossEntropyLoss", "BCEWithLogitsLoss"):
            yield one(call.args[0], f"({source.piece(call.args[0])}).relu()")


def wrong_axis(source: Source) -> Iterator[Planted]:
    """A sum, mean or product runs over the batch."""
    for call in source.calls:
        if called(call) in ("mean", "sum", "cat", "prod", "norm"):
            axes = [word.value for word in call.keywords if word.arg in ("dim", "axis")]
            axes = axes or [item for item in call.args if isinstance(item, ast.Constant) and item.value == 1]
            if axes and ast.unparse(axes[0]) == "1":
                yield one(axes[0], "0")


def reshape_for_transpose(source: Source) -> Iterator[Planted]:
    """Axes are swapped by a view."""
    for call, owner in source.methods("transpose", "permute"):
        if len(call.args) > 1:
            yield one(call, f"{source.piece(owner)}.reshape({source.piece(call)}.shape)")


def mix_samples(source: Source) -> Iterator[Planted]:
    """A view puts numbers of several samples into one."""
    mixing = "(lambda mixed: mixed.t().reshape(mixed.shape) if mixed.dim() == 2 else mixed)"
    for call, owner in source.methods("view", "reshape", "flatten"):
        if source.piece(owner) in ("x", "out", "input", "output", "h", "img_flat", "inputs"):
            yield one(call, f"{mixing}({source.piece(call)})")


def drop_mask(source: Source) -> Iterator[Planted]:
    """A mask is no longer applied."""
    for call, owner in source.methods("masked_fill", "masked_fill_"):
        yield one(call, source.piece(owner))


def predict_the_input(source: Source) -> Iterator[Planted]:
    """The target of a language model is not shifted."""
    for node in source.nodes:
        if (
            isinstance(node, ast.Subscript)
            and isinstance(part := node.slice, ast.Slice)
            and part.lower is not None
        ):
            text = source.piece(part.lower).replace(" ", "")
            if text.endswith("+1") and part.upper is not None:
                upper = source.piece(part.upper)
                if "+1" in upper.replace(" ", ""):
                    yield Planted(
                        edits=(
                            Edit(part.lower, text.removesuffix("+1")),
                            Edit(part.upper, f"({upper}) - 1"),
                        )
                    )


def shuffle_off(source: Source) -> Iterator[Planted]:
    """Training data come in the same order."""
    for call in source.calls:
        for word in call.keywords:
            if word.arg == "shuffle" and ast.unparse(word.value) == "True":
                yield one(word.value, "False")


def test_on_training_data(source: Source) -> Iterator[Planted]:
    """The test set is the training set."""
    for call in source.calls:
        for word in call.keywords:
            if word.arg == "train" and ast.unparse(word.value) == "False":
                yield one(word.value, "True")


def raw_pixels(source: Source) -> Iterator[Planted]:
    """Inputs are bytes from 0 to 255."""
    for call in source.calls:
        if called(call) == "ToTensor" and not call.args:
            yield one(call, f"(lambda image: 255 * {source.piece(call)}(image))")


def drop_normalize(source: Source) -> Iterator[Planted]:
    """The last set that is made is not normalised as the others are."""
    found = [call for call in source.calls if called(call) == "Normalize"]
    for call in found[-1:]:
        yield one(call, "(lambda image: image)")


def random_evaluation(source: Source) -> Iterator[Planted]:
    """The last set that is made is changed at random."""
    found = [call for call in source.calls if called(call) == "ToTensor" and not call.args]
    for call in found[-1:] if len(found) > 1 else ():
        text = f"{source.piece(call)}(image)"
        yield one(call, f"(lambda image: {text} + 0.3 * __import__('torch').randn({text}.shape))")


def drop_seed(source: Source) -> Iterator[Planted]:
    """The seed is no longer set."""
    for name in ("manual_seed", "seed_everything", "set_seed"):
        for statement in source.statements(name):
            yield one(statement, "pass")


def save_without_optimizer(source: Source) -> Iterator[Planted]:
    """A checkpoint lacks the optimizer."""
    for call in source.calls:
        if called(call) == "save" and call.args and isinstance(kept := call.args[0], ast.Dict):
            for value in kept.values:
                if "opt" in source.piece(value) and "state_dict" in source.piece(value):
                    yield one(value, "None")


@dataclass(frozen=True, kw_only=True)
class Operator:
    """A mistake, how it is planted, and the rules that are about it."""

    plant: Callable[[Source], Iterator[Planted]]
    rules: frozenset[str] = field(default=frozenset())
    is_kept: bool = False
    """Whether it keeps the graph of a tensor that has one, and changes no numbers."""
    is_factor: bool = False
    """Whether it multiplies the loss: then only weights show whether training changes."""
    is_order: bool = False
    """Whether it changes an order, which matters to training only."""


def _operator(plant: Callable[[Source], Iterator[Planted]], *rules: str, **kinds: bool) -> Operator:
    return Operator(plant=plant, rules=frozenset(rules), **kinds)


_ALL = (
    _operator(drop_zero_grad, "LOOP01"),
    _operator(zero_grad_after_backward, "LOOP02"),
    _operator(step_before_backward, "LOOP01", "LOOP02", "LOOP10"),
    _operator(drop_step, "LOOP02", "LOOP10", "LOOP01", "PAR07"),
    _operator(double_step, "LOOP17"),
    _operator(double_backward, "LOOP03", is_factor=True),
    _operator(detach_loss, "LOOP12", "PAR06"),
    _operator(keep_loss, "LOOP15", is_kept=True),
    _operator(average_twice, "PROBE07", "LOOP03", "LOOP21", is_factor=True),
    _operator(drop_clip, "PROBE07", "LOOP11"),
    _operator(clip_after_step, "LOOP05"),
    _operator(clip_before_backward, "LOOP05"),
    _operator(drop_schedule, "LOOP10", "LOOP09"),
    _operator(schedule_every_batch, "LOOP09", "LOOP10"),
    _operator(schedule_first, "LOOP10", "LOOP09"),
    _operator(warmup_not_applied, "LOOP10", "LOOP09"),
    _operator(rate_too_high, "LOOP11", "PROBE04", "PROBE06", "PROBE07"),
    _operator(rate_zero, "PAR07", "PROBE07"),
    _operator(drop_eval, "MODE01"),
    _operator(drop_train, "MODE03"),
    _operator(train_for_eval, "MODE01"),
    _operator(eval_for_train, "MODE03"),
    _operator(drop_no_grad, "MODE02", "LOOP15"),
    _operator(undying_dropout, "MODE04"),
    _operator(drop_detach, "LOOP13", "LOOP15", "LOOP02", "LOOP01", "PAR04"),
    _operator(detach_prediction, "LOOP12", "PAR06", "LOSS06"),
    _operator(round_prediction, "LOSS06", "PAR06"),
    _operator(share_target, "PAR13"),
    _operator(optimize_first_only, "PAR04"),
    _operator(optimize_last_only, "PAR04"),
    _operator(optimize_a_copy, "PAR03", "PAR04", "PAR06"),
    _operator(plain_list, "PAR01"),
    _operator(repeat_layer, "PAR02"),
    _operator(zero_weights, "PAR06", "PROBE04", "PROBE06"),
    _operator(softmax_twice, "LOSS01"),
    _operator(softmax_without_log, "LOSS01"),
    _operator(softmax_over_batch, "LOSS04", "PROBE01"),
    _operator(sigmoid_twice, "LOSS02"),
    _operator(broadcast_target, "LOSS03"),
    _operator(sum_for_mean, "PROBE07", is_factor=True),
    _operator(predict_itself, "LOSS06", "PAR06", "PAR07"),
    _operator(swap_arguments, "LOOP12", "LOSS02", "LOSS01", "PAR06"),
    _operator(roll_labels, "PROBE01", "LOSS08", "DATA04", "DATA09", "DATA14"),
    _operator(clamp_logits, "PROBE04", "PROBE06", "LOSS12"),
    _operator(wrong_axis, "PROBE01", "LOSS04", "LOSS03"),
    _operator(reshape_for_transpose, "PROBE01", "PROBE02", "PROBE09"),
    _operator(mix_samples, "PROBE01", "PROBE02", "PROBE09"),
    _operator(drop_mask, "PROBE02", "LOSS07"),
    _operator(predict_the_input, "PROBE02", "LOSS08"),
    _operator(shuffle_off, "DATA04", "DATA03", is_order=True),
    _operator(test_on_training_data, "DATA05"),
    _operator(raw_pixels, "DATA07", "DATA16"),
    _operator(drop_normalize, "DATA07", "DATA16"),
    _operator(random_evaluation, "DATA06"),
    _operator(drop_seed, "REPRO01"),
    _operator(save_without_optimizer, "CKPT02"),
)
OPERATORS: Mapping[str, Operator] = {item.plant.__name__: item for item in _ALL}
BLIND = frozenset(random.Random(23).sample(sorted(OPERATORS), 10))
"""Drawn before the first mutant was run; kept out of all tuning."""
