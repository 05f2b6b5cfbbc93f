"""Settings: which rules are asked, as `pyproject.toml` and the command line say.

Owns `[tool.truestep.check]` and how rules are named: by code, by name, or by the beginning of a code.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from truestep.base import plainfile
from truestep.errors import UsageError
from truestep.rules.rule import Rule

_KEYS = {"select", "ignore", "rules"}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is asked. Lists of the command line take the place of the file's."""

    select: tuple[str, ...] = ()
    """Only these rules; all if empty."""
    ignore: tuple[str, ...] = ()
    rules: tuple[Path, ...] = ()
    """Folders with rules of the user's own."""
    is_verbose: bool = False
    """Whether remarks are shown that are often a matter of taste."""

    def updated(
        self,
        *,
        select: tuple[str, ...] = (),
        ignore: tuple[str, ...] = (),
        rules: tuple[Path, ...] = (),
    ) -> "Settings":
        """Return these settings with what the command line says in their place; folders are added."""
        return Settings(
            select=select or self.select,
            ignore=ignore or self.ignore,
            rules=(*self.rules, *rules),
        )

    def choose(self, rules: Sequence[Rule]) -> list[Rule]:
        """Return the rules that are asked."""
        check_names("select", self.select, rules=rules)
        check_names("ignore", self.ignore, rules=rules)
        return [
            rule
            for rule in rules
            if (not self.select or is_named(rule, self.select)) and not is_named(rule, self.ignore)
        ]

    def is_silent(self, rule: Rule) -> bool:
        """Whether the remarks of a rule are not shown; one that is selected is."""
        return rule.meta.is_quiet and not self.is_verbose and not is_named(rule, self.select)


def is_named(rule: Rule, names: Iterable[str]) -> bool:
    """Whether one of the names means this rule: its code, its name, or a family such as LOOP."""
    code = rule.meta.code
    return any(name in (rule.name, code) or code.rstrip("0123456789") == name for name in names)


def check_names(where: str, names: Iterable[str], *, rules: Sequence[Rule]) -> None:
    """Refuse names that mean no rule."""
    for name in names:
        if not any(is_named(rule, (name,)) for rule in rules):
            raise UsageError(
                f"{where} names an unknown rule, {name!r}. Pass a code such as LOOP01, a name such as "
                f"stale-gradients, or a family such as LOOP."
            )


def read_settings(folder: Path) -> Settings:
    """Return what the nearest `pyproject.toml` says, looking from a folder upward."""
    for place in (folder, *folder.parents):
        path = place / "pyproject.toml"
        if path.is_file():
            return _read_file(path)
    return Settings()


def _read_file(path: Path) -> Settings:
    try:
        found: Any = plainfile.read_toml(path)
    except (ValueError, OSError) as error:
        raise UsageError(f"{path} cannot be read: {error}. Fix the file.") from error
    for name in ("tool", "truestep", "check"):
        found = found.get(name, {})
        if not isinstance(found, dict):
            raise UsageError(f"{path} has {name} = {found!r}, a table is expected: [tool.truestep.check].")
    unknown = sorted(set(found) - _KEYS)
    if unknown:
        raise UsageError(
            f"{path}: [tool.truestep.check] has unknown keys: {', '.join(unknown)}. "
            f"Use {', '.join(sorted(_KEYS))}."
        )
    for name in ("select", "ignore", "rules"):
        value = found.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise UsageError(f'{path} has {name} = {value!r}. It must be a list of names: ["LOOP01", "PAR"].')
    return Settings(
        select=tuple(found.get("select", ())),
        ignore=tuple(found.get("ignore", ())),
        rules=tuple(path.parent / item for item in found.get("rules", ())),
    )
