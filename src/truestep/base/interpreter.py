"""The commands that start Python for modules of ours, torch's and others', never for the user's script.

Owns that nothing is imported from the working folder.
"""

import sys


def python_module(name: str, *words: str) -> list[str]:
    """Return the command that runs an installed module, wherever it is started.

    Without -P, `-m` looks in the working folder first: a `queue.py` there would be imported.
    """
    return [sys.executable, "-P", "-m", name, *words]
