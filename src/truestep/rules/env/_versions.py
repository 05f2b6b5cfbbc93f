"""Versions and requirements of packages, as far as telling "does not fit" needs it.

Owns what is done in doubt: it fits. What cannot be read here is never held against a machine.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

Release = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Need:
    """What a package says that it needs."""

    owner: str
    name: str
    wanted: str
    """As its metadata has it: `>=2.0,<3`."""


def release(version: str | None) -> Release:
    """Return the numbers of a version without zeros at the end; empty if it has none.

    Also of what is no version of a package, as a driver's.
    """
    found = re.match(r"v?(\d+(?:\.\d+)*)", version or "")
    numbers = [int(part) for part in found[1].split(".")] if found else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def major(version: str | None) -> int:
    """Return the first number of a version; 0 if it has none."""
    return (*release(version), 0)[0]


def label(version: str | None) -> str:
    """Return what follows the plus sign of a version, as `cu126` and `cpu` do in builds of torch."""
    return (version or "").partition("+")[2]


def does_satisfy(version: str, wanted: str) -> bool:
    """Whether a version is one that a requirement allows. Early versions count as the final ones."""
    try:
        return Version(version).base_version in SpecifierSet(wanted)
    except (InvalidVersion, InvalidSpecifier):
        return True


def read_needs(owner: str, lines: Iterable[str], *, extras: Iterable[str] = ()) -> list[Need]:
    """Return what the lines of a package's metadata ask for on this machine."""
    found: dict[Need, None] = {}
    for line in lines:
        try:
            need = Requirement(line)
        except InvalidRequirement:
            continue
        marker = need.marker
        environments = [{"extra": extra} for extra in ("", *extras)]
        if need.specifier and (marker is None or any(map(marker.evaluate, environments))):
            name = canonicalize_name(need.name)
            found.setdefault(Need(owner=owner, name=name, wanted=str(need.specifier)))
    return list(found)
