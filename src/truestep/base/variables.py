"""Environment variables: the only module that reads them.

Owns nothing else. Imports no torch: observers read them before the script has imported it.
"""

import os
from collections.abc import Iterable, Mapping


def read_variables(names: Iterable[str]) -> dict[str, str]:
    """Return those of these environment variables that are set."""
    return {name: os.environ[name] for name in names if name in os.environ}


def set_defaults(values: Mapping[str, str]) -> None:
    """Set those of these environment variables that are not set."""
    for name, value in values.items():
        os.environ.setdefault(name, value)


def launched_rank_and_size() -> tuple[int, int] | None:
    """Return the rank of this process and the number of ranks; None if no launcher has set both."""
    known = read_variables(("RANK", "WORLD_SIZE"))
    try:
        return int(known["RANK"]), int(known["WORLD_SIZE"])
    except (KeyError, ValueError):
        return None
