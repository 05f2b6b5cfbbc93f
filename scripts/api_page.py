"""Writes docs/api.md and the pages under docs/api/: the public names, each with the first sentence it says.

Usage: python scripts/api_page.py [--check]. With --check nothing is written; exit code 1 if one is old.
The site puts signatures and docstrings where a line begins with `:::`; the tables are for everybody.
"""

import inspect
import sys
from importlib import import_module
from typing import Any, NamedTuple

from generated import settle

import truestep
import truestep.model


class Part(NamedTuple):
    """One page: its title, what it is about, and the full names on it."""

    title: str
    words: str
    names: list[str]


def full(package: str, *names: str) -> list[str]:
    """Return names with their package."""
    return [f"{package}.{name}" for name in names]


MODEL = sorted(truestep.model.__all__, key=lambda name: (name[0].isupper(), name))
"""What can be called first, what it returns after it."""
ERRORS = [name for name, value in vars(truestep.errors).items() if inspect.isclass(value)]
PARTS = {
    "run": Part(
        "Run and Step",
        "A training run, and one step of it. Start with the [tutorial](../quickstart-library.md).",
        full("truestep", "Run", "train.Step", "Snapshots"),
    ),
    "data": Part(
        "Data",
        "Batches, splits, padding, [packing](../packing.md), [shards](../shards.md), and what makes the "
        "[resume of another loader exact](../how-to/exact-resume.md).",
        [
            *full("truestep", "Loader", "split", "pad_collate", "Padded", "Packed", "Shards", "ShardCache"),
            *full("truestep.data", "SeededOrder", "SeededSamples"),
        ],
    ),
    "bits": Part("Bits", 'Digests: what "the same bits" means.', full("truestep", "digest", "digest_state")),
    "model": Part(
        "Models",
        "Small functions over any `torch.nn.Module`: [models.md](../models.md), [loading.md](../loading.md), "
        "[taps.md](../taps.md), [measured-models.md](../measured-models.md).",
        full("truestep.model", *MODEL),
    ),
    "tensor": Part(
        "Tensors",
        "What tensors are in memory, in words and pictures: [tensors.md](../tensors.md).",
        [
            "truestep.explain",
            *full(
                "truestep.tensor", "Explanation", *full("drawing", "draw", "draw_memory", "draw_broadcast")
            ),
        ],
    ),
    "check": Part(
        "Checking a block of code",
        "The rules of `truestep check` in your own process: [how to](../how-to/in-process.md).",
        full("truestep", "checking", "check.within.Check"),
    ),
    "report": Part(
        "Records and reports",
        "A run's record read, shown and sent on: [report.md](../report.md), [watching.md](../watching.md).",
        [
            "truestep.record.read_steps",
            "truestep.report.compose.write_report",
            *full("truestep.report.send", "to_mlflow", "to_wandb", "to_trackio"),
            "truestep.picture.Picture",
        ],
    ),
    "rules": Part(
        "Your own rules",
        "What a rule gets and returns: [write your own rule](../how-to/write-a-rule.md).",
        full("truestep.rules", "Meta", "Finding", "Evidence"),
    ),
    "errors": Part(
        "Errors",
        "Each message states what was found, what was expected, and what to do.",
        full("truestep.errors", *ERRORS),
    ),
}


def resolve(name: str) -> object:
    """Return what a full name stands for."""
    home, _, last = name.rpartition(".")
    try:
        return getattr(import_module(home), last)
    except ModuleNotFoundError:  # a name inside a class or behind a lazy module
        return getattr(resolve(home), last)


def home_of(name: str) -> str:
    """Return where it is defined: some functions share the name of their module, which would be shown."""
    thing: Any = resolve(name)
    return f"{thing.__module__}.{thing.__qualname__}"


def first_sentence(name: str) -> str:
    """Return what its docstring begins with, on one line."""
    paragraph = (inspect.getdoc(resolve(name)) or "").partition("\n\n")[0]
    return " ".join(paragraph.split()).replace("|", "\\|")


def shown_name(name: str) -> str:
    """Return the name as scripts write it."""
    return name.replace("truestep.", "ts.", 1) if is_at_hand(name) else name


def is_at_hand(name: str) -> bool:
    """Whether `import truestep as ts` is enough to reach it."""
    return name.removeprefix("truestep.").partition(".")[0] in truestep.__all__


def build_page(part: Part) -> str:
    """Return a page: a table for all readers, then what the site fills in."""
    rows = [f"| `{shown_name(name)}` | {first_sentence(name)} |" for name in part.names]
    table = "\n".join(["| name | is |", "|---|---|", *rows])
    filled = "\n\n".join(f"::: {home_of(name)}" for name in part.names)
    return f"# {part.title}\n\n{part.words}\n\n{table}\n\n{filled}\n"


def build_index() -> str:
    """Return the page of all pages."""
    head = (
        "# API\n\nGenerated by `scripts/api_page.py`. The public names, as `import truestep as ts` gives "
        "them, and a few more by their full name. Everything else is private and may change.\n"
    )
    rows = [
        f"| [{part.title}](api/{name}.md) | {', '.join(f'`{shown_name(each)}`' for each in part.names)} |"
        for name, part in PARTS.items()
    ]
    return "\n".join([head, "| page | names |\n|---|---|", *rows]) + "\n"


def main() -> int:
    """Write the pages, or say which are old."""
    pages = {"api.md": build_index()}
    pages |= {f"api/{name}.md": build_page(part) for name, part in PARTS.items()}
    return settle(pages, folder="api", script="api_page.py")


if __name__ == "__main__":
    sys.exit(main())
