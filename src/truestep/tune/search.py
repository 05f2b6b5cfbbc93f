"""The search: each knob alone, then those that pay together, then all of them against the start once more.

Owns the order of trials, the budget and what is kept. How two settings are measured is in `compare`.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from truestep import watch
from truestep.errors import UsageError
from truestep.tune.compare import LATE, Comparison, compare
from truestep.tune.knob import WORTH, Choice, Facts, Knob, Skip, num_cores, pick
from truestep.tune.learning import Learning, judge
from truestep.tune.loading import Advice, data_advice
from truestep.tune.profile import Profile, profile
from truestep.tune.race import Runner
from truestep.tune.result import Result, Status, Trial

BUDGET_S = 120.0
_SEEDS = (1, 2)
_MAX_TRIAL_S = 25.0
_FIRST_TRIAL_S = 12.0
"""What a trial is taken to need before one was made."""
_PROFILE_STEPS = 20
_SEEDS_S = 4.0
"""Losses are compared over as many steps as take about this long, and over so many at least:"""
_MIN_JUDGED = 40


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What the user wants."""

    budget_s: float = BUDGET_S
    knobs: Mapping[str, Knob] = field(default_factory=lambda: pick(()))
    names: tuple[str, ...] = ()
    """The knobs that the user has named: some have positions that are tried only then."""

    def __post_init__(self) -> None:
        if self.budget_s <= 0:
            raise UsageError(f"the budget must be more than 0 seconds, got {self.budget_s:g}.")


def tune(
    script: watch.Script,
    asked: Asked,
    *,
    tell: Callable[[str], None] = lambda _: None,
    told: Callable[[Trial], None] = lambda _: None,
    profiled: Callable[[Profile, Advice | None], None] = lambda _profile, _advice: None,
) -> Result:
    """Measure each knob on a script, alone and together; return what paid.

    `tell` gets a line on what is being done, `profiled` where the time goes, `told` each trial as it ends.
    """
    search = _Search(script, asked, tell=tell, told=told)
    tell("looking where the time goes")
    found = profile(script, steps=_PROFILE_STEPS, tell=tell)
    advice = data_advice(found, num_cores())
    profiled(found, advice)
    return search.run(found, advice)


