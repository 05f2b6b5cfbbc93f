"""Forward passes as the rules of this family see them: in which mode, whether used, and from which loader.

Owns telling evaluation from what only looks like it: targets, samples and statistics made for training.
"""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from truestep.rules import Evidence, Source
from truestep.rules.kit.edits import around
from truestep.rules.kit.grouping import grouped
from truestep.rules.kit.syntax import walk
from truestep.rules.kit.where import calls, covers, has_run, name_of
from truestep.watch import Moment
from truestep.watch.evidence.facts.loading import BatchFetched, EpochBegan, LoaderUsed
from truestep.watch.evidence.facts.optimizing import GraphMeasured, OptimizerOwns, OptimizerStep
from truestep.watch.evidence.facts.passes import LayersListed, PassesUsed, PassExamined

MIN_RUN = 3
_MAKING = frozenset(
    (
        *("to", "cuda", "cpu", "float", "half", "long", "clone", "detach"),
        *("unsqueeze", "view", "reshape", "flatten", "zeros", "ones", "rand", "randn", "randint"),
    )
)

_WITHOUT_GRADIENTS = frozenset({"no_grad", "inference_mode", "set_grad_enabled"})
_ESTIMATING = "update_bn"
"""Torch's function that passes data through an averaged model for its statistics."""


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One outermost forward pass."""

    moment: Moment[LayersListed | PassExamined]
    facts: PassExamined
    is_used: bool
    """Whether a backward pass has reached it."""
    layers: LayersListed | None
    """Which layers the mode matters for, and how many of them are switched to training."""

    @property
    def num_on(self) -> int:
        """How many of the layers for which it matters are in train mode."""
        return 0 if self.layers is None else self.layers.num_on

    @property
    def num_layers(self) -> int:
        """How many layers there are for which it matters."""
        return 0 if self.layers is None else self.layers.num_layers

    @property
    def place(self) -> tuple[str | None, int | None, int]:
        """Line and model."""
        return self.moment.file, self.moment.line, self.facts.model


def read_passes(evidence: Evidence) -> list[Pass]:
    """Return all forward passes that were noted, in their order."""
    used = {number for moment in evidence.of(PassesUsed) for number in moment.facts.numbers}
    layers: dict[int, LayersListed] = {}
    found = []
    for moment in evidence.of(LayersListed, PassExamined):
        facts = moment.facts
        if isinstance(facts, LayersListed):
            layers[facts.model] = facts
        else:
            is_used = facts.number in used
            found.append(Pass(moment=moment, facts=facts, is_used=is_used, layers=layers.get(facts.model)))
    return found


def by_place(passes: Iterable[Pass]) -> dict[tuple[str | None, int | None, int], list[Pass]]:
    """Return passes by line and model."""
    return grouped(passes, "place")


def runs_of(passes: Iterable[Pass]) -> list[list[Pass]]:
    """Return passes that follow each other without a step between them."""
    runs = grouped(passes, "moment.step")
    return [runs[step] for step in sorted(runs)]


def has_evaluation_run(passes: list[Pass]) -> bool:
    """Whether several inputs in a row are passed through, and not in each step of training."""
    runs = [run for run in runs_of(passes) if len(run) >= MIN_RUN and not is_repeated(run)]
    steps = [run[0].moment.step for run in runs]
    gaps = [later - step for step, later in pairwise(steps)]
    return bool(runs) and not (len(gaps) > 1 and sorted(gaps)[len(gaps) // 2] <= 1)


def is_repeated(run: list[Pass]) -> bool:
    """Whether one input is passed through again and again, as for Monte-Carlo dropout."""
    known = [item.facts.given for item in run if item.facts.given >= 0]
    return len(known) > 1 and len(set(known)) <= len(known) // 2


def evaluation_loaders(evidence: Evidence, passes: list[Pass]) -> set[int]:
    """Return loaders whose batches are drawn with no step between one and the next, in each epoch."""
    steps: dict[int, list[set[int]]] = defaultdict(list)
    lengths = {moment.facts.loader: moment.facts.length for moment in evidence.of(LoaderUsed)}
    for moment in evidence.of(EpochBegan, BatchFetched):
        loader = moment.facts.loader
        if isinstance(moment.facts, EpochBegan):
            steps[loader].append(set())
        elif steps[loader]:
            steps[loader][-1].add(moment.step)
    is_drawn = {
        loader: any(epochs) and all(len(epoch) <= 1 for epoch in epochs) for loader, epochs in steps.items()
    }
    known = {loader for loader, answer in is_drawn.items() if answer and lengths.get(loader) is not None}
    return known - _training_loaders(evidence, passes)


def _training_loaders(evidence: Evidence, passes: list[Pass]) -> set[int]:
    """Return loaders most of whose batches are trained on: `next(iter(loader))` has one in each epoch."""
    batches, fed = evidence.of(BatchFetched), _batches_of(evidence, passes)
    seen = Counter(batches[place].facts.loader for place in set(fed.values()))
    used = {fed[item.facts.number] for item in passes if item.is_used and item.facts.number in fed}
    trained = Counter(batches[place].facts.loader for place in used)
    return {loader for loader, num in seen.items() if 2 * trained[loader] > num}


def fed_by(evidence: Evidence, passes: Iterable[Pass]) -> dict[int, int]:
    """Return, for each pass, the loader whose batch was drawn last before it and since the last step."""
    batches = evidence.of(BatchFetched)
    fed = _batches_of(evidence, passes)
    return {number: batches[place].facts.loader for number, place in fed.items()}


def _batches_of(evidence: Evidence, passes: Iterable[Pass]) -> dict[int, int]:
    """Return, for each pass, the place of that batch among all batches."""
    batches = evidence.of(BatchFetched)
    found, place = {}, 0
    for item in sorted(passes, key=lambda item: item.moment.at_s):
        while place < len(batches) and batches[place].at_s <= item.moment.at_s:
            place += 1
        if place and batches[place - 1].step == item.moment.step:
            found[item.facts.number] = place - 1
    return found


def is_thrown_away(evidence: Evidence, moment: Moment[Any]) -> bool:
    """Whether the line is a call and nothing else: statistics are estimated, or shapes found out."""
    source = evidence.source(moment.file)
    if source is None or moment.line is None:
        return False
    calls = [
        (node, node.value)
        for node in walk(source.tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ]
    for node, call in calls:
        if node.lineno <= moment.line <= (node.end_lineno or node.lineno):
            return name_of(call.func) == _ESTIMATING or _is_plain_call(call)
    return False


def _is_plain_call(call: ast.Call) -> bool:
    """Whether what is called takes no other call's result, apart from tensors that are made or moved."""
    inner = [node for item in (*call.args, *call.keywords) for node in walk(item)]
    return all(
        isinstance(node.func, ast.Attribute) and node.func.attr in _MAKING
        for node in inner
        if isinstance(node, ast.Call)
    )


