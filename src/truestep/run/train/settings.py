"""Settings beside a script: `truestep.toml`, as `truestep tune` writes it.

Owns the file's form, where it is looked for, and refusing what is not understood. What a setting does is
left to the run.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from truestep.base import plainfile
from truestep.base.runfiles import replacing
from truestep.errors import FolderUnusable, UsageError

NAME = "truestep.toml"
_TABLE = "settings"


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


KNOWN: dict[str, tuple[Callable[[Any], bool], str]] = {
    "threads": (lambda value: _is_number(value) and value > 0, "a whole number from 1 on"),
    "workers": (_is_number, "a whole number from 0 on"),
    "precision": (lambda value: value in ("fp32", "bf16", "fp16"), "'fp32', 'bf16' or 'fp16'"),
    "allocator": (lambda value: value == "keep", "'keep'"),
    "compile": (lambda value: isinstance(value, bool), "true or false"),
}
"""What may stand there: a test, and what it asks for."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Values that stand in for those in the script, and the file that they are from."""

    values: Mapping[str, Any] = field(default_factory=dict)
    path: Path | None = None

    def get(self, name: str, otherwise: Any) -> Any:
        """Return the setting, or what the script says."""
        return self.values.get(name, otherwise)

    def __str__(self) -> str:
        values_text = ", ".join(f"{name} = {value}" for name, value in self.values.items())
        return f"{self.path}: {values_text}"


def find() -> Settings:
    """Return the settings in the folder of the script that is running; none if there is no such file."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    path = Path(script).parent / NAME if script else None
    return read(path) if path is not None and path.is_file() else Settings()


def read(path: Path) -> Settings:
    """Read a file of settings."""
    try:
        content = plainfile.read_toml(path)
    except FileNotFoundError as error:
        raise UsageError(f"{path} does not exist. Write it with: truestep tune SCRIPT.") from error
    except (ValueError, OSError) as error:
        raise UsageError(f"{path} cannot be read as TOML ({error}). Fix it, or delete it.") from error
    values = content.get(_TABLE, {})
    is_table = isinstance(values, dict)
    unknown = [key for key in content if key != _TABLE]
    unknown += [key for key in values if key not in KNOWN] if is_table else []
    if unknown or not is_table:
        raise UsageError(
            f"{path} has {', '.join(map(repr, unknown)) or 'no table of settings'}. "
            f"It may have one table, [{_TABLE}], with {', '.join(KNOWN)}."
        )
    for key, value in values.items():
        is_right, wanted = KNOWN[key]
        if not is_right(value):
            raise UsageError(f"{path} has {key} = {value!r}. It must be {wanted}.")
    return Settings(values=values, path=path)


def write(values: Mapping[str, Any], path: Path, *, comment: str) -> None:
    """Write settings with a comment before them, over what was there."""
    lines = [f"# {comment}", f"[{_TABLE}]"]
    lines += [f"{key} = {_literal(value)}" for key, value in values.items()]
    try:
        with replacing(path) as file:
            file.write(("\n".join(lines) + "\n").encode())
    except (OSError, FolderUnusable) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(
            f"{path} cannot be written ({reason}). Make its folder writable, or write it yourself:\n"
            + "\n".join(lines[1:])
        ) from error


def _literal(value: Any) -> str:
    return (
        str(value).lower()
        if isinstance(value, bool)
        else f'"{value}"'
        if isinstance(value, str)
        else str(value)
    )
