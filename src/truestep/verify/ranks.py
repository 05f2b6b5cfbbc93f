"""Why another number of processes gives other weights.

Owns what shows in the evidence of all processes of a run: who seeds with what. Reads moments only.
"""

from collections import defaultdict

from truestep.verify.causes import FoundCause
from truestep.verify.chains import Parting
from truestep.verify.runs import Ran
from truestep.watch.evidence.facts.surroundings import GeneratorSeeded


def explain(first: Ran, second: Ran, *, parting: Parting) -> FoundCause:
    """Return the cause: seeds of ranks if there are some, else how sums are cut."""
    runs = sorted((first, second), key=lambda ran: len(ran.processes))
    seeds: dict[tuple[str, int], set[int]] = defaultdict(set)
    for process in runs[-1].processes:
        for moment in process.of(GeneratorSeeded):
            if moment.file and moment.line and moment.facts.seed is not None:
                seeds[moment.file, moment.line].add(moment.facts.seed)
    for (file, line), numbers in seeds.items():
        if len(numbers) > 1:
            said = f"{len(runs[-1].processes)} processes seed with {', '.join(map(str, sorted(numbers)))}"
            return FoundCause(name="seeded-per-rank", file=file, line=line, evidence=[said])
    update = parting.second or parting.first
    place = (update.file, update.line) if update is not None else (None, None)
    return FoundCause(name="process-count", file=place[0], line=place[1])
