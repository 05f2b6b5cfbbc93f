"""truestep: PyTorch training that is right, the same every time, and fast.

Owns the list of public names. Each is imported when first used: the command line starts without torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from truestep import errors

if TYPE_CHECKING:
    from truestep import model
    from truestep.base.bits import digest, digest_state
    from truestep.check.within import checking
    from truestep.model import decay_groups
    from truestep.run.data import Loader, Packed, Padded, ShardCache, Shards, pad_collate, split
    from truestep.run.train import Run, Snapshots
    from truestep.tensor import explain

__version__ = "0.1.0"

__all__ = [
    "Loader",
    "Packed",
    "Padded",
    "Run",
    "ShardCache",
    "Shards",
    "Snapshots",
    "__version__",
    "checking",
    "decay_groups",
    "digest",
    "digest_state",
    "errors",
    "explain",
    "model",
    "pad_collate",
    "split",
]

_HOMES = {
    "Loader": "truestep.run.data",
    "Packed": "truestep.run.data",
    "Padded": "truestep.run.data",
    "Run": "truestep.run.train",
    "ShardCache": "truestep.run.data",
    "Shards": "truestep.run.data",
    "Snapshots": "truestep.run.train",
    "checking": "truestep.check.within",
    "decay_groups": "truestep.model",
    "digest": "truestep.base.bits",
    "digest_state": "truestep.base.bits",
    "explain": "truestep.tensor",
    "pad_collate": "truestep.run.data",
    "split": "truestep.run.data",
}

_PARTS = ("model",)
"""Used by their own name: `truestep.model.freeze(...)`."""


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return import_module(f"truestep.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'truestep' has no attribute {name!r}. It has {', '.join(__all__)}.")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def load_ipython_extension(shell: Any) -> None:
    """Add the magics for notebooks; IPython calls it for `%load_ext truestep`."""
    import_module("truestep.notebook").add_magics(shell)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
