"""The search: each knob alone, then those that pay together, then all of them against the start once more.

Owns the order of trials, the budget and what is kept. How two settings are measured is in `compare`.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from truestep import watch
from truestep.errors import UsageError
from truestep.tune.knob import WORTH, Knob, ScriptFacts
from truestep.tune.knobs import pick
from truestep.tune.search.compare import LATE, Comparison, compare
from truestep.tune.search.first_look import look_at
from truestep.tune.search.learning import Learning, can_judge, compare_learning
from truestep.tune.search.race import Contender
from truestep.tune.search.result import Result, Trial

BUDGET_S = 120.0
_SEEDS = (1, 2)
_MAX_TRIAL_S = 25.0
_FIRST_TRIAL_S = 12.0
"""What a trial is taken to need before one was made."""
_LAST_PAIRS = 16
"""Of turns in the last comparison: what was found should not be lost for one that was unlucky."""
_SEEDS_S = 4.0
"""Losses are compared over as many steps as take about this long, and over so many at least:"""
_MIN_JUDGED = 40


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """What the user wants."""

    budget_s: float = BUDGET_S
    knobs: Mapping[str, Knob] = field(default_factory=lambda: pick(()))

    def __post_init__(self) -> None:
        if self.budget_s <= 0:
            raise UsageError(f"the budget must be more than 0 seconds, got {self.budget_s:g}.")


def tune(
    script: watch.Script,
    asked: TuneOptions,
    *,
    on_status: Callable[[str], None] = lambda _: None,
    on_trial: Callable[[Trial], None] = lambda _: None,
    on_facts: Callable[[ScriptFacts], None] = lambda _: None,
) -> Result:
    """Measure each knob on a script, alone and together; return what paid.

    `on_status` gets a line on what is being done, `on_facts` what is known before, `on_trial` each trial as
    it ends.
    """
    begun_s = time.monotonic()
    facts = look_at(script, on_status=on_status)
    on_facts(facts)
    until_s = begun_s + asked.budget_s
    search = _Search(script, asked, facts=facts, until_s=until_s, on_status=on_status, on_trial=on_trial)
    return replace(search.run(), seconds=time.monotonic() - begun_s)


def _proposed(knob: Knob, value: Any) -> Trial:
    return Trial(
        knob=knob.name,
        words=knob.words(value),
        status="untested",
        value=value,
        settings={knob.name: value},
        changes_bits=knob.changes_bits,
    )


def _together(trials: Sequence[Trial]) -> Trial:
    values = {trial.knob: trial.value for trial in trials}
    return Trial(
        knob=" + ".join(values),
        words="together",
        status="untested",
        value=values,
        settings=values,
        changes_bits=any(trial.changes_bits for trial in trials),
    )


class _Search:
    """One search under way."""

    def __init__(
        self,
        script: watch.Script,
        asked: TuneOptions,
        *,
        facts: ScriptFacts,
        until_s: float,
        on_status: Callable[[str], None],
        on_trial: Callable[[Trial], None],
    ) -> None:
        self._script, self._asked, self._facts, self._until_s = script, asked, facts, until_s
        self._on_status, self._on_trial = on_status, on_trial
        self._trials: list[Trial] = []
        self._trial_s = _FIRST_TRIAL_S
        self._num_last = 1
        """Trials for which time is kept: what pays must be put together and measured at the end, too."""
        self._own: tuple[float | None, ...] = ()
        self._seeds: list[list[float | None]] = []
        self._place = ""
        """Which of the settings is tried, for the status."""

    def run(self) -> Result:
        """Go through the knobs, and put together those that pay. Ctrl-C ends that: return what is known."""
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
            trials=tuple(self._trials),
            settings=chosen,
            lines={name: self._knob(name).lines(value) for name, value in chosen.items()},
            for_run=self._for_run(chosen),
            final=final,
            learning=learning,
            budget_s=self._asked.budget_s,
        )

    def _knob(self, name: str) -> Knob:
        return self._asked.knobs[name]

    def _try_alone(self) -> list[Trial]:
        """Try each knob against the start; return the best trial of each one that pays, the best first."""
        best: dict[str, Trial] = {}
        offers = {name: knob.offer(self._facts, {}) for name, knob in self._asked.knobs.items()}
        num_trials = sum(len(offer) for offer in offers.values() if not isinstance(offer, str))
        number = 0
        for name, offer in offers.items():
            if isinstance(offer, str):
                self._add(Trial(knob=name, words="", status="skipped", reason=offer))
                continue
            for value in offer:
                number += 1
                self._place = f"trial {number} of {num_trials}: "
                trial = self._try(_proposed(self._knob(name), value))
                if trial.status == "pays" and (name not in best or trial.gain > best[name].gain):
                    best[name] = trial
                    self._num_last = 2 if len(best) > 1 else 1
        self._place, self._num_last = "", 1
        return sorted(best.values(), key=lambda trial: -trial.gain)

    def _combine(self, alone: list[Trial]) -> dict[str, Any]:
        """Take the best, and on top of it the others: all at once, or one by one if that does not pay."""
        chosen = {trial.knob: trial.value for trial in alone[:1]}
        others, fitting = alone[1:], dict(chosen)
        for trial in others:
            if self._fits(trial, fitting):
                fitting[trial.knob] = trial.value
        added = [trial for trial in others if trial.knob in fitting]
        if len(added) > 1 and self._try(_together(added), base=chosen).status == "pays":
            chosen, others = fitting, []
        for trial in others:
            if self._fits(trial, chosen):
                self._try_on_top(self._knob(trial.knob), [trial.value], chosen)
        for name, knob in self._asked.knobs.items():
            offer = knob.offer(self._facts, chosen)
            if name not in chosen and set(knob.after) & chosen.keys() and not isinstance(offer, str):
                self._try_on_top(knob, offer, chosen)
        return chosen

    def _fits(self, trial: Trial, chosen: Mapping[str, Any]) -> bool:
        """Whether a position makes sense beside others, and they beside it: what is fused has no foreach."""
        values = {**chosen, trial.knob: trial.value}
        return all(self._is_offered(name, values) for name in values)

    def _is_offered(self, name: str, values: Mapping[str, Any]) -> bool:
        offer = self._knob(name).offer(
            self._facts, {other: value for other, value in values.items() if other != name}
        )
        return not isinstance(offer, str) and values[name] in offer

    def _try_on_top(self, knob: Knob, values: Sequence[Any], chosen: dict[str, Any]) -> None:
        """Try a knob on top of those that are kept, and keep its best value if one pays."""
        if not self._has_time():
            return
        trials = [self._try(_proposed(knob, value), base=chosen) for value in values]
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
        """What is left for trials."""
        return self._until_s - time.monotonic() - self._num_last * self._trial_s

    def _has_time(self) -> bool:
        return self._left_s >= self._trial_s / 2

    def _try(self, trial: Trial, *, base: Mapping[str, Any] | None = None) -> Trial:
        """Measure a setting on top of `base`, the start if not given; return it with what was found."""
        base = dict(base or {})
        trial = replace(trial, on_top_of=base)
        if not self._has_time():
            reason = f"the budget of {self._asked.budget_s:g} s was used up; pass a larger one"
            return self._add(replace(trial, reason=reason))
        title = f"{self._place}{trial.knob}: {trial.words}"
        self._on_status(title)
        found = compare(
            self._script,
            base,
            {**base, **trial.settings},
            seconds=min(self._left_s, max(_MAX_TRIAL_S, self._asked.budget_s / 4)),
            knobs=self._asked.knobs,
            on_status=lambda words: self._on_status(f"{title}: {words}"),
        )
        self._trial_s = max(_FIRST_TRIAL_S / 2, 0.5 * (self._trial_s + found.seconds))
        if not base and len(found.base_losses) > len(self._own):
            self._own = found.base_losses
        return self._add(self._judged(replace(trial, found=found), found))

    def _judged(self, trial: Trial, found: Comparison) -> Trial:
        if found.ratio is None and found.failed == LATE:
            return replace(trial, reason=f"{LATE}; pass a larger one")
        if found.ratio is None:
            return replace(trial, status="failed", reason=found.failed or "")
        if not found.pays:
            return replace(trial, status="no gain", reason=_why_not(found))
        learning = self._evaluate(found) if trial.changes_bits else None
        if learning is not None and not learning.survives:
            reason = f"it changes learning: {learning.words}"
            return replace(trial, status="refused", reason=reason, learning=learning)
        return replace(trial, status="pays", learning=learning)

    def _evaluate(self, found: Comparison) -> Learning:
        """Compare the losses with the script's own, and with those of other seeds."""
        own, other = self._own or found.base_losses, found.other_losses
        if not can_judge(other, own):
            return compare_learning(other, own, seeds=())
        if other == own[: len(other)]:
            return Learning(survives=True, words="every loss is bit-for-bit identical", steps=len(other))
        if not self._seeds:
            most = max(_MIN_JUDGED, int(_SEEDS_S / max(self._facts.step_s, 1e-6)))
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
        settings = {name: self._knob(name).setting for name in chosen}
        return {name: (setting, chosen[name]) for name, setting in settings.items() if setting}

    def _may_differ(self, chosen: Mapping[str, Any]) -> bool:
        return any(self._knob(name).changes_bits for name in chosen)

    def _add(self, trial: Trial) -> Trial:
        self._trials.append(trial)
        self._on_trial(trial)
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
        return "too few measurements to be sure"
    return "no clear gain" if ratio.high > WORTH else "no gain"
