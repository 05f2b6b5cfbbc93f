"""Run a script as `python SCRIPT` would, and kill its process by SIGKILL after so many optimizer steps.

Usage: kill_after.py STEPS SCRIPT [ARGUMENTS].
"""

import os
import runpy
import signal
import sys
from pathlib import Path
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook


def main() -> None:
    num_left = int(sys.argv[1])
    script = sys.argv[2]

    def count(*_: Any) -> None:
        nonlocal num_left
        num_left -= 1
        if num_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    register_optimizer_step_post_hook(count)
    sys.argv = sys.argv[2:]
    sys.path[0] = str(Path(script).parent)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
