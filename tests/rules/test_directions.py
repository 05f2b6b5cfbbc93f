"""Which way a metric improves, as its name shows: through assignments, negations and calls."""

import ast

import pytest

from truestep.rules import Source
from truestep.rules.loop._directions import UNCLEAR, Metrics

STOPPER = """
class Stopper:
    def offer(self, value, model):
        {before}
        if self.best is None or value > self.best:
            self.best = value

stopper = Stopper()
{calls}
"""
CASES = {
    "given": ("pass", "stopper.offer(val_loss, model)", "min"),
    "given by name": ("pass", "stopper.offer(model=model, value=metrics['accuracy'])", "max"),
    "negated where it is given": ("pass", "stopper.offer(-val_loss.item(), model)", "max"),
    "one minus": ("pass", "stopper.offer(1 - accuracy, model)", "min"),
    "assigned before": ("pass", "score = -val_loss\nstopper.offer(score, model)", "max"),
    "both ways": ("pass", "stopper.offer(val_loss, model)\nstopper.offer(accuracy, model)", UNCLEAR),
    "turned inside": ("value = -value", "stopper.offer(val_loss, model)", UNCLEAR),
    "mode": ("x = self.mode", "stopper.offer(val_loss, model)", UNCLEAR),
    "negated when it is computed": ("pass", "val_loss = -f()\nstopper.offer(val_loss, model)", UNCLEAR),
    "likelihood": ("pass", "stopper.offer(log_likelihood, model)", UNCLEAR),
    "score": ("pass", "score = evaluate(model)\nstopper.offer(score, model)", None),
    "computed from a loss": ("pass", "stopper.offer(fitness(val_loss), model)", None),
    "never called": ("pass", "other.offer(val_loss, model)", None),
}


@pytest.mark.parametrize(("before", "calls", "way"), CASES.values(), ids=CASES)
def test_a_value_improves_as_what_it_is_given(before: str, calls: str, way: str | None) -> None:
    source = Source("train.py", STOPPER.format(before=before, calls=calls))
    (value,) = [
        node.test.values[1].left
        for node in ast.walk(source.tree)
        if isinstance(node, ast.If)
        and isinstance(node.test, ast.BoolOp)
        and isinstance(node.test.values[1], ast.Compare)
    ]
    assert Metrics([source]).way_of(source, value).direction == way
