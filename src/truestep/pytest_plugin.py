"""The pytest plugin: markers and a fixture for tests that train.

Owns what pytest sees: markers, the fixture `training`, and how a failure looks. The only module that imports
pytest. Imports nothing of truestep's before a test asks for it: other test runs start as fast as before.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from truestep.check import Result
    from truestep.check.within import Check
    from truestep.verify import Script, Verdict, VerifyOptions

_CORRECT, _REPRODUCIBLE, _RESUMABLE = "trains_correctly", "reproducible", "resumable"
_MARKERS = (
    f"{_CORRECT}(select=(), ignore=()): truestep checks the training in this test; mistakes fail it",
    f"{_REPRODUCIBLE}(runs=2): truestep runs this test in new processes and compares them bit for bit",
    f"{_RESUMABLE}: truestep kills this test in the middle, starts it again, and compares bit for bit",
)
_COMPARED = "--truestep-compared"
"""Given to the runs of a test that are compared: in them markers do nothing."""
_FOLDER = ".truestep-folder"
_TEMPORARY = ".truestep-temporary"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for runs that are compared; not for users."""
    parser.addoption(_COMPARED, action="store_true", help=argparse.SUPPRESS)


def pytest_configure(config: pytest.Config) -> None:
    """Say which markers there are."""
    for line in _MARKERS:
        config.addinivalue_line("markers", line)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Check the training of a marked test, and compare further runs of it."""
    if item.config.getoption(_COMPARED):
        return (yield)
    marker = item.get_closest_marker(_CORRECT)
    if marker is None:
        yield
    else:
        check = _start_check(marker)
        try:
            with check:
                yield
        except BaseException:
            if check.has_mistakes:
                item.add_report_section("call", "truestep", str(check))
            raise
        _fail_if_wrong(check)
    for name in (_REPRODUCIBLE, _RESUMABLE):
        marker = item.get_closest_marker(name)
        if marker is not None:
            _fail_if_different(_compare(item, marker))
    return None


class Training:
    """The fixture `training`: checks and compares scripts, and has a folder that outlives a kill."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        """Where a test saves what it resumes from. `tmp_path` is emptied when a test starts again."""

    def check(self, script: str | Path, *, arguments: Sequence[str] = (), steps: int | None = None) -> Result:
        """Check a script as `truestep check` does, and fail the test if there are mistakes in it."""
        __tracebackhide__ = True
        from truestep.check import CheckOptions, examine, read_settings
        from truestep.check.describe import count_text, describe
        from truestep.errors import CheckFailed

        result = examine(
            _script(script, arguments), read_settings(Path.cwd()), options=CheckOptions(steps=steps)
        )
        if result.has_mistakes or result.inconclusive:
            parts = [describe(reported, result.evidence) for reported in result.findings]
            if result.inconclusive:
                parts.append(f"inconclusive: {result.inconclusive}")
            raise CheckFailed("\n\n".join([f"{count_text(result)} in {script}", *parts]))
        return result

    def verify(
        self,
        script: str | Path,
        *,
        arguments: Sequence[str] = (),
        steps: int | None = 100,
        runs: int = 2,
        kill: bool = False,
    ) -> Verdict:
        """Run a script again as `truestep verify` does, and fail the test unless the runs are the same."""
        __tracebackhide__ = True
        from truestep.errors import CheckFailed
        from truestep.verify import VerifyOptions
        from truestep.verify.describe import describe

        options = VerifyOptions(steps=steps, runs=runs, is_killed=kill)
        verdict = _verify(_script(script, arguments), options)
        if not verdict.same:
            raise CheckFailed(f"{script}: {describe(verdict)}")
        return verdict


@pytest.fixture
def training(request: pytest.FixtureRequest, tmp_path: Path) -> Training:
    """Check and compare training inside of a test, and get a folder to resume from."""
    folder = tmp_path / "training"
    if request.config.getoption(_COMPARED):
        folder = request.config.invocation_params.dir / _FOLDER
    folder.mkdir(exist_ok=True)
    return Training(folder)


def _start_check(marker: pytest.Mark) -> Check:
    from truestep.check.within import checking

    return checking(**_options(marker, ("select", "ignore")))


def _options(marker: pytest.Mark, known: tuple[str, ...]) -> dict[str, Any]:
    """Return what a marker was given; refuse what it does not take."""
    unknown = [*map(repr, marker.args), *(name for name in marker.kwargs if name not in known)]
    if unknown:
        takes = f"It takes {', '.join(f'{name}=' for name in known)}" if known else "It takes nothing"
        pytest.fail(f"@pytest.mark.{marker.name} got {', '.join(unknown)}. {takes}.", pytrace=False)
    return dict(marker.kwargs)


def _fail_if_wrong(check: Check) -> None:
    __tracebackhide__ = True
    if check.has_mistakes or check.inconclusive is not None:
        found = [check.describe(reported) for reported in check.findings if reported.severity != "info"]
        pytest.fail("\n\n".join([f"truestep: {check.summary}", *found]), pytrace=False)


def _compare(item: pytest.Item, marker: pytest.Mark) -> Verdict:
    """Run a test by itself in new processes, in copies of the folder that the configuration is in."""
    from truestep.verify import Script, VerifyOptions

    config = item.config
    if marker.name == _REPRODUCIBLE:
        options = VerifyOptions(steps=None, **{"runs": 2, **_options(marker, ("runs",))})
    else:
        _options(marker, ())
        options = VerifyOptions(steps=None, runs=1, is_killed=True)
    words = [item.nodeid, "-q", "-x", "-m", "", "-k", "", _COMPARED, f"--basetemp={_TEMPORARY}"]
    words += ["-p", "no:cacheprovider", f"--import-mode={config.getoption('importmode')}"]
    if config.pluginmanager.hasplugin("xdist"):
        words += ["-n", "0"]
    if config.pluginmanager.hasplugin("_cov"):
        words += ["--no-cov"]
    with contextlib.chdir(config.rootpath):
        return _verify(Script(path="pytest", arguments=tuple(words), is_module=True), options)


def _fail_if_different(verdict: Verdict) -> None:
    if not verdict.same:
        from truestep.verify.describe import describe

        pytest.fail(f"truestep: {describe(verdict)}", pytrace=False)


def _script(path: str | Path, arguments: Sequence[str]) -> Script:
    from truestep.errors import UsageError
    from truestep.verify import Script

    if not Path(path).is_file():
        raise UsageError(f"{path} is not a file. Pass the path of a script, as seen from {Path.cwd()}.")
    return Script(path=str(path), arguments=tuple(arguments))


def _verify(script: Script, options: VerifyOptions) -> Verdict:
    from truestep.verify import verify

    return verify(script, options)
