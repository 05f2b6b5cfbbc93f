"""Why another number of processes gives other weights.

Owns what shows in the evidence of all processes of a run: who seeds with what, how many samples a step has,
and whether gradients are the same but for a factor and rounding.
"""

from collections import defaultdict
from collections.abc import Sequence

from truestep.verify.causes import FoundCause
from truestep.verify.chains import Divergence
from truestep.verify.runs import Ran
from truestep.watch import Process
from truestep.watch.evidence.facts.loading import BatchFetched
from truestep.watch.evidence.facts.surroundings import GeneratorSeeded
from truestep.watch.evidence.sketch import Sketch, distance

_TOLERANCE = 1e-5
"""How far apart, as a part of their norm, rounding leaves float32 gradients of one step."""


def explain(first: Ran, second: Ran, *, divergence: Divergence) -> FoundCause:
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
    update = divergence.second or divergence.first
    place = (update.file, update.line) if update is not None else (None, None)
    return FoundCause(name="process-count", file=place[0], line=place[1])


def refine(finding: FoundCause, runs: Sequence[Ran], *, step: int) -> None:
    """Say whether what is left is rounding, once a factor is undone; both runs have sketches of gradients."""
    runs = sorted(runs, key=lambda ran: len(ran.processes))
    sizes = [len(ran.processes) for ran in runs]
    if finding.name != "process-count" or not sizes[0] or sizes[0] == sizes[1]:
        return
    sketches = [_gradients(ran.processes[0], step) for ran in runs]
    if sketches[0] is None or sketches[1] is None:
        return
    ratio = sizes[1] / sizes[0]
    factors = {1.0: "process-rounding", ratio: "process-scaling", 1 / ratio: "process-scaling"}
    for factor, name in factors.items():
        apart = distance([None if item is None else item * factor for item in sketches[0]], sketches[1])
        if apart is not None and apart <= _TOLERANCE:
            finding.name = name
            times = f" times {factor:g}" if factor != 1 else ""
            finding.evidence.append(
                f"step {step + 1}: gradients on {sizes[0]}{times} and {sizes[1]} processes are {apart:.1g} "
                f"apart, relative to their size; rounding stays below {_TOLERANCE:g}"
            )
            return
    apart = distance(sketches[0], sketches[1])
    if apart is not None:
        finding.evidence.append(f"step {step + 1}: gradients are {apart:.1g} apart: more than rounding")
    batches = [_batch_size(ran.processes[0], step) for ran in runs]
    if batches[0] is not None and batches[0] == batches[1]:
        finding.evidence.append(
            f"each process takes batches of {batches[0]}: a step on {sizes[1]} processes trains on "
            f"{batches[0] * sizes[1]} samples, on {sizes[0]} on {batches[0] * sizes[0]}"
        )


def _gradients(process: Process, step: int) -> Sketch | None:
    updates = [update for update in process.updates if update.step == step]
    found: Sketch | None = updates[0].parts.get("sketch", {}).get("gradients") if updates else None
    return found


def _batch_size(process: Process, step: int) -> int | None:
    """Return how many samples the step's first batch has, if its tensors say so."""
    for moment in process.of(BatchFetched):
        tensors = moment.facts.tensors
        if moment.step == step and tensors and tensors[0]:
            shape = next(item for item in tensors[0] if not isinstance(item, str))
            return int(shape[0]) if shape else None
    return None
