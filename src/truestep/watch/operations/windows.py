"""Windows: when the light recorder is on, and what it counts where there are too many of them.

Owns which calls of modules are looked at beyond the first steps. The recorder is in `light`.
"""

_MAX_VISITS = 2
_MAX_LATE = 16
"""Of all modules: a script may make a new one for each task."""


class Windows:
    """When the light recorder is on beyond its first steps: who comes later is looked at too.

    In evaluation each place of the user's that calls is another one: what is done with the result differs.
    """

    def __init__(self) -> None:
        self._met: set[int] = set()
        self._num_visits: dict[tuple[int, int], int] = {}
        self._num_late = 0
        self.is_visit = False
        """Whether it is on for one forward pass in evaluation, and for what is done with its result."""
        self.is_after = False
        """Whether that pass has returned."""
        self.num_noted = 0

    def meet(self, number: int) -> None:
        """An outermost module is called while the look is on."""
        self._met.add(number)

    @property
    def is_over(self) -> bool:
        """Whether no call is looked at any more."""
        return self._num_late >= _MAX_LATE

    def opens_for(self, number: int, site: int, *, is_training: bool) -> bool:
        """Whether it goes on for a call of the module: the first in training, or a place's first ones not."""
        if is_training:
            is_new = number not in self._met
            self._met.add(number)
            self._num_late += is_new
            return is_new
        place = (number, site)
        num = self._num_visits[place] = self._num_visits.get(place, 0) + 1
        self.is_visit = num <= _MAX_VISITS
        self._num_late += self.is_visit
        return self.is_visit
