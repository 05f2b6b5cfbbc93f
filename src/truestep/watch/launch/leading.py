"""What a script imports at its top, by reading it.

Owns which packages may be imported ahead of the script, in a process that is then forked. Imports nothing.
"""

import ast
import struct
from pathlib import Path

from truestep.base.cells import code_of, is_notebook

COLD_FILE = "cold.txt"
"""In the folder of evidence: why a forked run has ended itself, and has to be started cold."""
HEAD = struct.Struct("<Q")
"""What comes before a request to fork: its length."""
PACKAGES = frozenset(
    {
        *(
            "torch",
            "torchgen",
            "functorch",
            "numpy",
            "torchvision",
            "torchaudio",
            "torchdata",
            "torchmetrics",
        ),
        *("transformers", "tokenizers", "accelerate", "datasets", "lightning", "pytorch_lightning", "ignite"),
        *("scipy", "sklearn", "pandas", "matplotlib", "PIL", "tqdm", "einops", "timm", "safetensors"),
    }
)
"""Their import starts no thread and reads nothing that a script may have changed but its environment."""


def leading_imports(path: str) -> list[list[str]]:
    """Return the modules of known packages that a script imports at its top, with names taken from each."""
    try:
        text = code_of(path) if is_notebook(path) else Path(path).read_text(encoding="utf-8")
        body = ast.parse(text).body
    except (OSError, SyntaxError, ValueError):
        return []  # the script will meet the same
    found: list[list[str]] = []
    for node in body:
        if isinstance(node, ast.Import):
            found += [[item.name] for item in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.append([node.module, *(item.name for item in node.names if item.name != "*")])
    return [words for words in found if words[0].partition(".")[0] in PACKAGES]
