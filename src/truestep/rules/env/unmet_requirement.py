"""A package requires another version of torch, or of a related package, than the installed one.

## What it finds
torchvision, torchaudio, lightning, accelerate, transformers, torchmetrics and others whose metadata requires
a different version than the installed one, and CUDA libraries for which torch requires another version.

## Why it matters
Versions match only until the next command: `pip install` of one package replaces torch and mentions the rest
in a line that scrolls by. The results are missing operators, failing imports, or a trainer that disables
itself.
"""

from collections.abc import Iterator

from truestep.rules import Evidence, Finding, Meta
from truestep.rules.env._machine import Machine, is_known
from truestep.rules.env._versions import Need, does_satisfy, major

RULE = Meta(
    code="ENV10",
    severity="warning",
    is_observed=is_known,
    fix="Install both in one command, so that pip finds versions that match.",
)


def check(evidence: Evidence) -> Iterator[Finding]:
    """Find what is asked for and not there."""
    machine: Machine = evidence.machine
    installed = {**machine.packages, **({"torch": machine.torch} if machine.torch else {})}
    unmet = [need for need in machine.needs if need.name in installed and not _is_met(need, installed)]
    if not unmet:
        return
    owners = ", ".join(dict.fromkeys(need.owner for need in unmet))
    names = ", ".join(dict.fromkeys(need.name for need in unmet))
    needs = [f"{_called(need.owner, installed)} needs {need.name}{need.wanted}" for need in unmet]
    there = ", ".join(f"{name} {installed[name]}" for name in dict.fromkeys(need.name for need in unmet))
    yield Finding(
        message=f"{owners} {'does' if ',' not in owners else 'do'} not match the installed {names}",
        evidence=f"{'; '.join(needs)}; installed: {there}",
        fix=_advice(unmet, machine),
        count=len(unmet),
    )


def _is_met(need: Need, installed: dict[str, str]) -> bool:
    version = installed[need.name]
    if need.owner == "torch" and need.name.startswith("nvidia-"):
        # It asks for one version, and runs with later ones of the same major version.
        is_later = does_satisfy(version, need.wanted.replace("==", ">="))
        return is_later and major(version) == major(need.wanted.lstrip("="))
    return does_satisfy(version, need.wanted)


def _called(owner: str, installed: dict[str, str]) -> str:
    return f"{owner} {installed[owner]}" if owner in installed else owner


def _advice(unmet: list[Need], machine: Machine) -> str:
    """Return the command: what depends on torch follows it, what torch or truestep ask for is put back."""
    words: dict[str, None] = {}
    for need in unmet:
        if need.name == "torch" and need.owner != "truestep":
            words.setdefault(f"torch=={machine.torch_release}")
            words.setdefault(need.owner)
        else:
            words.setdefault(f"{need.name}{need.wanted}".replace(" ", ""))
    return f"Install matching versions in one command: pip install -U {' '.join(map(repr, words))}."
