"""Hangs: which ranks wait where, which one they wait for, and why it does not come.

`verdict` is a pure function of the facts of all ranks; `causes` adds the sources; `patrol` looks at a running
job; `text` prints.
"""

from truestep.hang.causes import Cause, find_cause
from truestep.hang.patrol import Patrol
from truestep.hang.text import as_text
from truestep.hang.verdict import Verdict, find_verdict

__all__ = ["Cause", "Patrol", "Verdict", "as_text", "find_cause", "find_verdict"]
