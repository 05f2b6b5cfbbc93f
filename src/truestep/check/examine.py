"""Examining a script: gather, judge, look again where it needs a second look, leave out what is hidden.

Owns the order of these. The command prints what comes of it.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from truestep.check.early import EarlyFindings, Key, OnFinding, key_of
from truestep.check.evaluate import Evaluation, RuleFinding, evaluate_rules, flatten, leave_out
from truestep.check.gather import CheckOptions, check_plan, gather
from truestep.check.hints import hint_for
from truestep.check.replay import find_origin, replay_plan
from truestep.check.settings import Settings
from truestep.check.suppress import Comment, hide, unknown_names
from truestep.check.unseen import not_seen
from truestep.errors import UsageError
from truestep.rules.evidence import Evidence
from truestep.rules.rule import Rule, find_rules
from truestep.watch import Operation, Plan, Script
from truestep.watch.evidence.facts.passes import BackwardPass
from truestep.watch.launch.following import OnStep, ignore_steps
from truestep.watch.launch.scratch import Scratch

_NON_FINITE = "LOOP11"
_CTRL_C = (-2, 130)
INTERRUPTED = (*_CTRL_C, -15, 143)
"""Exit codes of a script that Ctrl-C or SIGTERM has ended."""
_WITHOUT_STEPS = {
    "backward": "No optimizer step ran, so training was not checked. There were backward passes, but the "
    "weights did not change after them. Pass the script that updates them, with its arguments.",
    "grad": "No optimizer step ran, so training was not checked. Steps that the script makes itself with "
    "torch.autograd.grad are not counted.",
    None: "No optimizer step ran, so nothing was checked. Does the script train in a process that it starts, "
    "need arguments to train, or find its training finished? Pass the script and the arguments that train.",
}
"""By the kind of backward passes that ran."""


@dataclass(kw_only=True)
class Result:
    """What is known of a script in the end."""

    code: int
    """The script's exit code."""
    evidence: Evidence
    rules: list[Rule]
    """Those that were asked."""
    evaluation: Evaluation
    script: Script | None = None
    """None if a part of this process was examined."""
    is_under_torchrun: bool = False
    timed_out_s: float | None = None
    """After how many seconds the script was ended, if that was so."""
    num_hidden: int = 0
    """Findings that are hidden by comments."""
    num_quiet: int = 0
    """Remarks that are shown with -v only."""
    unused: list[Comment] = field(default_factory=list)
    """Comments that hide nothing."""
    unknown: list[tuple[Comment, str]] = field(default_factory=list)
    """Names in comments that mean no rule."""

    @property
    def findings(self) -> list[RuleFinding]:
        """What is told."""
        return self.evaluation.findings

    def new(self, reported: Collection[Key]) -> list[RuleFinding]:
        """Return the findings that were not reported before."""
        return [item for item in self.findings if key_of(item) not in reported]

    @cached_property
    def not_seen(self) -> list[str]:
        """What the script never did, of the things that rules need."""
        return not_seen(self.evaluation.not_observed, self.evidence)

    @property
    def switched_off(self) -> list[str]:
        """What truestep could not observe, and why."""
        return [*dict.fromkeys(text for process in self.evidence.processes for text in process.switched_off)]

    @property
    def not_checked(self) -> list[str]:
        """What was not looked at, and why."""
        return [*dict.fromkeys(text for process in self.evidence.processes for text in process.not_checked)]

    @property
    def withdrawn(self) -> str | None:
        """Why observing ended before the script did, if so."""
        ended = [process.error for process in self.evidence.processes if process.ended == "withdrawn"]
        return ended[0] if ended else None

    @property
    def has_mistakes(self) -> bool:
        """Whether there is more than remarks."""
        return any(reported.severity != "info" for reported in self.findings)

    @property
    def num_steps(self) -> int:
        """How many steps optimizers made, in the process that made most."""
        return max((process.num_steps for process in self.evidence.processes), default=0)

    @property
    def stopped_by(self) -> str | None:
        """Who ended the script, in words; None if it ended itself."""
        if self.code not in INTERRUPTED or self.timed_out_s is not None:
            return None
        return "you stopped the script" if self.code in _CTRL_C else "SIGTERM ended the script"

    @property
    def inconclusive(self) -> str | None:
        """Why nothing can be concluded from finding nothing; None if something can."""
        if self.timed_out_s is not None:
            return (
                f"The script was ended after {self.timed_out_s:g} s (--timeout). Allow more time, or check "
                f"fewer steps with --steps."
            )
        if self.stopped_by is not None:
            return self._why_stopping_matters(self.stopped_by)
        if self.code:
            return self._why_it_failed()
        if self.withdrawn or self.num_steps:
            return self.withdrawn
        hows = {moment.facts.how for moment in self.evidence.of(BackwardPass)}
        return _WITHOUT_STEPS["backward" if "backward" in hows else "grad" if hows else None]

    def _why_stopping_matters(self, stopped: str) -> str | None:
        """Return why nothing can be concluded of a script that was stopped; None if what ran was checked."""
        if not self.num_steps:
            return f"{stopped} before its first optimizer step"
        if any(process.ended is None for process in self.evidence.processes):
            return f"{stopped} before it had written all that was observed"
        return None

    def _why_it_failed(self) -> str:
        processes = self.evidence.processes
        if not processes:
            starter = "torchrun" if self.is_under_torchrun else "Python"
            return (
                f"the script was not started: {starter} failed (exit code {self.code}) with the error above"
            )
        error = next((process.error for process in processes if process.error), None)
        reason = (error or "it ended itself").partition("\n")[0]
        hint = (
            ""
            if self.script is None
            else hint_for(self.script, error or "", is_under_torchrun=self.is_under_torchrun)
        )
        return f"the script failed (exit code {self.code}): {reason}{hint}"