def owners(evidence: Evidence) -> dict[int, dict[int, tuple[int, int]]]:
    """Return by model, then by optimizer: how many of its parameters are trained, and how many it has."""
    found: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
    for moment in evidence.of(OptimizerOwns):
        facts = moment.facts
        found[facts.model][facts.optimizer] = (facts.num_trained, facts.num_weights)
    return found


def trained_by_hand(evidence: Evidence, passes: Iterable[Pass]) -> set[int]:
    """Return models that are trained in a script without optimizers, whose weights change nevertheless."""
    if evidence.has(OptimizerStep) or not any(moment.facts.turn for moment in evidence.of(GraphMeasured)):
        return set()
    return {item.facts.model for item in passes if item.is_used and item.facts.is_training}


def evaluation_line(evidence: Evidence, moment: Moment[Any]) -> int | None:
    """Return where a pass's evaluation begins: its loop, or the block without gradients around that.

    The block may be where the function that evaluates is called.
    """
    source = evidence.source(moment.file)
    if source is None:
        return moment.line
    first, loop = moment.line, loop_around(source, moment.line)
    while loop is not None and not _leads_to_training(source, loop):
        first, loop = loop.lineno, loop_around(source, loop.lineno)
    block = _without_gradients(source, first)
    if block is not None and block.body[0].lineno <= (first or 0):
        return block.lineno
    function = around(source, moment.line, ast.FunctionDef)
    blocks = [
        _without_gradients(source, call.lineno)
        for call in (() if function is None else calls(source.tree, function.name))
        if has_run(evidence, source, line=call.lineno)
    ]
    around_calls = {block.lineno for block in blocks if block is not None}
    return around_calls.pop() if len(around_calls) == 1 and None not in blocks else first


def _without_gradients(source: Source, line: int | None) -> ast.With | None:
    """Return the block around a line, if it is one without gradients."""
    block = around(source, line, ast.With)
    names = set() if block is None else {name_of(node) for item in block.items for node in walk(item)}
    return block if isinstance(block, ast.With) and names & _WITHOUT_GRADIENTS else None


def called_from(evidence: Evidence, moment: Moment[Any]) -> Moment[Any]:
    """Return a pass that a model makes in its own method as made at the one line that calls the method."""
    source = evidence.source(moment.file)
    method = None if source is None else around(source, moment.line, ast.FunctionDef)
    if method is None or not any(covers(call, moment.line) and _is_own(call) for call in _calls(method)):
        return moment
    found = [
        (other, call.lineno)
        for other in evidence.sources
        for call in calls(other.tree, method.name)
        if not _is_own(call) and has_run(evidence, other, line=call.lineno)
    ]
    if len(found) != 1:
        return moment
    caller, line = found[0]
    function = around(caller, line, ast.FunctionDef, ast.AsyncFunctionDef)
    return replace(
        moment, file=caller.path, line=line, function="<module>" if function is None else function.name
    )


def _calls(node: ast.AST) -> list[ast.Call]:
    return [item for item in walk(node) if isinstance(item, ast.Call)]


def _is_own(call: ast.Call) -> bool:
    """Whether an object calls itself, or what is its own."""
    function = call.func.value if isinstance(call.func, ast.Attribute) else call.func
    return name_of(function) == "self"


def loop_around(source: Source, line: int | None) -> Any:
    """Return the innermost loop around a line, in the same function; None if there is none."""
    loop = around(source, line, ast.For, ast.While)
    function = around(source, line, ast.FunctionDef, ast.AsyncFunctionDef)
    is_outside = loop is not None and function is not None and function.lineno > loop.lineno
    return None if is_outside else loop


def trains(node: ast.AST) -> bool:
    """Whether code calls what makes steps."""
    names = {item.attr for item in walk(node) if isinstance(item, ast.Attribute)}
    return bool(names & {"backward", "step", "manual_backward"})


def _leads_to_training(source: Source, node: ast.AST) -> bool:
    """Whether code trains, or calls a function of its file that does."""
    called = {name_of(call.func) for call in _calls(node)}
    functions = [item for item in walk(source.tree) if isinstance(item, ast.FunctionDef)]
    return trains(node) or any(item.name in called and trains(item) for item in functions)


def layers_text(layers: LayersListed, names: list[str]) -> str:
    """Name layers and how many of them are in train mode."""
    return f"{', '.join(names) or 'none'} ({layers.num_on} of {layers.num_layers} layers in train mode)"
