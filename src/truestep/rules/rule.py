"""What a rule is: a file with its documentation, its metadata, and a function from evidence to findings.

Owns the form of rules and of what they find, and where rules are found. What evidence is, is in `evidence`.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module, util
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from truestep.errors import UsageError
from truestep.watch import Facts, Moment, Operation
from truestep.watch.evidence.kinds import Place

if TYPE_CHECKING:
    from truestep.rules.evidence import Evidence

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
SECTIONS = ("What it finds", "Why it matters", "How to fix")
"""Those of a rule's documentation; the last is `Meta.fix` if it is not there."""
ENTRY_POINTS = "truestep.rules"
"""The group under which other packages offer modules with rules."""
_CODE = re.compile(r"[A-Z]+\d\d")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A mistake, where it is, and the evidence for it."""

    message: str
    """What is wrong, in one sentence, without the place."""
    file: str | None = None
    line: int | None = None
    evidence: str = ""
    """What was measured: numbers, names, steps."""
    cost: str | None = None
    """What it costs, measured: a share of the time, memory, a wrong factor."""
    fix: str | None = None
    """What to do, if this finding needs more specific advice than the rule's."""
    step: int | None = None
    """The step, counted from 1, in which it first happened; 0 is before the first."""
    count: int = 1
    """How often it happened."""
    details: dict[str, Any] = field(default_factory=dict, compare=False)
    """What else the rule needs to fix it."""
    severity: Severity | None = None
    """The severity, if it differs from the rule's."""

    @staticmethod
    def at(place: Moment[Any] | Operation | Place, message: str, **more: Any) -> "Finding":
        """Return a finding at the line of a moment or an operation, or at a line alone."""
        step = None if isinstance(place, Place) else place.step + 1
        facts = {"file": place.file or None, "line": place.line or None, "step": step, **more}
        return Finding(message=message, **facts)


Check = Callable[["Evidence"], Iterable[Finding]]


@dataclass(frozen=True, kw_only=True)
class Meta:
    """A rule's metadata, stored as `RULE` in its file."""

    code: str
    severity: Severity
    fix: str
    """What to do, in one sentence."""
    needs: tuple[type[Facts], ...] = ()
    """Kinds of moments that the rule needs; without them it does not apply."""
    caused_by: tuple[str, ...] = ()
    """Codes of rules whose findings explain this one's. It is shown under theirs."""
    is_observed: Callable[["Evidence"], bool] | None = None
    """What must have happened besides the moments that the rule needs."""
    is_lasting: bool = False
    """Whether later evidence cannot take a finding back. Such findings are reported while the script runs."""
    is_quiet: bool = False
    """Whether its remarks are shown with -v only: on public scripts fewer than nine in ten were true."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule as it was found in a file."""

    name: str
    meta: Meta
    check: Check
    document: str
    is_observed: Callable[["Evidence"], bool] | None = None
    """`Meta.is_observed`, or the function of that name in the file."""
    make_edits: Callable[[Any, Finding], list[Any]] | None = None
    """How to fix it: `edits.Edit`s of the file that a finding is in."""

    @property
    def title(self) -> str:
        """The first line of its documentation."""
        return self.document.splitlines()[0]


def find_rules(folders: Iterable[Path] = ()) -> list[Rule]:
    """Return all rules, by code: our own, those of other packages, and those in folders of the user's."""
    rules = [*_own_rules(), *_offered_rules()]
    for folder in folders:
        rules += _rules_in(folder)
    seen: dict[str, Rule] = {}
    for rule in rules:
        for key in (rule.meta.code, rule.name):
            if key in seen:
                raise UsageError(
                    f"two rules are called {key}: {seen[key].name} and {rule.name}. Rename one of them."
                )
            seen[key] = rule
    return sorted(rules, key=lambda rule: rule.meta.code)


def _own_rules() -> Iterator[Rule]:
    home = Path(__file__).parent
    for path in sorted(set(home.glob("*/[a-z]*.py")) - set(home.glob("kit/*.py"))):
        module = import_module(f"truestep.rules.{path.parent.name}.{path.stem}")
        yield from [item for item in vars(module).values() if isinstance(item, Rule)] or [read_rule(module)]


def _offered_rules() -> Iterator[Rule]:
    for point in entry_points(group=ENTRY_POINTS):
        yield read_rule(point.load())


def _rules_in(folder: Path) -> Iterator[Rule]:
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder. Pass a folder with a file for each rule.")
    for path in sorted(folder.glob("[a-z]*.py")):
        spec = util.spec_from_file_location(f"truestep_rule_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield read_rule(module)


def read_rule(module: ModuleType) -> Rule:
    """Return the rule in a module; raise an error that names what is missing."""
    file = module.__file__ or module.__name__
    missing = [name for name in ("RULE", "check") if not hasattr(module, name)]
    if missing or not module.__doc__:
        raise UsageError(
            f"{file} is not a rule: it lacks {', '.join(missing) or 'its documentation'}. A rule has a "
            f"docstring with the sections {', '.join(SECTIONS)}, RULE = Meta(...) and check(evidence)."
        )
    meta: Meta = module.RULE
    if not _CODE.fullmatch(meta.code) or meta.severity not in SEVERITIES:
        raise UsageError(
            f"{file}: code must be like LOOP01 and severity one of {', '.join(SEVERITIES)}, "
            f"got {meta.code!r} and {meta.severity!r}."
        )
    return Rule(
        name=Path(file).stem.replace("_", "-"),
        meta=meta,
        check=module.check,
        document=documented(module.__doc__.strip(), meta.fix),
        is_observed=meta.is_observed or getattr(module, "is_observed", None),
        make_edits=getattr(module, "make_edits", None),
    )


def documented(document: str, fix: str) -> str:
    """Return a rule's documentation with all its sections."""
    return document if f"## {SECTIONS[-1]}" in document else f"{document}\n\n## {SECTIONS[-1]}\n{fix}"
