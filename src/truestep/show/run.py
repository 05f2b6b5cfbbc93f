"""Running a script to see its values: once, in place, as `python SCRIPT` would; or two, each in a copy.

Owns the plan and the wait. What is recorded is in `in_script.recording`.
"""

import shlex
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from truestep import watch
from truestep.errors import UsageError
from truestep.show.beside import put_beside
from truestep.show.listing import Listing, read_listing
from truestep.watch.launch import following
from truestep.watch.launch.commit import Commit
from truestep.watch.launch.following import OnStep, ignore_steps
from truestep.watch.launch.scratch import Scratch

_PATIENCE_S = 30.0


@dataclass(frozen=True, kw_only=True)
class ShowOptions:
    """How the script is run."""

    steps: int | None = None
    """Optimizer steps after which it is stopped."""
    also: tuple[str, ...] = ()
    """Packages whose code is shown too."""
    stdout: int | IO[Any] | None = None
    stderr: int | IO[Any] | None = None


def show_script(
    script: watch.Script, *, options: ShowOptions = ShowOptions(), on_step: OnStep = ignore_steps
) -> Listing:
    """Run a script and return its lines with their values; Ctrl-C ends it and keeps what it showed."""
    with tempfile.TemporaryDirectory(prefix="truestep-show-") as folder:
        return _listed(script, Path(folder), options=options, on_step=on_step)


@dataclass(frozen=True, kw_only=True)
class Other:
    """What a run is compared with: a script, as it is or as it was in a commit, with its arguments."""

    name: str
    script: watch.Script
    commit: Commit | None = None


def find_other(script: watch.Script, *, word: str | None = None, arguments: str | None = None) -> Other:
    """Return what a word names, a file or this script in a commit, with these arguments if there are some."""
    other, commit = script, None
    if word is not None and Path(word).is_file():
        other = replace(script, path=word, is_module=False)
    elif word is not None:
        commit = Commit(word, Path.cwd())
        if not commit.digest:
            raise UsageError(
                f"{word} is neither a file nor a commit. Pass --against HEAD~1 or --against other.py."
            )
    if arguments is not None:
        other = replace(other, arguments=tuple(shlex.split(arguments)))
    return Other(name=word or f"{script.name} {arguments}".strip(), script=other, commit=commit)


def show_both(
    script: watch.Script,
    other: Other,
    *,
    options: ShowOptions = ShowOptions(),
    on_step: OnStep = ignore_steps,
) -> Listing:
    """Run another script, and then this one; return this one with the other beside it.

    Each runs in a copy of the working folder, so that neither finds what the other has written.
    """
    with Scratch(Path.cwd().resolve()) as scratch:
        found = []
        for given, commit in ((other.script, other.commit), (script, None)):
            scratch.renew(commit)
            listing = _listed(given, scratch.new_folder(), options=options, on_step=on_step, scratch=scratch)
            listing.rename(scratch.original)
            found.append(listing)
    theirs, ours = found
    if not theirs.files:
        reason = theirs.error or "; ".join(theirs.troubles) or "torch was not imported"
        raise UsageError(f"no line of {other.name} was followed: {reason}")
    return put_beside(ours, theirs, name=other.name)


def recording(
    also: tuple[str, ...] = (), *, steps: tuple[int, int] | None = None
) -> tuple[str, dict[str, Any]]:
    """Return what records values in a script's process, for `Plan.settings`.

    `steps` are the first and the last step to record, from 0, in place of the first ones and some later.
    """
    return "truestep.show.in_script.recording:record", {"also": list(also), "steps": steps}


def _listed(
    script: watch.Script,
    folder: Path,
    *,
    options: ShowOptions,
    on_step: OnStep,
    scratch: Scratch | None = None,
) -> Listing:
    plan = watch.Plan(steps=options.steps, settings=(recording(options.also),))
    process = watch.start(
        script, plan=plan, folder=folder, scratch=scratch, stdout=options.stdout, stderr=options.stderr
    )
    try:
        following.wait(process, folder, plan=plan, on_step=on_step)
    except KeyboardInterrupt:
        _wait_for_interrupted(process)
    return read_listing(folder)


def _wait_for_interrupted(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(_PATIENCE_S)
    except (KeyboardInterrupt, subprocess.TimeoutExpired):
        process.kill()
        process.wait()
