"""The page of a rule as Markdown: what its file has to say, its fix, and what every rule has.

Owns how a page is put together, for the documentation and for `truestep rule`.
"""

import re
from collections.abc import Iterator

from truestep.rules.rule import SECTIONS, Rule

_MOMENTS = {
    "GradientsApplied": "an optimizer step that applies gradients",
    "BackwardPass": "a backward pass",
    "ClippingCalled": "gradient clipping",
    "GradientsClipped": "gradient clipping",
    "ForwardPass": "a forward pass",
    "GraphMeasured": "a backward pass",
    "LoaderUsed": "a `DataLoader`",
    "ClassesScored": "a loss function of torch",
    "ModelUsed": "a model",
    "CheckpointLoaded": "a checkpoint that is read",
    "ParallelMade": "a wrapper such as DDP or `DataParallel`",
    "PassExamined": "a forward pass of training or evaluation",
    "ModelRefilled": "weights that are loaded into a model",
    "ReplicaDigested": "several processes",
    "ParametersListed": "an optimizer",
    "SamplesSeen": "batches of a `DataLoader`",
    "SchedulerMade": "a learning-rate scheduler",
    "SchedulerStep": "a learning-rate scheduler",
    "OptimizerStep": "an optimizer step",
    "GradientsUnscaled": "a gradient scaler",
}
"""Kinds of evidence that rules need, for readers. A kind without words here is not named on the page."""


def family_of(rule: Rule) -> str:
    """Return the letters of its code."""
    return rule.meta.code.rstrip("0123456789")


def is_for_machine(rule: Rule) -> bool:
    """Whether it is about the machine: then the doctor runs it, and no line can suppress it."""
    return family_of(rule) == "ENV" and not rule.meta.needs


def build_page(rule: Rule, *, bug: str = "", good: str = "") -> Iterator[str]:
    """Yield the lines of a rule's page: what its file says, an example if given, and what every rule has."""
    finds, why, fix = _sections_of(rule)
    yield f"# {rule.meta.code} {rule.name}\n"
    by = "truestep doctor" if is_for_machine(rule) else "truestep check"
    yield f"*{rule.meta.severity}* · reported by `{by}` · [all rules](../rules.md)\n"
    yield f"{rule.title}\n"
    yield f"## What it finds\n{finds}\n"
    yield f"## Why is this bad?\n{why}\n"
    if bug:
        yield f"## Example\n\n```py\n{bug}\n```\n"
        yield f"## Use instead\n{fix}\n\n```py\n{good}\n```\n"
    else:
        yield f"## How to fix\n{fix}\n"
    yield from _detection(rule)
    if not is_for_machine(rule):
        yield "## How to suppress"
        yield f"Add a comment on the line or above it: `# truestep: ignore[{rule.name}] why`.\n"
        yield "More ways: [suppress findings](../how-to/suppress.md)."
    else:
        yield f'## How to suppress\nAdd it to `pyproject.toml`: `ignore = ["{rule.meta.code}"]`.\n'
        yield "More: [configuration](../configuration.md)."


def _sections_of(rule: Rule) -> list[str]:
    """Return the texts of the sections that every rule's documentation has, in their order."""
    parts = re.split(r"^## (.+)$", rule.document, flags=re.MULTILINE)
    texts = dict(zip(parts[1::2], parts[2::2], strict=True))
    return [texts[name].strip() for name in SECTIONS]


def _detection(rule: Rule) -> Iterator[str]:
    """Yield how and when the rule runs."""
    needs = list(
        dict.fromkeys(_MOMENTS[kind.__name__] for kind in rule.meta.needs if kind.__name__ in _MOMENTS)
    )
    if needs:
        yield "## When it does not apply"
        yield "The rule needs to observe the following. Without it the rule did not apply:\n"
        yield "\n".join(f"- {words}" for words in needs) + "\n"
    if rule.meta.caused_by:
        links = ", ".join(f"[{code}]({code}.md)" for code in rule.meta.caused_by)
        yield f"If one of these rules reports the cause, this finding is shown under it: {links}.\n"
