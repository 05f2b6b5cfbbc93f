"""Which operations a backward pass goes through.

Owns looking them up. Backward passes of large models are not observed: then nothing is known.
"""

from truestep.rules import Evidence
from truestep.watch import Operation


class Passed:
    """The operations whose gradients were computed."""

    def __init__(self, evidence: Evidence) -> None:
        passed = [item for item in evidence.operations if item.phase == "backward"]
        self._steps = {item.step for item in passed}
        self._through = {
            (item.step, item.forward_name, item.forward_file, item.forward_line) for item in passed
        }

    def goes_through(self, item: Operation) -> bool:
        """Whether a backward pass does, as far as that is known."""
        is_known = item.step in self._steps
        return not is_known or (item.step, item.name, item.file, item.line) in self._through
