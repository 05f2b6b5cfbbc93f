"""What makes a rule of a function about a machine: its name, its documentation, its metadata."""

import inspect
from collections.abc import Callable, Iterator
from functools import wraps

from truestep.rules import Evidence, Finding, Meta, Rule, Severity
from truestep.rules.env._machine import Machine, is_known
from truestep.rules.rule import documented


def machine_rule(
    code: str, severity: Severity, *, fix: str, caused_by: tuple[str, ...] = ()
) -> Callable[[Callable[[Machine], Iterator[Finding]]], Rule]:
    """Return the rule that a function is: its name with dashes, its docstring the documentation."""
    meta = Meta(code=code, severity=severity, fix=fix, caused_by=caused_by, is_observed=is_known)

    def made(find: Callable[[Machine], Iterator[Finding]]) -> Rule:
        @wraps(find)
        def check(evidence: Evidence) -> Iterator[Finding]:
            return find(evidence.machine)

        name = find.__name__.replace("_", "-")
        document = documented(inspect.getdoc(find) or "", fix)
        return Rule(name=name, meta=meta, check=check, document=document, is_observed=is_known)

    return made
