"""The inquiry: run, run again in every way that was asked for, and explain the first difference.

Owns the order of things and what cannot be told. Evidence is read by the modules beside this one.
"""

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from truestep.base.cells import line_name
from truestep.errors import TruestepError
from truestep.verify import against, audit, chains, compiled, fingerprint, ranks, resume
from truestep.verify.causes import CAUSES, FoundCause
from truestep.verify.elimination import Elimination, as_far_as
from truestep.verify.options import VerifyOptions
from truestep.verify.others import Other, find_other
from truestep.verify.proof import Proof, unknown_cause
from truestep.verify.runs import Ran, Runner, chain_plan
from truestep.verify.suspects import drawn_by_dataset
from truestep.verify.verdict import Difference, RunSummary, Verdict
from truestep.verify.ways import OUTCOME, SHARED_OUTCOME, Way
from truestep.verify.written import WrittenFiles, keep
from truestep.watch import DIGESTS, Plan, Script, Update
from truestep.watch.evidence.facts.structure import FileLoaded, FileSaved
from truestep.watch.evidence.facts.surroundings import TorchImported
from truestep.watch.launch.following import OnStep, ignore_steps
from truestep.watch.launch.scratch import Scratch


class _Inconclusive(TruestepError):
    """The question has no answer, for the reason given."""


def verify(
    script: Script,
    asked: VerifyOptions,
    *,
    show: IO[Any] | None = None,
    on_status: Callable[[str], None] = lambda _line: None,
    on_step: OnStep = ignore_steps,
    on_run: Callable[[RunSummary], None] = lambda _run: None,
    on_likely: Callable[[Difference], None] = lambda _difference: None,
) -> Verdict:
    """Run a script again and again in copies of the working folder, and say whether it repeats.

    `show` is where the script's own output of the first run goes. `on_status` is called with what is being
    done, `on_step` hears of steps, `on_run` is called with each run that is over, `on_likely` with a likely
    cause before experiments prove one. Ctrl-C or the time given end it: what is known then is in the verdict.
    """
    verdict = Verdict()
    with Scratch(Path.cwd()) as scratch:
        located = script if script.is_module else replace(script, path=scratch.locate(script.path))
        others = [find_other(name, Path.cwd()) for name in asked.against]
        runner = Runner(
            script=located,
            scratch=scratch,
            steps=asked.steps,
            show=show,
            on_step=on_step,
            is_portable=asked.is_portable,
            deadline_s=asked.deadline_s(),
        )
        try:
            inquiry = _Inquiry(
                runner=runner,
                asked=asked,
                verdict=verdict,
                on_status=on_status,
                on_run=on_run,
                on_likely=on_likely,
            )
            inquiry.answer()
            if asked.save is not None and verdict.same:
                inquiry.save(asked.save)
            if asked.is_compiled and verdict.same:
                inquiry.compare_compiled()
            for other in others:
                if verdict.same:
                    inquiry.compare_with(other)
        except _Inconclusive as error:
            verdict.same, verdict.first_difference, verdict.reason = None, None, str(error)
        except KeyboardInterrupt:
            verdict.end_early("Ctrl-C or SIGTERM", num_wanted=asked.num_runs)
            verdict.is_interrupted = verdict.same is None
        except subprocess.TimeoutExpired:
            if asked.timeout_s is None:
                raise
            verdict.end_early(f"--timeout {asked.timeout_s:g}", num_wanted=asked.num_runs)
    return verdict


