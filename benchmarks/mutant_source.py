"""A training script as text and syntax tree, and edits of it that keep line numbers.

Owns how a planted mistake is written into a script. Which mistakes there are is left to `mutant_operators`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, TypeGuard


class Edit(NamedTuple):
    """Text that takes the place of a node's."""

    node: ast.AST
    text: str


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A place and what is written there: several edits make one mistake."""

    edits: tuple[Edit, ...]

    @property
    def line(self) -> int:
        """Where the mistake is."""
        return self.edits[0].node.lineno  # type: ignore[attr-defined]


class Source:
    """A script, its tree, and what its names stand for as far as one can read that off."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self.nodes = [*ast.walk(self.tree)]
        self.calls = sorted(
            (node for node in self.nodes if isinstance(node, ast.Call)),
            key=lambda node: (node.lineno, node.col_offset),
        )
        self.blocks = [
            block
            for node in self.nodes
            for name in ("body", "orelse", "finalbody")
            if isinstance(block := getattr(node, name, None), list)
            and block
            and isinstance(block[0], ast.stmt)
        ]
        self.sums_losses = bool(re.search(r"reduction=.sum|size_average=False", text))
        """Whether some loss is a sum, which may well be divided."""
        self.values: dict[str, str] = {}
        """By the name that is assigned to (`criterion`, `self.optimizer`): what is called for its value."""
        for node in self.nodes:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                for target in node.targets:
                    self.values[ast.unparse(target)] = called(node.value)

    def piece(self, node: ast.AST) -> str:
        """Return a node's text."""
        return ast.get_source_segment(self.text, node) or ""

    def kind(self, node: ast.expr) -> str:
        """Return what made the value of an expression, if that is known."""
        return self.values.get(ast.unparse(node), "")

    def statements(self, name: str) -> Iterator[ast.Expr]:
        """Yield the statements that only call a method or function of this name."""
        for call in self.calls:
            if called(call) == name and (statement := self.statement(call)):
                yield statement

    def statement(self, call: ast.Call) -> ast.Expr | None:
        """Return the statement that is only this call."""
        return next((n for n in self.nodes if isinstance(n, ast.Expr) and n.value is call), None)

    def is_step(self, statement: ast.Expr) -> bool:
        """Return whether an optimizer, as far as names tell, is stepped."""
        owner = owner_of(statement)
        text = ast.unparse(owner).lower() if owner is not None else ""
        return "opt" in text or self.kind(owner) in OPTIMIZERS if owner is not None else False

    def is_schedule(self, statement: ast.Expr) -> bool:
        """Return whether a scheduler is stepped."""
        owner = owner_of(statement)
        text = ast.unparse(owner).lower() if owner is not None else ""
        return "sched" in text or (owner is not None and "LR" in self.kind(owner))

    def methods(self, *names: str) -> Iterator[tuple[ast.Call, ast.expr]]:
        """Yield calls of methods of these names, with what they are called on."""
        for call in self.calls:
            if called(call) in names and isinstance(call.func, ast.Attribute):
                yield call, call.func.value

    def losses(self) -> Iterator[tuple[ast.Call, str]]:
        """Yield calls of a loss with prediction and target, and the loss's kind."""
        for call in self.calls:
            kind = called(call) if called(call) in FUNCTIONAL else self.kind(call.func)
            if (kind in FUNCTIONAL or kind in LOSSES) and len(call.args) >= 2:
                yield call, FUNCTIONAL.get(kind, kind)


OPTIMIZERS = {"SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "NAdam", "RAdam", "Adamax"}
FUNCTIONAL = {
    "cross_entropy": "CrossEntropyLoss",
    "nll_loss": "NLLLoss",
    "mse_loss": "MSELoss",
    "binary_cross_entropy": "BCELoss",
    "binary_cross_entropy_with_logits": "BCEWithLogitsLoss",
    "smooth_l1_loss": "SmoothL1Loss",
    "l1_loss": "L1Loss",
}
LOSSES = set(FUNCTIONAL.values())


def called(call: ast.Call) -> str:
    """Return the last name of what is called."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def is_call(node: ast.AST | None, *names: str) -> TypeGuard[ast.Call]:
    """Return whether a node calls something of one of these names."""
    return isinstance(node, ast.Call) and called(node) in names


def owner_of(statement: ast.Expr) -> ast.expr | None:
    function = statement.value.func if isinstance(statement.value, ast.Call) else None
    return function.value if isinstance(function, ast.Attribute) else None


def one(node: ast.AST, text: str) -> Planted:
    return Planted(edits=(Edit(node, text),))


def apply(source: Source, planted: Planted) -> str:
    """Return the script with the mistake in it. Lines keep their numbers."""
    lines = source.text.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    content = source.text.encode()
    spans = []
    for node, text in planted.edits:
        begin = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        end = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        spans.append((begin, end, text.encode()))
    for begin, end, given in sorted(spans, reverse=True):
        num_lines = content[begin:end].count(b"\n")
        new = re.sub(rb"\s*\n\s*", b" ", given) if given.count(b"\n") > num_lines else given
        padding = _padding(content[end:], num_lines - new.count(b"\n"))
        content = content[:begin] + new + padding + content[end:]
    return content.decode()


def _padding(rest: bytes, num_lines: int) -> bytes:
    """Return what keeps the numbers of the lines that follow, after text that is shorter by so many lines."""
    is_at_end = not rest.split(b"\n", 1)[0].split(b"#")[0].strip()
    return num_lines * (b"\n" if is_at_end else b"\\\n")
