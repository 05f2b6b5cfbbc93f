"""Processes of one job side by side, for rules that compare ranks."""

import re
from collections.abc import Iterator

from truestep.rules.evidence import Evidence
from truestep.rules.kit.loaders import ObservedLoader, find_loaders
from truestep.watch.evidence.facts.passes import ParallelMade

_JOIN = re.compile(r"^\s*with\s+(?:\w+\.)?[jJ]oin\(", re.MULTILINE)
"""`with model.join():`. Processes and threads are joined too, but not in a `with`."""


def is_parallel(evidence: Evidence) -> bool:
    """Whether all of several ranks train one model: wrapped in DDP, or sharded."""
    made = [item.facts for item in evidence.of(ParallelMade) if item.facts.what != "DataParallel"]
    return len(evidence.processes) > 1 and bool(made) and not any(facts.is_in_group for facts in made)


def loaders_by_rank(evidence: Evidence) -> list[dict[int, ObservedLoader]]:
    """Return the loaders of each rank by number: ranks run one script, so that numbers match."""
    found = []
    for process in evidence.processes:
        alone = Evidence(processes=[process], texts=evidence.texts)
        found.append({loader.number: loader for loader in find_loaders(alone)})
    return found


def shared_training_loaders(evidence: Evidence) -> Iterator[list[ObservedLoader]]:
    """Yield a loader that every rank trains on, as each of them has it."""
    ranks = loaders_by_rank(evidence)
    for number in sorted(set.intersection(*(set(rank) for rank in ranks))) if ranks else ():
        loaders = [rank[number] for rank in ranks]
        if all(loader.is_training for loader in loaders):
            yield loaders


def allows_uneven(evidence: Evidence) -> bool:
    """Whether the script uses torch's way to train on uneven inputs."""
    return any(_JOIN.search(source.text) for source in evidence.sources)
