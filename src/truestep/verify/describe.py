"""A verdict as plain text: for errors, logs and notebooks.

Owns the words. Colours and lines of a terminal are left to the command.
"""

from pathlib import Path

from truestep.base.cells import code_of, is_notebook, line_name
from truestep.errors import printable
from truestep.verify.verdict import Difference, Verdict

_WRITTEN = {"aten.lift_fresh": "torch.tensor", "aten.set_": "torch.load"}


def describe(verdict: Verdict) -> str:
    """Return the answer in a few lines: same, different with the first difference, or inconclusive."""
    if verdict.same is None:
        text = f"inconclusive: {verdict.reason}"
    elif verdict.same:
        text = f"same {same_text(verdict)}"
    else:
        assert verdict.first_difference is not None
        text = "\n".join(_lines(verdict.first_difference))
    return printable(text, keep="\n\t")


def _lines(found: Difference) -> list[str]:
    lines = [f"different: {when_text(found)}, {found.what}"]
    if found.file is not None:
        line = found.line or 0
        lines += [f"  {line_name(found.file, line)}", f"    {source_line(found.file, line)}"]
    lines += [f"  {name:<7}{words}" for name, words in rows_of(found).items() if words]
    return lines + repair_lines(found)


def repair_lines(found: Difference) -> list[str]:
    """Return the lines of code that repair it, under a heading."""
    return ["  repair", *(f"    {line}" for line in found.repair)] if found.repair else []


def resume_lines(verdict: Verdict) -> list[str]:
    """Return how long a resume takes, and whether a kill during a save is survived."""
    told = verdict.resume
    if told is None or told["seconds"] is None:
        return []
    first = f"{told['first_seconds'] or 0.0:.1f} s after the first start"
    lines = [f"resume: the first new step {told['seconds']:.1f} s after the restart, {first}"]
    torn = told["torn_save"]
    if torn is not None:
        place = line_name(torn["file"], torn["line"])
        lines += [
            f"torn save: killed while it writes {torn['path']} ({place}), the script {torn['how']}",
            "  fix    save to a temporary file, then os.replace(temporary, path): a kill leaves the old file",
        ]
    return lines


def rows_of(found: Difference) -> dict[str, str]:
    """Return what is known of a difference, by name."""
    return {
        "cause": found.cause,
        "proof" if found.is_proved else "signs": "; ".join(found.evidence),
        "first": operation_text(found),
        "fix": found.fix,
    }


def when_text(found: Difference) -> str:
    """Return when two runs differ first."""
    return f"at step {found.step}" if found.step else "before the first step"


def same_text(verdict: Verdict) -> str:
    """Return in which steps runs are the same, and what of them is; which files differ nevertheless."""
    steps = f"all {verdict.num_steps} steps"
    if not verdict.is_whole:
        of = f" of about {verdict.expected_steps}" if verdict.expected_steps is not None else ""
        steps = f"the first {verdict.num_steps}{of} steps"
    parts = [f"in {steps}: {_compared(verdict)} are bit-for-bit identical"]
    parts += [verdict.files.words] if verdict.files is not None and verdict.files.words else []
    parts += ["--steps 0 compares all"] if not verdict.is_whole else []
    return "; ".join(parts)


def _compared(verdict: Verdict) -> str:
    """Return what all runs had in common: each of several processes has its own batches and losses."""
    if any(run.kind == "processes" for run in verdict.runs):
        return "gradients, weights and optimizer state"
    files, kept = verdict.files, "losses, gradients, weights, optimizer state, buffers"
    if files is None or files.unlike or not files.num_compared:
        return f"{kept} and other tensors kept"
    num = files.num_compared
    return f"{kept}, other tensors kept and {'the file' if num == 1 else f'all {num} files'} written"


def operation_text(found: Difference) -> str:
    """Return the first operation that differs; empty if it is not known."""
    if found.operation is None:
        return f"module {found.module}" if found.module and found.name == "miscompiled" else ""
    where = f" in module {found.module}" if found.module else ""
    name = _plain(found.operation)
    return f"{name}{where}{f': {found.distance}' if found.distance else ''}"


def _plain(operation: str) -> str:
    """Return an operation's name without its overload, and with what people write for it."""
    name = ".".join(operation.split(".")[:2])
    return f"{_WRITTEN[name]} ({name})" if name in _WRITTEN else name


def source_line(file: str, line: int) -> str:
    """Return a line of a file; empty if it cannot be read."""
    try:
        text = code_of(file) if is_notebook(file) else Path(file).read_text(encoding="utf-8")
        lines = text.split("\n")  # as Python counts, not at form feeds
    except (OSError, ValueError):
        return ""
    return lines[line - 1].strip() if 0 < line <= len(lines) else ""