class _Search:
    """One search under way."""

    def __init__(
        self,
        script: watch.Script,
        asked: Asked,
        *,
        tell: Callable[[str], None],
        told: Callable[[Trial], None],
    ) -> None:
        self._script, self._asked = script, asked
        self._tell, self._told = tell, told
        self._begun_s = time.monotonic()
        self._until_s = self._begun_s + asked.budget_s
        self._trials: list[Trial] = []
        self._trial_s = _FIRST_TRIAL_S
        self._own: tuple[float | None, ...] = ()
        self._seeds: list[list[float | None]] = []

    def run(self, profiled: Profile, advice: Advice | None) -> Result:
        """Go through the knobs, and put together those that pay."""
        self._facts = self._learn(profiled, advice)
        alone = self._try_alone()
        chosen = self._combine(alone)
        final = self._confirm(chosen)
        learning = self._judge(final) if final is not None and self._may_differ(chosen) else None
        if final is not None and not (_is_faster(final) and (learning is None or learning.survives)):
            chosen = {}
        return Result(
            script=self._script,
            facts=self._facts,
            profile=profiled,
            advice=advice,
            trials=tuple(self._trials),
            settings=chosen,
            lines={name: self._knob(name).lines(value) for name, value in chosen.items()},
            for_run=self._for_run(chosen),
            final=final,
            learning=learning,
            seconds=time.monotonic() - self._begun_s,
            budget_s=self._asked.budget_s,
        )

    def _knob(self, name: str) -> Knob:
        return self._asked.knobs[name]

    def _learn(self, profiled: Profile, advice: Advice | None) -> Facts:
        """Return what is known before a knob is turned."""
        seen: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in profiled.facts.items()
        }
        return Facts(
            cores=num_cores(),
            device=profiled.device,
            step_s=profiled.step_s,
            asked=self._asked.names,
            advised_workers=advice.workers if advice is not None else None,
            shares={share.phase: share.share for share in profiled.shares},
            **seen,
        )

    def _try_alone(self) -> dict[str, Trial]:
        """Try each knob against the start; return the best trial of each one that pays."""
        best: dict[str, Trial] = {}
        for name, knob in self._asked.knobs.items():
            proposed = knob.propose(self._facts, {})
            if isinstance(proposed, Skip):
                self._add(Trial(knob=name, words="", status="skipped", reason=proposed.reason))
                continue
            for choice in proposed:
                trial = self._try(knob, choice, base={})
                if trial.status == "pays" and (name not in best or trial.gain > best[name].gain):
                    best[name] = trial
        return best

    def _combine(self, alone: dict[str, Trial]) -> dict[str, Any]:
        """Add one knob after the other, the best first, if it still pays on top of those before it."""
        chosen: dict[str, Any] = {}
        for trial in sorted(alone.values(), key=lambda trial: -trial.gain):
            if not chosen:
                chosen[trial.knob] = trial.value
                continue
            knob = self._knob(trial.knob)
            again = self._try(knob, Choice(value=trial.value, words=trial.words), base=chosen)
            if again.status == "pays":
                chosen[trial.knob] = trial.value
        for name, knob in self._asked.knobs.items():
            if name not in chosen and set(knob.after) & chosen.keys():
                self._try_on_top(knob, chosen)
        return chosen

    def _try_on_top(self, knob: Knob, chosen: dict[str, Any]) -> None:
        """Try a knob again that had no reason to pay before others were kept."""
        proposed = knob.propose(self._facts, chosen)
        if isinstance(proposed, Skip) or not self._has_time():
            return
        trials = [self._try(knob, choice, base=chosen) for choice in proposed]
        paying = [trial for trial in trials if trial.status == "pays"]
        if paying:
            chosen[knob.name] = max(paying, key=lambda trial: trial.gain).value

    def _confirm(self, chosen: dict[str, Any]) -> Comparison | None:
        """Measure what was kept against the start once more."""
        if not chosen:
            return None
        self._tell("measuring what was kept against the start once more")
        seconds = max(1.5 * self._trial_s, self._until_s - time.monotonic())
        return compare(self._script, {}, chosen, seconds=seconds, knobs=self._asked.knobs, tell=self._tell)

    @property
    def _left_s(self) -> float:
        """What is left for trials: the end must be measured too."""
        return self._until_s - time.monotonic() - self._trial_s

    def _has_time(self) -> bool:
        return self._left_s >= self._trial_s / 2

    def _try(self, knob: Knob, choice: Choice, *, base: Mapping[str, Any]) -> Trial:
        if not self._has_time():
            reason = f"the budget of {self._asked.budget_s:g} s was used up; a larger one tries it"
            return self._add(
                Trial(
                    knob=knob.name, words=choice.words, value=choice.value, status="not tried", reason=reason
                )
            )
        title = f"{knob.name}: {choice.words}"
        self._tell(title)
        found = compare(
            self._script,
            base,
            {**base, knob.name: choice.value},
            seconds=min(self._left_s, max(_MAX_TRIAL_S, self._asked.budget_s / 4)),
            knobs=self._asked.knobs,
            tell=lambda words: self._tell(f"{title}: {words}"),
        )
        self._trial_s = max(_FIRST_TRIAL_S / 2, 0.5 * (self._trial_s + found.seconds))
        if not base and len(found.base_losses) > len(self._own):
            self._own = found.base_losses
        return self._add(self._verdict(knob, choice, found, dict(base)))

    def _verdict(
        self, knob: Knob, choice: Choice, found: Comparison, base: dict[str, Any]
    ) -> Trial:  # limits: private
        learning: Learning | None = None
        status: Status
        if found.ratio is None and found.failed == LATE:
            status, reason = "not tried", f"{LATE}; a larger budget measures it"
        elif found.ratio is None:
            status, reason = "failed", found.failed or ""
        elif found.pays:
            status, reason = "pays", ""
            if knob.changes_bits:
                learning = self._judge(found)
                if not learning.survives:
                    status, reason = "refused", f"it changes learning: {learning.words}"
        else:
            status, reason = "no gain", _why_not(found)
        return Trial(
            knob=knob.name,
            words=choice.words,
            value=choice.value,
            status=status,
            reason=reason,
            on_top_of=base,
            found=found,
            learning=learning,
            changes_bits=knob.changes_bits,
        )

    def _judge(self, found: Comparison) -> Learning:
        """Compare the losses with the script's own, and with those of other seeds."""
        own = found.base_losses if not self._own else self._own
        if found.other_losses == own[: len(found.other_losses)]:
            return Learning(survives=True, words="every loss is the same to the bit", steps=len(own))
        if not self._seeds:
            most = max(_MIN_JUDGED, int(_SEEDS_S / max(found.base_step_s, 1e-6)))
            self._seeds = self._run_seeds(min(len(found.other_losses), len(own), most))
        return judge(found.other_losses, own, seeds=self._seeds)

    def _run_seeds(self, steps: int) -> list[list[float | None]]:
        """Return the losses of the script with other seeds: side by side, as nothing is timed."""
        self._tell("other seeds, to see what luck does to the losses")
        with ExitStack() as stack:
            runners = [
                stack.enter_context(
                    Runner(self._script, {}, knobs=self._asked.knobs, seed_offset=offset, num_first=steps)
                )
                for offset in _SEEDS
            ]
            for runner in runners:
                runner.start()
            until_s = time.monotonic() + _MAX_TRIAL_S
            for runner in runners:
                runner.first(until_s=until_s)
            return [list(runner.losses) for runner in runners]

    def _for_run(self, chosen: Mapping[str, Any]) -> dict[str, tuple[str, Any]]:
        """Return the lines of `truestep.toml` by knob, if the script reads that file."""
        if not self._facts.uses_run or self._script.is_module:
            return {}
        makers = {name: self._knob(name).setting for name in chosen}
        return {name: make(chosen[name]) for name, make in makers.items() if make is not None}

    def _may_differ(self, chosen: Mapping[str, Any]) -> bool:
        return any(self._knob(name).changes_bits for name in chosen)

    def _add(self, trial: Trial) -> Trial:
        self._trials.append(trial)
        self._told(trial)
        return trial


def _is_faster(found: Comparison) -> bool:
    return found.ratio is not None and found.ratio.low > 1.0


def _why_not(found: Comparison) -> str:
    ratio = found.ratio
    if ratio is None:
        return ""
    if ratio.high < 1 / WORTH:
        return "slower"
    if ratio.low > WORTH:
        return "too few turns to be sure"
    return "no clear gain" if ratio.high > WORTH else "no gain"
