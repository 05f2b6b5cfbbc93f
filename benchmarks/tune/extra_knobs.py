"""Knobs that truestep does not have, for a script's process: planted ones, and advice that is no knob."""

import sys

import torch


def apply(value, tape):
    """Set the units of a step of `working.py`; with `deterministic` ask for deterministic algorithms."""
    if "units" in value:
        tape.listen(step_begins=lambda *_: set_units(value["units"]))
    if value.get("deterministic"):
        torch.use_deterministic_algorithms(True, warn_only=True)


def set_units(number):
    sys.modules["__main__"].UNITS = number