@dataclass(kw_only=True)
class _Inquiry:
    runner: Runner
    asked: VerifyOptions
    verdict: Verdict
    on_status: Callable[[str], None]
    on_run: Callable[[RunSummary], None]
    on_likely: Callable[[Difference], None]
    _first: Ran = field(init=False)

    def answer(self) -> None:
        """Fill in the verdict."""
        ways = [replace(self.asked.base, kind="again")] * (self.asked.runs - 1) + self.asked.ways
        self._first = self._run(self.asked.base)
        self.runner.num_steps = 1 + max(update.step for update in self._first.updates)
        files = keep(self.runner.scratch.written(), self.runner.scratch.new_folder())
        self._note(self._first, self._first.updates, divergence=None)
        self.verdict.num_steps = self.verdict.runs[0].num_steps
        self.verdict.is_whole = self._first.first is None or self._first.first.ended != "stopped"
        if not self.verdict.is_whole and self._first.first is not None:
            expected = self._first.first.expected_steps or 0
            self.verdict.expected_steps = expected if expected > self.verdict.num_steps else None
        for way in ways:
            if way.kind == "killed":
                divergence, finding = self._compare_killed(way, files)
            else:
                ran = self._run(way)
                self._compare_files(way, files)
                self._check_apart(ran)
                divergence = chains.compare(self._first, ran, outcome=way.outcome)
                if divergence is not None and way.kind == "processes":  # of batches each has its own share
                    parts = tuple(name for name in divergence.parts if name in way.outcome)
                    divergence = replace(divergence, parts=parts)
                self._note(ran, ran.updates, divergence=divergence)
                finding = None
                if divergence is not None:
                    self._note_difference(divergence)
                    finding = self._explain(ran, divergence)
            if divergence is not None and finding is not None:
                self.verdict.same = False
                self.verdict.first_difference = self._difference(divergence, finding)
                return
        self._check_readable()
        self.verdict.files = files if files.num_runs else None
        self.verdict.same = True

    def _compare_files(self, way: Way, files: WrittenFiles) -> None:
        """Compare what the last run has written; of several processes each may have its own share."""
        if way.kind != "processes":
            files.compare(self.runner.scratch.written(), was_ended=not self.verdict.is_whole)

    def compare_compiled(self) -> None:
        """Compare the models' first training calls, compiled and eager."""
        self.on_status("comparing the compiled model with the eager one")
        plan = Plan(settings=((compiled.AUDIT, None),))
        ran = self.runner.run(replace(self.asked.base, kind="again"), plan=plan)
        assert self.runner.folder is not None
        told = compiled.read(self.runner.folder)
        if told is None or "reason" in told:
            why = f" ({told['reason']})." if told is not None else f". Its last lines:\n{ran.tail}"
            raise _Inconclusive(f"the model could not be compiled and compared{why}")
        told["file"] = self.runner.original(told.get("file"))
        self.verdict.compiled = told
        if told["is_beyond"]:
            divergence = chains.Divergence(place=0, step=0, parts=("outputs",), first=None, second=None)
            difference = self._difference(divergence, compiled.explain(told))
            self.verdict.same = False
            self.verdict.first_difference = replace(difference, what="compiled outputs or gradients")

    def compare_with(self, other: Other) -> None:
        """Compare the first run with one of another version."""
        self._show(f"against {other.name}")
        way = replace(self.asked.base, kind=other.kind, python=other.python, commit=other.commit)
        if other.fingerprint is not None:
            ran, updates = None, other.fingerprint.updates
            is_whole = other.fingerprint.is_whole
        else:
            ran = self._checked(self.runner.run(way))
            self._check_own_files(ran, other)
            assert ran.first is not None
            updates, is_whole = ran.updates, ran.first.ended == "finished"
        assert self._first.first is not None
        ours = self._first.updates
        if not is_whole or self._first.first.ended != "finished":
            length = min(len(ours), len(updates))
            ours, updates = ours[:length], updates[:length]
        divergence = chains.diverge(ours, updates, outcome=against.OUTCOME)
        kept = ran or replace(self._first, way=way, seconds=0.0)
        self._note(replace(kept, way=way), updates, divergence=divergence, words=other.name)
        if divergence is not None:
            self._judge(other, way, ours=ours, theirs=updates, divergence=divergence)

    def _judge(
        self,
        other: Other,
        way: Way,
        *,
        ours: list[Update],
        theirs: list[Update],
        divergence: chains.Divergence,
    ) -> None:
        step = divergence.step
        found = None
        made = fingerprint.made_with(self._first.first, script="", arguments=()) if self._first.first else {}
        is_same_torch = other.fingerprint is None or other.fingerprint.made_with["torch"] == made["torch"]
        if other.fingerprint is None or step == 0:
            self.on_status(f"comparing the operations of step {step + 1}")
            plan = Plan(digests=DIGESTS, operations=(step, step), steps=step + 1)
            first = self.runner.run(self.asked.base, plan=plan).first
            if other.fingerprint is not None:
                calls = other.fingerprint.operations
            else:
                process = self.runner.run(way, plan=plan).first
                calls = fingerprint.calls_of(process, step=step) if process is not None else []
                versions = [
                    moment.facts.version
                    for item in (first, process)
                    if item is not None
                    for moment in item.of(TorchImported)
                ]
                is_same_torch = len(set(versions)) == 1
            if first is not None:
                found = against.split(fingerprint.calls_of(first, step=step), calls)
        is_rounding, finding = against.judge(
            ours, theirs, divergence=divergence, found=found, is_same_torch=is_same_torch
        )
        if other.fingerprint is not None:
            finding.evidence += fingerprint.made_differently(other.fingerprint, made)
        self.verdict.same, self.verdict.is_rounding = False, is_rounding
        self.verdict.first_difference = self._difference(divergence, finding)

    def _check_own_files(self, ran: Ran, other: Other) -> None:
        """Code of the repository that is imported from elsewhere is not that of the commit."""
        if other.commit is None or ran.first is None:
            return
        top = other.commit.top.resolve()
        for moment in ran.first.moments:
            file = Path(moment.file) if moment.file else None
            if (
                file is not None
                and file.is_relative_to(top)
                and not file.is_relative_to(self.runner.scratch.work)
            ):
                raise _Inconclusive(
                    f"the script imports {file} from your working tree, not from the commit: the package is "
                    f"installed from there. Start verify in {top}, and put its folder on PYTHONPATH."
                )

    def save(self, path: Path) -> None:
        """Write the fingerprint of the first run."""
        self.on_status("noting the operations of the first step")
        plan = Plan(digests=DIGESTS, operations=(0, 0), steps=1)
        looked_at = self.runner.run(self.asked.base, plan=plan).first
        assert self._first.first is not None
        script = self.runner.script
        made = fingerprint.made_with(self._first.first, script=script.name, arguments=script.arguments)
        fingerprint.save(path, self._first, looked_at=looked_at, made=made)
        self.verdict.saved = str(path)

    def _check_readable(self) -> None:
        """What could not be read may differ: then runs are not called the same."""
        assert self._first.first is not None
        unread = self._first.first.unread
        if unread:
            raise _Inconclusive(
                f"the runs are the same as far as they can be compared, but something could not be read "
                f"({unread[0]}). If it is a tensor, please report its kind."
            )

    def _run(self, way: Way) -> Ran:
        self._show(way.words)
        return self._checked(self.runner.run(way))

    def _show(self, words: str) -> None:
        self.on_status(f"run {len(self.verdict.runs) + 1} of {self.asked.num_runs}: {words}")

    def _checked(self, ran: Ran) -> Ran:
        if ran.code != 0:
            how = f"exit code {ran.code}" if ran.code > 0 else f"signal {-ran.code}"
            said = f" Its last lines:\n{ran.tail}" if ran.tail else " What it printed is above."
            raise _Inconclusive(f"the script ended with {how} ({ran.way.words}).{said}")
        if ran.first is None:
            raise _Inconclusive("the script left no record: it did not finish in a Python process.")
        if ran.first.ended == "withdrawn":
            raise _Inconclusive(str(ran.first.error))
        if not ran.updates:
            raise _Inconclusive(
                "no optimizer step ran in the script's process. Pass the script that "
                "trains, with its arguments."
            )
        off = [text for process in (*ran.processes, *ran.before_kill) for text in process.switched_off]
        if off:
            raise _Inconclusive(
                f"an observer of truestep failed and was switched off, so part of the run was not compared "
                f"({ran.way.words}): {off[0]}. Please report it with the script."
            )
        return ran

    def _check_apart(self, ran: Ran) -> None:
        """A run that loads what another has saved is not one that begins anew."""
        assert self._first.first is not None
        assert ran.first is not None
        saved = {moment.facts.path for moment in self._first.first.of(FileSaved)}
        loaded = {moment.facts.path for moment in self._first.first.of(FileLoaded)}
        for moment in ran.first.of(FileLoaded):
            path = moment.facts.path
            if path in saved - loaded and path is not None and Path(path).is_absolute():
                raise _Inconclusive(
                    f"the second run loaded {path}, which the first run saved, so the runs are not "
                    f"comparable. Let the script save inside the folder in which you start it."
                )

    def _note(  # limits: a run and what is told of it
        self,
        ran: Ran,
        updates: list[Update],
        *,
        divergence: chains.Divergence | None,
        num_before: int = 0,
        words: str | None = None,
    ) -> None:
        """Tell of a run; of a killed one the first `num_before` updates were made before the kill."""
        parts = (updates[:num_before], updates[num_before:])  # both count their steps from 0
        run = RunSummary(
            kind=ran.way.kind,
            words=words or ran.way.words,
            processes=ran.way.processes or 1,
            num_steps=sum(len({update.step for update in part}) for part in parts),
            digest=chains.digest(updates, SHARED_OUTCOME if len(self.asked.processes) > 1 else OUTCOME),
            parted_at=None if divergence is None else divergence.shown_step,
            seconds=ran.seconds,
        )
        self.verdict.runs.append(run)
        self.on_run(run)

    def _compare_killed(
        self, way: Way, files: WrittenFiles
    ) -> tuple[chains.Divergence | None, FoundCause | None]:
        kill_at = self._kill_at()
        ran, resumed = self._kill(way, kill_at)
        last = max(update.step for update in self._first.updates)
        if resumed.after == 0 and kill_at < last:  # one that saves by the clock may need longer
            kill_at = last
            ran, resumed = self._kill(way, kill_at)
        if resumed.after == 0:
            raise _Inconclusive(
                f"after a kill at step {kill_at} and a restart by the same command, the script started "
                f"over: it had not saved a checkpoint by then, or does not load one. Let it save more "
                f"often, pass more --steps, or pass the arguments that resume it with --resume-with."
            )
        self._compare_files(way, files)
        before = ran.before_kill[0].updates[: resumed.after if resumed.after is not None else kill_at]
        whole = as_far_as(self._first, [*before, *ran.updates])
        divergence = chains.diverge(self._first.updates, whole, outcome=way.outcome, is_resumed=True)
        divergence = divergence or chains.compare_ends(self._first, ran, outcome=way.outcome)
        same = self._first.updates[: len(whole)]  # but for passes before the kill, which are in gradients
        self._note(ran, whole if divergence else same, divergence=divergence, num_before=len(before))
        self.verdict.resume = audit.timing(self._first, ran, resumed=resumed)
        if divergence is None:
            self._tear(ran, kill_at)
            return None, None
        self._note_difference(divergence)
        if divergence.place < len(before):
            return divergence, self._explain(ran, divergence)
        finding = resume.explain(self._first, ran, divergence=divergence, resumed=resumed)
        if "generator" in finding.name and self.asked.has_proof:
            finding = self._explain_workers(way, kill_at) or finding
        if not finding.is_proved and self.asked.has_proof:
            case = Elimination(
                runner=self.runner,
                base=self.asked.base,
                first=self._first,
                killed=ran,
                divergence=divergence,
                resumed=resumed,
                steps=self.asked.steps,
                arguments=self.asked.resume_arguments,
                on_status=self.on_status,
            )
            case.refine(finding)
        self._note_untried(finding)
        self.on_status("looking for what repairs it")
        audit.add_repair(finding, self.runner, runs=(self._first, ran), divergence=divergence)
        return divergence, finding

    def _tear(self, ran: Ran, kill_at: int) -> None:
        """Kill it during a save too: what it then finds must not keep it from starting."""
        assert self.verdict.resume is not None
        self.on_status("killed during a save and started again")
        self.verdict.resume["torn_save"] = audit.torn_save(
            self._first,
            ran,
            self.runner,
            kill_at=kill_at,
            arguments=self.asked.resume_arguments,
        )

    def _kill(self, way: Way, kill_at: int) -> tuple[Ran, chains.Resumed]:
        self._show(f"killed after step {kill_at} and resumed")
        ran = self.runner.run(way, kill_at=kill_at, resume_arguments=self.asked.resume_arguments)
        if not ran.processes and ran.code == 0:
            raise _Inconclusive(f"the script ended before step {kill_at}, where it should be killed.")
        return self._checked(ran), chains.resumed_at(self._first, ran, kill_at=kill_at)

    def _explain_workers(self, way: Way, kill_at: int) -> FoundCause | None:
        """Return what the dataset draws in workers, if the resumed run is the same without them."""
        assert self._first.first is not None
        if not resume.has_workers(self._first.first):
            return None
        self.on_status("killed and resumed without workers")
        plan = replace(chain_plan(self.asked.steps), operations=(0, 0))
        first = self.runner.run(replace(self.asked.base, workers=0), plan=plan)
        ran = self.runner.run(
            replace(way, workers=0),
            kill_at=kill_at,
            resume_arguments=self.asked.resume_arguments,
        )
        resumed = chains.resumed_at(first, ran, kill_at=kill_at)
        if not resumed.after or not ran.before_kill or first.first is None:
            return None
        whole = as_far_as(first, [*ran.before_kill[0].updates[: resumed.after], *ran.updates])
        if chains.diverge(first.updates, whole, outcome=way.outcome, is_resumed=True) is not None:
            return None
        drawn = next(iter(drawn_by_dataset(first.first)), None)
        return FoundCause(
            name="worker-generator-not-saved",
            file=drawn.file if drawn else None,
            line=drawn.line if drawn else None,
            operation=drawn.name if drawn else None,
            evidence=["with 0 workers, the resumed run is the same"],
            is_proved=True,
        )

    def _kill_at(self) -> int:
        """Return after which step to kill: between two saves in the middle of the run."""
        assert self._first.first is not None
        num_steps = 1 + max(update.step for update in self._first.updates)
        saves = sorted({moment.step for moment in self._first.first.of(FileSaved)})
        usable = [step for step in saves if 0 < step < num_steps - 1]
        if not usable:
            if saves:
                raise _Inconclusive(
                    f"the script saves nothing between its first and its last step ({num_steps} ran), so "
                    f"there is nothing to resume from. Pass more --steps, or let it save more often."
                )
            return max(1, num_steps // 2)
        step = usable[(len(usable) - 1) // 2]
        later = next((other for other in saves if other > step), num_steps)
        return step + max(1, (min(later, num_steps - 1) - step) // 2)

    def _explain(self, ran: Ran, divergence: chains.Divergence) -> FoundCause:
        if ran.way.kind == "processes":
            return self._explain_ranks(ran, divergence)
        proof = Proof(
            runner=self.runner,
            base=self.asked.base,
            on_status=self.on_status,
            on_likely=lambda found: self._tell_likely(divergence, found),
            has_experiments=self.asked.has_proof,
        )
        finding = proof.find(ran.way, divergence=divergence)
        self._note_untried(finding)
        if self.asked.runs < 2 and ran.way.kind != "again":
            finding.is_proved = False
        return finding

    def _explain_ranks(self, ran: Ran, divergence: chains.Divergence) -> FoundCause:
        finding = ranks.explain(self._first, ran, divergence=divergence)
        if finding.name == "process-count" and "gradients" in divergence.parts:
            self.on_status(f"comparing the gradients of step {divergence.step + 1}")
            plan = replace(chain_plan(divergence.step + 1), portable=True)
            both = [self.runner.run(way, plan=plan) for way in (self.asked.base, ran.way)]
            ranks.refine(finding, both, step=divergence.step)
        return finding

    def _note_untried(self, finding: FoundCause) -> None:
        if not self.asked.has_proof and not finding.is_proved:
            finding.evidence.append("no experiment was made: --no-proof")

    def _tell_likely(self, divergence: chains.Divergence, finding: FoundCause) -> None:
        """Tell of a cause and keep it, while experiments are made: the search can be ended."""
        if finding.name != "unknown":
            self.verdict.first_difference = self._difference(divergence, finding)
            self.on_likely(self.verdict.first_difference)

    def _note_difference(self, divergence: chains.Divergence) -> None:
        """Keep what is known before the cause is: the search for it can be ended."""
        self.verdict.same = False
        self.verdict.first_difference = self._difference(divergence, unknown_cause(divergence))

    def _difference(self, divergence: chains.Divergence, finding: FoundCause) -> Difference:
        cause = CAUSES[finding.name]
        return Difference(
            step=divergence.shown_step,
            what=divergence.what,
            operation=finding.operation,
            module=finding.module,
            file=self.runner.original(finding.file),
            line=finding.line,
            name=finding.name,
            cause="; ".join([cause.words, *map(self._other, finding.others)]),
            is_proved=finding.is_proved,
            distance=finding.distance,
            evidence=tuple(finding.evidence),
            fix="; ".join([cause.fix, *(CAUSES[other.name].fix for other in finding.others)]),
            repair=tuple(finding.repair),
        )

    def _other(self, finding: FoundCause) -> str:
        file = self.runner.original(finding.file)
        where = f" ({line_name(file, finding.line, shown=Path(file).name)})" if file else ""
        return f"{CAUSES[finding.name].words}{where}"
