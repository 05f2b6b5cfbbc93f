"""The search: each knob alone, then those that pay together, then all of them against the start once more.

Owns the order of trials, the budget and what is kept. How two settings are measured is in `compare`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Self

from truestep import watch
from truestep.base.cores import num_cores
from truestep.errors import UsageError
from truestep.tune.knob import WORTH, Choice, Knob, ScriptFacts, Skip, pick
from truestep.tune.profile.profile import Profile, profile
from truestep.tune.search.compare import LATE, Comparison, compare
from truestep.tune.search.learning import Learning, can_judge, compare_learning
from truestep.tune.search.loading import Advice, data_advice
from truestep.tune.search.race import Contender
from truestep.tune.search.result import Result, Status, Trial

BUDGET_S = 120.0
_SEEDS = (1, 2)
_MAX_TRIAL_S = 25.0
_FIRST_TRIAL_S = 12.0
"""What a trial is taken to need before one was made."""
_PROMISING, _MAX_LOOKS = 1.05, 3
"""An interval that reaches so far is measured again, so often at most."""
_LAST_PAIRS = 16
"""Of turns in the last comparison: what was found should not be lost for one that was unlucky."""
_PROFILE_STEPS = 20
_SEEDS_S = 4.0
"""Losses are compared over as many steps as take about this long, and over so many at least:"""
_MIN_JUDGED = 40


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
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
    asked: TuneOptions,
    *,
    on_status: Callable[[str], None] = lambda _: None,
    on_trial: Callable[[Trial], None] = lambda _: None,
    on_profile: Callable[[Profile, Advice | None], None] = lambda _profile, _advice: None,
) -> Result:
    """Measure each knob on a script, alone and together; return what paid.

    `on_status` gets a line on what is being done, `on_profile` where the time goes, `on_trial` each trial as
    it ends.
    """
    search = _Search(script, asked, on_status=on_status, on_trial=on_trial)
    on_status("measuring where the time goes")
    found = profile(script, steps=_PROFILE_STEPS, on_status=on_status)
    advice = data_advice(found, num_cores())
    on_profile(found, advice)
    return search.run(found, advice)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Turned:
    """What one trial turns: a knob, or several at once."""

    name: str
    words: str
    value: Any
    values: Mapping[str, Any]
    changes_bits: bool

    @classmethod
    def of(cls, knob: Knob, position: Choice | Trial) -> Self:
        value = position.value
        return cls(
            name=knob.name,
            words=position.words,
            value=value,
            values={knob.name: value},
            changes_bits=knob.changes_bits,
        )

    def trial(self, status: Status, **found: Any) -> Trial:
        return Trial(
            knob=self.name,
            words=self.words,
            value=self.value,
            status=status,
            changes_bits=self.changes_bits,
            **found,
        )


def _together(trials: Sequence[Trial]) -> _Turned:
    values = {trial.knob: trial.value for trial in trials}
    return _Turned(
        name=" + ".join(values),
        words="together",
        value=values,
        values=values,
        changes_bits=any(trial.changes_bits for trial in trials),
    )


class _Search:
    """One search under way."""

    def __init__(
        self,
        script: watch.Script,
        asked: TuneOptions,
        *,
        on_status: Callable[[str], None],
        on_trial: Callable[[Trial], None],
    ) -> None:
        self._script, self._asked = script, asked
        self._on_status, self._on_trial = on_status, on_trial
        self._begun_s = time.monotonic()
        self._until_s = self._begun_s + asked.budget_s
        self._trials: list[Trial] = []
        self._trial_s = _FIRST_TRIAL_S
        self._num_last = 1
        self._own: tuple[float | None, ...] = ()
        self._seeds: list[list[float | None]] = []
        self._place = ""
        """Which of the settings is tried, for the status."""

    def run(self, profiled: Profile, advice: Advice | None) -> Result:
        """Go through the knobs, and put together those that pay. Ctrl-C ends that: return what is known."""
        self._facts = self._learn(profiled, advice)
        chosen: dict[str, Any] = {}
        final, learning, is_interrupted = None, None, False
        try:
            chosen = self._combine(self._try_alone())
            final = self._confirm(chosen)
            is_judged = final is not None and final.ratio is not None and self._may_differ(chosen)
            learning = self._evaluate(final) if final is not None and is_judged else None
        except KeyboardInterrupt:
            chosen, final, is_interrupted = {}, None, True
        if final is not None and not (_is_faster(final) and (learning is None or learning.survives)):
            chosen = {}
        return Result(
            is_interrupted=is_interrupted,
            script=self._script,
            facts=self._facts,
            profile=profiled,
            advice=advice,
            trials=tuple(self._trials),
            settings=chosen,
            lines={name: self._knob(name).written(value) for name, value in chosen.items()},
            for_run=self._for_run(chosen),
            final=final,
            learning=learning,
            seconds=time.monotonic() - self._begun_s,
            budget_s=self._asked.budget_s,
        )

    def _knob(self, name: str) -> Knob:
        return self._asked.knobs[name]

    def _learn(self, profiled: Profile, advice: Advice | None) -> ScriptFacts:
        """Return what is known before a knob is turned."""
        seen: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in profiled.facts.items()
        }
        return ScriptFacts(
            cores=num_cores(),
            device=profiled.device,
            step_s=profiled.step_s,
            asked=self._asked.names,
            advised_workers=advice.workers if advice is not None else None,
            shares={share.phase: share.share for share in profiled.shares},
            **seen,
        )

    def _try_alone(self) -> dict[str, Trial]:
        """Try each knob against the start; return the best trial of each one that pays.

        What may be good and is not clear is measured further with the time that is left.
        """
        best: dict[str, Trial] = {}
        unclear: dict[_Turned, list[Trial]] = {}
        proposals = {name: knob.propose(self._facts, {}) for name, knob in self._asked.knobs.items()}
        num_trials = sum(len(proposed) for proposed in proposals.values() if not isinstance(proposed, Skip))
        for name, proposed in proposals.items():
            if isinstance(proposed, Skip):
                self._add(Trial(knob=name, words="", status="skipped", reason=proposed.reason))
                continue
            for choice in proposed:
                self._place = f"trial {len(unclear) + 1} of {num_trials}: "
                turned = _Turned.of(self._knob(name), choice)
                trial = self._try(turned)
                unclear[turned] = [trial]
                self._take(trial, best)
        self._place = ""
        while self._has_time():
            promising = [item for item in unclear.items() if _is_promising(item[1])]
            if not promising:
                break
            turned, trials = max(promising, key=lambda item: item[1][-1].gain)
            again = replace(turned, words=f"{turned.words}, again")
            trials.append(self._try(again, after=trials[-1]))
            self._take(trials[-1], best)
        self._num_last = 1
        return best

    def _take(self, trial: Trial, best: dict[str, Trial]) -> None:
        if trial.status == "pays" and (trial.knob not in best or trial.gain > best[trial.knob].gain):
            best[trial.knob] = trial
            self._num_last = 2 if len(best) > 1 else 1

    def _combine(self, alone: dict[str, Trial]) -> dict[str, Any]:
        """Take the best, and on top of it the others: all at once, or one by one if that does not pay."""
        order = sorted(alone.values(), key=lambda trial: -trial.gain)
        chosen = {trial.knob: trial.value for trial in order[:1]}
        others, fitting = order[1:], dict(chosen)
        for trial in others:
            if self._fits(trial, fitting):
                fitting[trial.knob] = trial.value
        added = [trial for trial in others if trial.knob in fitting]
        if len(added) > 1 and self._try(_together(added), base=chosen).status == "pays":
            chosen, others = fitting, []
        for trial in others:
            if not self._fits(trial, chosen):
                continue
            if self._try(_Turned.of(self._knob(trial.knob), trial), base=chosen).status == "pays":
                chosen[trial.knob] = trial.value
        for name, knob in self._asked.knobs.items():
            if name not in chosen and set(knob.after) & chosen.keys():
                self._try_on_top(knob, chosen)
        return chosen

    def _fits(self, trial: Trial, chosen: Mapping[str, Any]) -> bool:
        """Whether a position makes sense beside others, and they beside it: what is fused has no foreach."""
        values = {**chosen, trial.knob: trial.value}
        return all(self._is_proposed(name, values) for name in values)

    def _is_proposed(self, name: str, values: Mapping[str, Any]) -> bool:
        others = {other: value for other, value in values.items() if other != name}
        proposed = self._knob(name).propose(self._facts, others)
        return not isinstance(proposed, Skip) and values[name] in [choice.value for choice in proposed]

    def _try_on_top(self, knob: Knob, chosen: dict[str, Any]) -> None:
        """Try a knob again that had no reason to pay before others were kept."""
        proposed = knob.propose(self._facts, chosen)
        if isinstance(proposed, Skip) or not self._has_time():
            return
        trials = [self._try(_Turned.of(knob, choice), base=chosen) for choice in proposed]
        paying = [trial for trial in trials if trial.status == "pays"]
        if paying:
            chosen[knob.name] = max(paying, key=lambda trial: trial.gain).value

    def _confirm(self, chosen: dict[str, Any]) -> Comparison | None:
        """Measure what was kept against the start once more."""
        if not chosen:
            return None
        self._on_status("measuring the kept settings once more")
        seconds = max(1.5 * self._trial_s, self._until_s - time.monotonic())
        return compare(
            self._script,
            {},
            chosen,
            seconds=seconds,
            min_pairs=_LAST_PAIRS,
            knobs=self._asked.knobs,
            on_status=self._on_status,
        )

    @property
    def _left_s(self) -> float:
        """What is left for trials: what pays must be put together and measured at the end, too."""
        return self._until_s - time.monotonic() - self._num_last * self._trial_s

    def _has_time(self) -> bool:
        return self._left_s >= self._trial_s / 2

    def _try(
        self, turned: _Turned, *, base: Mapping[str, Any] | None = None, after: Trial | None = None
    ) -> Trial:
        """Try it on top of `base` (the start if not given), or go on with a trial that was unclear."""
        base = base or {}
        if not self._has_time():
            reason = f"the budget of {self._asked.budget_s:g} s was used up; pass a larger one"
            return self._add(turned.trial("untested", reason=reason))
        title = f"{self._place}{turned.name}: {turned.words}"
        self._on_status(title)
        found = compare(
            self._script,
            base,
            {**base, **turned.values},
            seconds=min(self._left_s, max(_MAX_TRIAL_S, self._asked.budget_s / 4)),
            before=after.found.pairs if after is not None and after.found is not None else (),
            knobs=self._asked.knobs,
            on_status=lambda words: self._on_status(f"{title}: {words}"),
        )
        self._trial_s = max(_FIRST_TRIAL_S / 2, 0.5 * (self._trial_s + found.seconds))
        if not base and len(found.base_losses) > len(self._own):
            self._own = found.base_losses
        return self._add(self._verdict(turned, found, base=base))

    def _verdict(self, turned: _Turned, found: Comparison, *, base: Mapping[str, Any]) -> Trial:
        learning: Learning | None = None
        status: Status
        if found.ratio is None and found.failed == LATE:
            status, reason = "untested", f"{LATE}; pass a larger one"
        elif found.ratio is None:
            status, reason = "failed", found.failed or ""
        elif found.pays:
            status, reason = "pays", ""
            if turned.changes_bits:
                learning = self._evaluate(found)
                if not learning.survives:
                    status, reason = "refused", f"it changes learning: {learning.words}"
        else:
            status, reason = "no gain", _why_not(found)
        return turned.trial(status, reason=reason, on_top_of=dict(base), found=found, learning=learning)

    def _evaluate(self, found: Comparison) -> Learning:
        """Compare the losses with the script's own, and with those of other seeds."""
        own, other = self._own or found.base_losses, found.other_losses
        if not can_judge(other, own):
            return compare_learning(other, own, seeds=())
        if other == own[: len(other)]:
            return Learning(survives=True, words="every loss is bit-for-bit identical", steps=len(other))
        if not self._seeds:
            most = max(_MIN_JUDGED, int(_SEEDS_S / max(found.base_step_s, 1e-6)))
            self._seeds = self._run_seeds(min(len(other), len(own), most))
        return compare_learning(other, own, seeds=self._seeds)

    def _run_seeds(self, steps: int) -> list[list[float | None]]:
        """Return the losses of the script with other seeds: side by side, as nothing is timed."""
        self._on_status("other seeds, to measure how much losses vary by luck")
        with ExitStack() as stack:
            runners = [
                stack.enter_context(
                    Contender(self._script, {}, knobs=self._asked.knobs, seed_offset=offset, num_first=steps)
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
        made = {name: make(chosen[name]) for name, make in makers.items() if make is not None}
        return {name: line for name, line in made.items() if line is not None}

    def _may_differ(self, chosen: Mapping[str, Any]) -> bool:
        return any(self._knob(name).changes_bits for name in chosen)

    def _add(self, trial: Trial) -> Trial:
        self._trials.append(trial)
        self._on_trial(trial)
        return trial


def _is_promising(trials: Sequence[Trial]) -> bool:
    """Whether the last of some trials of one position is worth another."""
    found = trials[-1].found
    has_room = found is not None and found.ratio is not None and found.ratio.high > _PROMISING
    return trials[-1].status == "no gain" and has_room and len(trials) <= _MAX_LOOKS


def _is_faster(found: Comparison) -> bool:
    return found.ratio is not None and found.ratio.low > 1.0


def _why_not(found: Comparison) -> str:
    ratio = found.ratio
    if ratio is None:
        return ""
    if ratio.high < 1 / WORTH:
        return "slower"
    if ratio.low > WORTH:
        return "too few measurements to be sure"
    return "no clear gain" if ratio.high > WORTH else "no gain"
