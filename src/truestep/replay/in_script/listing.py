"""The text of a script that computes one step alone.

Owns which lines it needs, and that it compares what it gives with the bits of the step.
"""

from collections.abc import Iterator
from dataclasses import dataclass

_SCRIPT = '''\
"""{title}, alone: each of its operations, on the values that it had.

Needs torch and safetensors. Change a line, or print a value, and start it again: python step.py
Exit code: 0 the bits of the step, 1 others.
"""

import hashlib
import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import as_strided, ops

folder = Path(__file__).parent
weights, inputs, generators = (
    load_file(folder / f"{{name}}.safetensors") for name in ("weights", "inputs", "generators")
)
{settings}

{lines}

results = {{
{results}
}}
found = {{
    name: hashlib.sha256(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()).hexdigest()
    for name, value in results.items()
}}
expected = json.loads((folder / "expected.json").read_text())
for name in results:
    if name.startswith("loss"):
        print(name, float(results[name]))
other = [name for name in expected if found[name] != expected[name]]
print(f"{{len(expected) - len(other)}} of {{len(expected)}} results have the bits of the step", *other[:3])
raise SystemExit(bool(other))
'''


@dataclass(frozen=True, kw_only=True)
class Line:
    """One operation, or where a value comes from."""

    text: str
    place: str = ""
    targets: frozenset[str] = frozenset()
    uses: frozenset[str] = frozenset()
    reads: frozenset[int] = frozenset()
    writes: frozenset[int] = frozenset()
    is_drawn: bool = False
    file: tuple[str, str] | None = None
    """What it takes from a file: its kind and the name there."""


def script_of(lines: list[Line], *, title: str, settings: list[str], results: dict[str, str]) -> str:
    """Return the script for lines that are all needed."""
    return _SCRIPT.format(
        title=title,
        settings="\n".join(settings),
        lines="\n".join(_with_places(lines)),
        results="\n".join(f"    {name!r}: {value}," for name, value in results.items()),
    )


def needed(lines: list[Line], *, names: set[str], memories: set[int]) -> list[Line]:
    """Return the lines that results come from, and those that draw: the next draw depends on them."""
    kept = []
    for line in reversed(lines):
        if line.is_drawn or line.writes & memories or line.targets & names:
            kept.append(line)
            names |= line.uses
            memories |= line.reads
    return kept[::-1]


def _with_places(lines: list[Line]) -> Iterator[str]:
    last = ""
    for line in lines:
        if line.place and line.place != last:
            yield f"# {line.place}"
            last = line.place
        yield line.text
