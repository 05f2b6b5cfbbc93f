"""Whether a script means to repeat: it seeds a generator.

Owns what counts as a seed that the script sets. Judges nothing.
"""

import ast
import re
from typing import Any

from truestep.rules import Evidence
from truestep.rules.kit.syntax import walk
from truestep.rules.kit.where import covers, name_of
from truestep.watch import Moment
from truestep.watch.evidence.facts.surroundings import GeneratorSeeded

_STATE = re.compile(r"state|rng|resume|load_|\.load\(", re.IGNORECASE)
_FIRST_STEPS = {0, 1, 2}


def is_meant_to_repeat(evidence: Evidence) -> bool:
    """Whether the script seeds any generator. Where processes have to agree, DIST rules compare them."""
    found = [item for generator in ("torch", "numpy", "random") for item in seeds(evidence, generator)]
    steps: dict[tuple[str | None, int | None], set[int]] = {}
    for item in found:
        steps.setdefault((item.file, item.line), set()).add(item.step)
    # A seed before every step stands for data that all processes shall have: it does not promise more.
    return any(not own >= _FIRST_STEPS for own in steps.values()) or any(
        item.facts.how == "new" and is_asked_here(evidence, item) for item in evidence.of(GeneratorSeeded)
    )


def seeds(evidence: Evidence, generator: str) -> list[Moment[Any]]:
    """Return the moments at which the script seeds one of the global generators."""
    known = [item for item in evidence.of(GeneratorSeeded) if item.facts.generator == generator]
    return [
        item
        for item in known
        if (item.facts.how == "seed" and not _is_undone(item, known))
        or (item.facts.how == "state" and _is_asked_for(evidence, item))
    ]


def _is_undone(seed: Moment[Any], known: list[Moment[Any]]) -> bool:
    """Whether the same line puts the old state back, as a library does that draws inside `fork_rng`."""
    place = (seed.file, seed.line)
    return any(
        item.facts.how == "state" and item.at_s > seed.at_s and (item.file, item.line) == place
        for item in known
    )


def _is_asked_for(evidence: Evidence, moment: Moment[Any]) -> bool:
    """Whether the script itself sets a state: frameworks put back the one that they found."""
    source = evidence.source(moment.file)
    return source is None or bool(_STATE.search(source.line(moment.line)))


def is_asked_here(evidence: Evidence, moment: Moment[Any]) -> bool:
    """Whether the user's own line makes the generator, not a library that it imports or calls."""
    source = evidence.source(moment.file)
    return source is not None and any(
        isinstance(node, ast.Call)
        and name_of(node.func) in ("default_rng", "seed")
        and moment.line is not None
        and covers(node, moment.line)
        for node in walk(source.tree)
    )
