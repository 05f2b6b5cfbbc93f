"""What the command answers about a script."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any


def ask(folder: Path, script: str, *options: str) -> Any:
    """Write a script into a folder, verify it there, and return the JSON."""
    (folder / "train.py").write_text(script)
    words = [sys.executable, "-m", "truestep", "verify", *options, "--format", "json", "train.py"]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=540)
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    return json.loads(done.stdout)
