"""Versions and requirements of packages, as far as telling "does not fit" needs it.

Owns comparing them. In doubt it fits: what cannot be read here is never held against a machine.
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

Release = tuple[int, ...]

_CLAUSE = re.compile(r"(~=|===|==|!=|<=|>=|<|>)\s*([^\s,]+)")
_LINE = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[[^\]]*\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?")
_CONDITION = re.compile(r"(\w+)\s*(==|!=|<=|>=|<|>)\s*[\"']([^\"']*)[\"']")
_COMPARE: dict[str, Callable[[Release, Release], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


@dataclass(frozen=True, kw_only=True)
class Need:
    """What a package says that it needs."""

    owner: str
    name: str
    wanted: str
    """As its metadata has it: `>=2.0,<3`."""


def release(version: str | None) -> Release:
    """Return the numbers of a version without zeros at the end; empty if it has none."""
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
    return all(_holds(release(version), sign, bound) for sign, bound in _CLAUSE.findall(wanted))


def _holds(have: Release, sign: str, bound: str) -> bool:
    wanted = release(bound)
    if sign == "===" or not have:
        return True
    if bound.endswith(".*"):
        is_same = _pad(have, len(bound.split(".")) - 1) == _pad(wanted, len(bound.split(".")) - 1)
        return is_same == (sign == "==")
    if sign == "~=":
        places = bound.count(".")
        return have >= wanted and _pad(have, places) == _pad(wanted, places)
    return _COMPARE[sign](have, wanted)


def _pad(numbers: Release, places: int) -> Release:
    return (*numbers, *(0,) * places)[:places]


def canonical(name: str) -> str:
    """Return a package's name as the index spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_needs(
    owner: str, lines: Iterable[str], *, facts: Mapping[str, str], extras: Iterable[str] = ()
) -> list[Need]:
    """Return what the lines of a package's metadata ask for on a machine with these facts."""
    found: dict[Need, None] = {}
    for line in lines:
        match = _LINE.match(line)
        if match and match[2].strip() and _applies(match[3] or "", facts, frozenset(extras)):
            need = Need(owner=owner, name=canonical(match[1]), wanted=match[2].strip())
            found.setdefault(need)
    return list(found)


def _applies(condition: str, facts: Mapping[str, str], extras: frozenset[str]) -> bool:
    """Whether a condition holds; one that is more than comparisons joined by `and` counts as false."""
    if not condition.strip():
        return True
    for part in condition.split(" and "):
        found = _CONDITION.fullmatch(part.strip(" ()"))
        if found is None or " or " in condition:
            return False
        name, sign, value = found.groups()
        if not (value in extras if name == "extra" else _is_so(facts.get(name), sign, value)):
            return False
    return True


def _is_so(fact: str | None, sign: str, value: str) -> bool:
    if fact is None:
        return False
    if sign in ("==", "!="):
        return (fact == value) == (sign == "==")
    return _COMPARE[sign](release(fact), release(value))