@dataclass(frozen=True, kw_only=True)
class Listener:
    """Who wants to know how far it is."""

    on_status: Callable[[str], None] = lambda _words: None
    """Gets what is being done."""
    on_step: OnStep = ignore_steps
    on_finding: OnFinding | None = None
    """Gets each finding that is certain while the script still runs, once, with the evidence so far."""


def examine(
    script: Script,
    settings: Settings,
    *,
    options: CheckOptions = CheckOptions(),  # noqa: B008 - it cannot change
    before_start: Callable[[], None] = lambda: None,
    listener: "Listener | None" = None,
) -> Result:
    """Run a script once under observation and judge it; once more if a value in it was not finite.

    `before_start` is called when all that can be refused without the script's run has been let through.
    """
    listener = listener or Listener()
    everything = find_rules(settings.rules)
    rules = [rule for rule in settings.choose(everything) if not is_of_doctor(rule)]
    plan = check_plan(options.steps)
    before_start()
    listener.on_status(f"running {script.name}")
    early = None if listener.on_finding is None else _early(rules, settings, listener.on_finding)
    code, evidence, is_timed_out = gather(
        script,
        plan=plan,
        options=options,
        on_step=listener.on_step,
        beside=nullcontext if early is None else early.beside,
    )
    listener.on_status("evaluating the rules")

    def replay(plan: Plan) -> Evidence:
        listener.on_status(f"running {script.name} again up to the step with a non-finite value")
        with Scratch(Path.cwd()) as scratch:  # what the script writes is written once
            try:
                again = gather(
                    script, plan=plan, options=options, scratch=scratch, on_step=listener.on_step
                ).evidence
            except UsageError:  # no room for a copy: the finding stays, without the operation
                return Evidence()
        for process in again.processes:
            process.operations = [_of_own_files(item, scratch) for item in process.operations]
        return again

    evaluation = evaluate_closely(rules, evidence, replay=replay if options.processes is None else None)
    result = Result(
        code=code,
        evidence=evidence,
        rules=rules,
        evaluation=evaluation,
        script=script,
        is_under_torchrun=options.processes is not None,
        timed_out_s=options.timeout_s if is_timed_out else None,
    )
    suppress(result, settings, everything=everything)
    return result


def _early(rules: Sequence[Rule], settings: Settings, on_finding: OnFinding) -> EarlyFindings:
    def leave_out(found: list[RuleFinding], evidence: Evidence) -> list[RuleFinding]:
        return shown_of(hide(found, evidence.sources)[0], settings)

    return EarlyFindings(rules, leave_out=leave_out, on_finding=on_finding)


def _of_own_files(operation: Operation, scratch: Scratch) -> Operation:
    """Return an operation of a run in a copied folder with the names of the user's own files."""
    file, forward_file = (
        None if name is None else scratch.original(name) for name in (operation.file, operation.forward_file)
    )
    return replace(operation, file=file, forward_file=forward_file)


def is_of_doctor(rule: Rule) -> bool:
    """Whether a rule reads the machine and no moment of a script."""
    return rule.meta.code.startswith("ENV") and not rule.meta.needs


def evaluate_closely(
    rules: Sequence[Rule], evidence: Evidence, *, replay: Callable[[Plan], Evidence] | None
) -> Evaluation:
    """Evaluate the rules; if a value was not finite, replay that step to see its origin, and again."""
    evaluation = evaluate_rules(rules, evidence)
    steps = [
        reported.finding.step for reported in evaluation.findings if reported.rule.meta.code == _NON_FINITE
    ]
    if not steps or not steps[0] or replay is None:
        return evaluation
    again = replay(replay_plan(check_plan(), evidence, step=steps[0] - 1))
    evidence.origin = find_origin(again.first) if again.processes else None
    return evaluate_rules(rules, evidence)


def shown_of(kept: list[RuleFinding], settings: Settings) -> list[RuleFinding]:
    """Return findings without the remarks that are shown only if they are asked for."""
    return leave_out(kept, where=lambda item: item.severity == "info" and settings.is_silent(item.rule))


def suppress(result: Result, settings: Settings, *, everything: Sequence[Rule]) -> None:
    """Leave out the findings that comments suppress, and note comments without effect."""
    reported = result.evaluation.findings
    kept, unused = hide(reported, result.evidence.sources)
    if (
        not settings.select and not settings.ignore
    ):  # otherwise a comment may be meant for a rule that was not asked
        result.unused = unused
    result.unknown = unknown_names(unused, everything)
    result.num_hidden = len([*flatten(reported)]) - len([*flatten(kept)])
    result.evaluation.findings = shown_of(kept, settings)
    result.num_quiet = len([*flatten(kept)]) - len([*flatten(result.findings)])
