"""`truestep doctor`: what is installed, whether it fits together, and how to fix it.

Owns the options and what is printed. The facts and the rules about them are in `truestep.rules`.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from truestep.cli._answer import show_finding
from truestep.cli._help import Command
from truestep.cli._page import AsFormat, Format, Page

if TYPE_CHECKING:
    from truestep.check import Evaluation
    from truestep.rules.env._machine import Machine

_FAMILY = "ENV"
_FOUND, _OWN_FAULT = 1, 3
_GIB = 2**30
_WIDTH = 14


def doctor(*, format_: AsFormat = Format.text) -> None:
    """Check whether torch, drivers and packages fit together.

    Shows torch, the driver, packages, cores, memory and limits, and how to fix what does not fit. It changes
    nothing and sends nothing. It takes as long as importing torch.

    Exit codes:
      0  everything fits, or only remarks
      1  something does not fit
      2  bad usage
      3  a bug in truestep: please report it

    Examples:
      truestep doctor
      truestep doctor --format json
    """
    from rich.console import Console

    from truestep.doctor.survey import probe

    console = Console(stderr=True, quiet=format_ is Format.json)
    with console.status("importing torch ..."):  # shown on a terminal alone
        machine = probe()
    raise typer.Exit(_answer(machine, _evaluate(machine), format_=format_))


def _evaluate(machine: "Machine") -> "Evaluation":
    from truestep.check import evaluate_rules, read_settings
    from truestep.check.settings import is_named
    from truestep.rules import Evidence, find_rules

    # What is selected is meant for scripts. Rules of the folder's own are code, and the folder may be a
    # stranger's: nothing of it is run here.
    ignored = read_settings(Path.cwd()).ignore
    rules = [rule for rule in find_rules(()) if rule.meta.code.startswith(_FAMILY)]
    return evaluate_rules([rule for rule in rules if not is_named(rule, ignored)], Evidence(machine=machine))


def _answer(machine: "Machine", evaluation: "Evaluation", *, format_: Format) -> int:
    """Print the facts and what is wrong with them; return the exit code."""
    num = sum(reported.severity != "info" for reported in evaluation.findings)
    if format_ is Format.json:
        findings = [reported.as_fields() for reported in evaluation.findings]
        answer = {"findings": findings, "failed_rules": evaluation.failed, "machine": asdict(machine)}
        print(json.dumps(answer, indent=2))
    else:
        _show(machine, evaluation, num=num)
    return _FOUND if num else _OWN_FAULT if evaluation.failed else 0


def _show(machine: "Machine", evaluation: "Evaluation", *, num: int) -> None:
    from truestep.rules import Evidence

    page = Page()
    for name, words in _facts(machine):
        page.print((f"{name:<{_WIDTH}}", "dim"), words)
    for reported in evaluation.findings:
        show_finding(reported, Evidence(machine=machine), page=page)
    for text in evaluation.failed:
        page.print(("a rule failed: ", "bold red"), text)
    page.print("")
    if num:
        page.print((f"{num} problem{'s' if num != 1 else ''} to fix", "bold"))
    elif evaluation.failed:
        page.print(("nothing found, but a rule failed: please report it", "bold"))
    else:
        page.print(("fine: everything fits together", "bold green"))


def _facts(machine: "Machine") -> list[tuple[str, str]]:
    return [
        ("torch", machine.torch or "not installed, or broken"),
        *_cuda_facts(machine),
        ("devices", _devices(machine)),
        ("cores", _cores(machine)),
        ("memory", _memory(machine)),
        ("Python", f"{machine.python} on {machine.platform}, {machine.processor}"),
        ("packages", _packages(machine)),
    ]


def _cuda_facts(machine: "Machine") -> list[tuple[str, str]]:
    """Return the three numbers that are all called the CUDA version, each with what it means."""
    build, driver, toolkit = (
        item or "none" for item in (machine.build_cuda, machine.driver_cuda, machine.toolkit)
    )
    cudnn = f", with cuDNN {_cudnn(machine.cudnn)}" if machine.cudnn else ""
    with_driver = machine.driver or "no driver"
    return [
        ("ROCm, build", machine.build_hip)
        if machine.build_hip
        else ("CUDA, build", f"{build:<6} what torch was built with, included in the package{cudnn}"),
        ("CUDA, driver", f"{driver:<6} the highest that the driver runs (nvidia-smi): {with_driver}"),
        ("CUDA, toolkit", f"{toolkit:<6} the compiler's (nvcc): only for building extensions"),
    ]


def _cudnn(number: int) -> str:
    """Write 91002 as 9.10.2, and 8907 as 8.9.7."""
    unit = 10_000 if number >= 90_000 else 1_000
    return f"{number // unit}.{number % unit // 100}.{number % 100}"


def _devices(machine: "Machine") -> str:
    if machine.devices:
        return _counted(
            f"{device.name} (compute {device.capability})" if device.capability else device.name
            for device in machine.devices
        )
    hidden = f"; the driver sees {_counted(machine.gpus)}" if machine.gpus else ""
    return f"CPU only{hidden}"


def _counted(names: Iterable[str]) -> str:
    numbers = Counter(names)
    return ", ".join(f"{number} x {name}" if number > 1 else name for name, number in numbers.items())


def _cores(machine: "Machine") -> str:
    quota = f", a quota of {machine.cpu_quota:g}" if machine.cpu_quota is not None else ""
    plural = "s" if machine.threads != 1 else ""
    threads = f"; torch uses {machine.threads} thread{plural}" if machine.threads else ""
    return f"{machine.num_usable_cores} of {machine.num_cores}{quota}{threads}"


def _memory(machine: "Machine") -> str:
    def size(value: int | None) -> str:
        return "unknown" if value is None else f"{value / _GIB:.1f} GiB"

    limit = machine.memory_limit_bytes
    granted = f", of which {size(limit)} are available to this process" if limit is not None else ""
    return f"{size(machine.memory_bytes)}{granted}; shared {size(machine.shm_bytes)}"


def _packages(machine: "Machine") -> str:
    shown = {name: version for name, version in machine.packages.items() if not name.startswith("nvidia-c")}
    return (
        ", ".join(f"{name} {version}" for name, version in shown.items())
        or "none of the packages that are checked"
    )


def add_to(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor", cls=Command)(doctor)
