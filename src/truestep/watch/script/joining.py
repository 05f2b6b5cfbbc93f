"""One of several processes: where such a process begins to write down where it stands.

Owns telling a rank from a script that runs alone. Imports the rest only for a rank.
"""

from typing import TYPE_CHECKING

from truestep.base.variables import launched_rank_and_size

if TYPE_CHECKING:
    from truestep.watch.script.standpoint import Standpoint
    from truestep.watch.script.tape import Tape


def is_one_of_several() -> bool:
    """Whether a launcher has started this process as one of several ranks."""
    known = launched_rank_and_size()
    return known is not None and known[1] > 1


def begin_standpoint(folder: str, tape: "Tape | None") -> "Standpoint":
    """Begin to write into the folder where this process stands, whenever it stands still."""
    from pathlib import Path  # noqa: PLC0415

    from truestep.watch.script.standpoint import Standpoint  # noqa: PLC0415

    if tape is None:
        standpoint = Standpoint(Path(folder))
    else:
        standpoint = Standpoint(Path(folder), num_steps=lambda: tape.num_steps, on_still=tape.flush)
    standpoint.start()
    return standpoint
