"""Every example runs: python blocks of README and docs, docstrings, and the files in examples/.

A block under a line `<!-- not run: reason -->` is not run; it is counted as a skipped test with its reason.
"""

import doctest
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
MODULES = [
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
    for path in sorted((ROOT / "src").rglob("*.py"))
    if ">>>" in path.read_text()
]

FENCE = re.compile(r"^(?P<indent> *)(?P<mark>```+|~~~+) *(?P<language>\w*)")
NOT_RUN = re.compile(r"^\s*<!-- not run: *(?P<reason>\S.*?) *-->\s*$")


class Block(NamedTuple):
    """One fenced python block: the lines of the page it covers, without indentation of its own."""

    first_line: int
    lines: list[str]
    not_run: str | None


def python_blocks(text: str) -> list[Block]:
    blocks: list[Block] = []
    lines = text.splitlines()
    at = 0
    above = ""
    while at < len(lines):
        fence = FENCE.match(lines[at])
        if fence is None:
            above = lines[at] if lines[at].strip() else above
            at += 1
            continue
        start = at + 1
        at = start
        while at < len(lines) and lines[at].strip() != fence["mark"]:
            at += 1
        if fence["language"] == "python":
            reason = NOT_RUN.match(above)
            body = [line.removeprefix(fence["indent"]) for line in lines[start:at]]
            blocks.append(Block(start + 1, body, reason["reason"] if reason else None))
        above = ""
        at += 1
    return blocks


def as_script(blocks: list[Block]) -> str:
    """Return the blocks as one script in which every line keeps the number it has in the page."""
    script: list[str] = []
    for block in blocks:
        script += [""] * (block.first_line - 1 - len(script))
        script += block.lines
    return "\n".join(script) + "\n"


def run_script(script: Path, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", str(script)],
        cwd=folder,
        env=os.environ | {"CI": "true"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


RUN = [page for page in PAGES if any(block.not_run is None for block in python_blocks(page.read_text()))]
NOT_RUN_BLOCKS = [
    pytest.param(block.not_run, id=f"{page_id(page)}:{block.first_line}")
    for page in PAGES
    for block in python_blocks(page.read_text())
    if block.not_run is not None
]


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=page_id)
def test_page_runs(page: Path, tmp_path: Path) -> None:
    script = tmp_path / f"{page.stem}.py"
    script.write_text(
        as_script([block for block in python_blocks(page.read_text()) if block.not_run is None])
    )
    run_script(script, tmp_path)


@pytest.mark.parametrize("reason", NOT_RUN_BLOCKS)
def test_page_block_is_not_run(reason: str) -> None:
    pytest.skip(reason)


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(example: Path, tmp_path: Path) -> None:
    run_script(example, tmp_path)


@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples_hold(name: str) -> None:
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0


PAGE = """
Text.

```python
x = 1
```

- In a list:

  ```python
  y = x + 1
  ```

<!-- not run: needs a GPU -->

```python
broken(
```

```bash
rm -rf nothing
```

~~~python
assert y == 2
~~~
"""


def test_blocks_share_a_namespace_and_keep_their_lines() -> None:
    blocks = python_blocks(PAGE)
    assert [block.not_run for block in blocks] == [None, None, "needs a GPU", None]
    script = as_script([block for block in blocks if block.not_run is None])
    assert script.splitlines()[PAGE.splitlines().index("x = 1")] == "x = 1"
    assert script.splitlines()[PAGE.splitlines().index("assert y == 2")] == "assert y == 2"
    exec(script, {})


def test_a_reason_is_required_and_reaches_only_the_next_block() -> None:
    page = (
        "<!-- not run: -->\n```python\na\n```\n<!-- not run: slow -->\n```python\nb\n```\n```python\nc\n```\n"
    )
    assert [block.not_run for block in python_blocks(page)] == [None, "slow", None]


def test_a_failing_script_fails_with_its_output(tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text(as_script([Block(7, ["raise SystemError('from line 7')"], None)]))
    with pytest.raises(AssertionError, match=r"line 7, in <module>[\s\S]*from line 7"):
        run_script(script, tmp_path)
