"""What else is known of a resume: who draws, what repairs it, how long it takes, and torn saves.

Owns the lines that are told with a cause. Which cause it is, is found by `resume`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from truestep.base.cells import line_name
from truestep.verify import chains, repairs
from truestep.verify.causes import FoundCause
from truestep.verify.lines import loaded_name, loader_words, saved_name
from truestep.verify.runs import Ran, Runner, chain_plan
from truestep.verify.suspects import drawn_by_dataset
from truestep.watch import DIGESTS, Moment, Plan, Process
from truestep.watch.evidence.facts.loading import BatchFetched, EpochBegan
from truestep.watch.evidence.facts.optimizing import OptimizerStep
from truestep.watch.evidence.facts.structure import FileLoaded, FileSaved
from truestep.watch.evidence.facts.surroundings import SourceRead

_ORDER = ("loader-position-not-saved", "data-order-not-restored", "shuffle-epoch-not-restored")
_DRAWS = ("generator-not-saved", "generator-moved-after-restore", "worker-generator-not-saved")
_TEAR = "truestep.watch.control.tearing:tear"


def add_repair(
    finding: FoundCause, runner: Runner, *, runs: tuple[Ran, Ran], divergence: chains.Divergence
) -> None:  # limits: a cause, two runs, where they differ, and how to make a third
    """Add the lines that repair what a checkpoint lacks, and where numbers are drawn."""
    first, resumed = (ran.first for ran in runs)
    base = runs[0].way
    if base.processes not in (None, 1) or first is None or resumed is None:
        return  # each process has its own share of an epoch: the lines are for one
    is_restored = finding.is_proved and not first.of(EpochBegan)  # a loader's order is drawn long before
    if finding.name not in (*_ORDER, *_DRAWS) or (finding.name == _DRAWS[0] and is_restored):
        if divergence.saved is not None and not finding.variables:
            return  # names in a file are not those of variables
        saved, loaded = first.of(FileSaved), resumed.of(FileLoaded)
        finding.repair = list(
            repairs.state_lines(
                repairs.framework_of(_files([], finding)),
                finding.name,
                names=finding.variables or divergence.names,
                kinds=finding.kinds or None,
                saved=saved_name(saved[-1].file, saved[-1].line) or "state" if saved else "state",
                loaded=loaded_name(loaded[0].file, loaded[0].line) or "state" if loaded else "state",
            )
        )
        return
    if finding.name == "generator-moved-after-restore" and is_restored:
        return  # no loader draws: the line that does is for the reader to find
    plan = Plan(digests=DIGESTS, operations=(1, 1), sources=True, steps=2)
    looked_at = runner.run(replace(base, kind="first", workers=0), plan=plan).first
    if looked_at is None:
        return
    in_dataset, in_step = _draws(looked_at)
    if in_dataset:
        finding.evidence.append(f"the dataset draws random numbers ({in_dataset})")
    is_order = finding.name in _ORDER or ("batch" in divergence.parts and not in_dataset)
    parts: list[repairs.Part] = ["order"] if is_order else []
    parts += ["samples"] if in_dataset else []
    parts += ["step"] if in_step else []
    framework = repairs.framework_of(_files(looked_at.moments, finding))
    fetched = [(item.file, item.line) for item in looked_at.of(BatchFetched)]
    words = next((loader_words(file, line) for file, line in fetched if file and line), None)
    finding.repair = list(repairs.data_lines(framework, parts, words=words))


def _draws(process: Process) -> tuple[str | None, bool]:
    """Return where the dataset draws, and whether the rest of a step does."""
    fetched = [(item.at_s, item.at_s + item.took_s) for item in process.of(BatchFetched)]
    drawn = [item for item in process.of(SourceRead) if item.facts.what in ("random", "numpy")]
    of_dataset = [item for item in drawn if any(begun <= item.at_s <= ended for begun, ended in fetched)]
    places = [(item.file, item.line) for item in drawn_by_dataset(process)]
    places += [(item.file, item.line) for item in of_dataset]
    where = next(
        (line_name(file, line, shown=file.rpartition("/")[2]) for file, line in places if file), None
    )
    in_step = any(item.is_random and item.phase != "data" for item in process.operations)
    return where, in_step or any(item.step == 1 and item not in of_dataset for item in drawn)


def _files(moments: Sequence[Moment[Any]], finding: FoundCause) -> Iterator[str]:
    """Return the script's own files, as far as something happened in them."""
    yield from dict.fromkeys(file for file in (finding.file, *(item.file for item in moments)) if file)


def timing(first: Ran, second: Ran, *, resumed: chains.Resumed) -> dict[str, Any]:
    """Return how long after its start a resumed run makes its first new step, and the first run its first."""
    return {
        "after_step": resumed.after,
        "seconds": _seconds(second.first),
        "first_seconds": _seconds(first.first),
        "torn_save": None,
    }


def _seconds(process: Process | None) -> float | None:
    steps = process.of(OptimizerStep) if process is not None else []
    return round(steps[0].at_s + steps[0].took_s, 3) if steps else None


def torn_save(  # limits: two runs, and how to make a third
    first: Ran, second: Ran, runner: Runner, *, kill_at: int, arguments: tuple[str, ...]
) -> dict[str, Any] | None:
    """Return which save leaves a file that the script cannot be started with, if it is killed during it."""
    if first.first is None or second.first is None:
        return None
    saves = [moment for moment in first.first.of(FileSaved) if moment.step < kill_at and moment.facts.path]
    if not saves:
        return None
    loaded = {moment.facts.path for moment in second.first.of(FileLoaded)}
    paths = sorted({str(moment.facts.path) for moment in saves if moment.facts.path in loaded})
    step = saves[-1].step
    has_earlier = any(moment.step < step for moment in saves)
    plan = replace(chain_plan(1), settings=((_TEAR, (step, paths)),))
    ran = runner.run(second.way, plan=plan, kill_at=kill_at, resume_arguments=arguments)
    killed = ran.before_kill[0] if ran.before_kill else None
    if killed is None or killed.num_steps >= kill_at or killed.ended is not None:
        return None  # nothing was torn: what is saved does not go straight into a file
    if ran.code == 0:
        resumed = chains.resumed_at(first, ran, kill_at=kill_at)
        if resumed.after != 0 or not has_earlier:
            return None
    torn = next((moment for moment in reversed(killed.of(FileSaved))), saves[-1])
    how = "starts over" if ran.code == 0 else f"fails: {_last_line(ran.tail)}"
    place = {"file": runner.original(torn.file), "line": torn.line, "path": torn.facts.path}
    return {**place, "how": how}


def _last_line(text: str) -> str:
    line = next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "no output")
    return line.partition(". ")[0]
