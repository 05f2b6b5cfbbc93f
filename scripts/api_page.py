"""The pages of the API on the site: `api.md` and those under `api/`, with the public names.

The site puts signatures and docstrings where a line begins with `:::`; the tables have the first sentences.
"""

import inspect
from importlib import import_module
from typing import Any, NamedTuple

import truestep
import truestep.model


class Part(NamedTuple):
    """One page: its title, what it is about, the file that links to it name, and the full names on it."""

    title: str
    words: str
    source: str
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
        "run/train/run.py",
        full("truestep", "Run", "run.train.Step", "Snapshots"),
    ),
    "data": Part(
        "Data",
        "Batches, splits, padding, [packing](../packing.md), [shards](../shards.md), and what makes the "
        "[resume of another loader exact](../how-to/exact-resume.md).",
        "run/data/__init__.py",
        [
            *full("truestep", "Loader", "split", "pad_collate", "Padded", "Packed", "Shards", "ShardCache"),
            *full("truestep.run.data", "SeededOrder", "SeededSamples"),
        ],
    ),
    "bits": Part(
        "Bits",
        'Digests: what "the same bits" means.',
        "base/bits.py",
        full("truestep", "digest", "digest_state"),
    ),
    "model": Part(
        "Models",
        "Small functions over any `torch.nn.Module`: [models.md](../models.md).",
        "model/__init__.py",
        full("truestep.model", *MODEL),
    ),
    "tensor": Part(
        "Tensors",
        "What tensors are in memory, in words: [tensors.md](../tensors.md).",
        "tensor/__init__.py",
        ["truestep.explain", "truestep.tensor.Explanation"],
    ),
    "check": Part(
        "Checking a block of code",
        "The rules of `truestep check` in your own process: [how to](../how-to/in-process.md).",
        "check/within.py",
        full("truestep", "checking", "check.within.Check"),
    ),
    "report": Part(
        "Records and reports",
        "A run's record read, shown and sent on: [report.md](../report.md), [watching.md](../watching.md).",
        "report/__init__.py",
        [
            "truestep.record.read_steps",
            "truestep.report.compose.write_report",
        ],
    ),
    "rules": Part(
        "Your own rules",
        "What a rule gets and returns: [write your own rule](../how-to/write-a-rule.md).",
        "rules/__init__.py",
        full("truestep.rules", "Meta", "Finding", "Evidence"),
    ),
    "errors": Part(
        "Errors",
        "Each message states what was found, what was expected, and what to do.",
        "errors.py",
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
        "# API\n\nThe public names, as `import truestep as ts` gives "
        "them, and a few more by their full name. Everything else is private and may change.\n"
    )
    rows = [
        f"| [{part.title}](api/{name}.md) | {', '.join(f'`{shown_name(each)}`' for each in part.names)} |"
        for name, part in PARTS.items()
    ]
    return "\n".join([head, "| page | names |\n|---|---|", *rows]) + "\n"


def build_pages() -> dict[str, tuple[str, str]]:
    """Return each page: its path on the site, the file that it is built from, and its text."""
    pages = {"api.md": ("src/truestep/__init__.py", build_index())}
    pages |= {
        f"api/{name}.md": (f"src/truestep/{part.source}", build_page(part)) for name, part in PARTS.items()
    }
    return pages
