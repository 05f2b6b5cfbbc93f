"""Threads: how many cores one operation of torch uses on the CPU."""

from collections.abc import Mapping
from typing import Any

from truestep.tune.knob import Choice, Knob, ScriptFacts, Skip
from truestep.tune.knobs._arguments import fix_argument
from truestep.tune.knobs._worth import too_small
from truestep.watch.script.tape import Tape


def propose(facts: ScriptFacts, chosen: Mapping[str, Any]) -> list[Choice] | Skip:
    """Propose one, half the cores, and all, other than now."""
    if facts.device != "cpu":
        return Skip(reason="the model is on the GPU, so CPU threads do not speed up a step.")
    skip = too_small(
        facts, "forward", "backward", "optimizer", "other", what="computing", best="a CPU without cost"
    )
    if skip is not None:
        return skip
    numbers = {1, max(1, facts.cores // 2), facts.cores} - {chosen.get("threads", facts.threads)}
    if not numbers:
        return Skip(reason="the machine has one core, and the script uses one thread.")
    return [Choice(value=number, words=_words(number)) for number in sorted(numbers)]


def _words(number: int) -> str:
    return "1 thread" if number == 1 else f"{number} threads"


def apply(value: int, tape: Tape) -> None:  # noqa: ARG001
    """Set it, whatever the script sets later."""
    fix_argument("torch.set_num_threads", value=value)


KNOB = Knob(
    priority=20,
    about="Uses more or fewer cores per operation. Small models are fastest with one: sharing takes time.",
    propose=propose,
    lines=("torch.set_num_threads({value})  # first thing after the imports",),
    changes_bits=True,
    after=("workers",),
    setting=lambda value: ("threads", value),
)
