"""Knobs for tests: a shorter pause in `pausing.py`, no learning, a failure. Lies beside the tuned script."""

import sys


def apply(value, tape):
    """Set the pause, or spare some of it; with `rate` the rate of every step; with `fails` raise.

    With `fails_at` the script raises at that step.
    """
    value = dict(value)
    tape.listen(step_begins=lambda optimizer, _number: turn(value, optimizer))
    if value.get("fails"):
        raise RuntimeError("planted: this setting cannot be used here")


def turn(value, optimizer):
    if "pause_s" in value:
        sys.modules["__main__"].PAUSE_S = value["pause_s"]
    sys.modules["__main__"].PAUSE_S -= value.pop("spared_s", 0)  # once: other knobs may spare some too
    if "fails_at" in value:
        sys.modules["__main__"].FAILS_AT = value["fails_at"]
    if "rate" in value:
        for group in optimizer.param_groups:
            group["lr"] = value["rate"]
