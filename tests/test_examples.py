"""Every example runs: python blocks of README and docs, and docstrings. Files in examples/: tests/examples.

A block under a line `<!-- not run: reason -->` is not run; it is counted as a skipped test with its reason.
A block fenced as `output` right after a python block holds what that block prints: scripts/page_outputs.py.
A block with a title is written to that file, a block `console` is done by a shell and holds what that prints.
"""

import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.pages import Printed, as_script, differences, python_blocks, run_page

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MODULES = [
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
    for path in sorted((ROOT / "src").rglob("*.py"))
    if ">>>" in path.read_text()
]


def page_id(page: Path) -> str:
    return str(page.relative_to(ROOT))


RUN = [page for page in PAGES if any(block.not_run is None for block in python_blocks(page.read_text()))]
NOT_RUN_BLOCKS = [
    pytest.param(block.not_run, id=f"{page_id(page)}:{block.first_line}")
    for page in PAGES
    for block in python_blocks(page.read_text())
    if block.not_run is not None
]


def run(text: str, name: str = "page") -> Printed:
    printed = run_page(text, name=name)
    assert printed.code == 0, printed.everything
    return printed


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=page_id)
def test_page_runs_and_prints_what_it_says(page: Path) -> None:
    text = page.read_text()
    told = differences(text, run(text, page.stem))
    assert not told, "\n\n".join(told)


@pytest.mark.parametrize("reason", NOT_RUN_BLOCKS)
def test_page_block_is_not_run(reason: str) -> None:
    pytest.skip(reason)


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


def test_a_failing_page_fails_with_its_output_and_its_line() -> None:
    with pytest.raises(AssertionError, match=r"before[\s\S]*line 3, in <module>[\s\S]*from line 3"):
        run("```python\nprint('before')\nraise SystemError('from line 3')\n```\n")


PRINTING = """
```python
for word in "ab":
    print(word)
```

```output
a
b
```

```python
print("no newline", end="")
```
```output
no newline
```

- In a list:

  ```python
  import subprocess, sys
  subprocess.run([sys.executable, "-c", "print('  from a child')"], check=True)
  print("warning", file=sys.stderr)
  ```

  ```output
    from a child
  ```

```python
print("not told")
```

```python
quiet = 1
```
"""


def test_an_output_is_what_its_block_alone_prints_and_a_missing_one_is_no_error() -> None:
    assert differences(PRINTING, run(PRINTING)) == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("a\nb\n", "a\n"), ("a\nb\n", "a\nc\n"), ("a\nb\n", "a\nb\n\n"), ("no newline\n```\n\n", "```\n\n")],
)
def test_a_wrong_output_fails(right: str, wrong: str) -> None:
    page = PRINTING.replace(right, wrong, 1)
    assert page != PRINTING
    (told,) = differences(page, run(page))
    assert "the page says" in told


def test_a_block_that_prints_nothing_cannot_claim_to() -> None:
    page = PRINTING + "```output\nsomething\n```\n"
    assert len(differences(page, run(page))) == 1


def test_an_output_after_no_python_block_is_told() -> None:
    page = (
        PRINTING.replace("```output\na\n", "Prints:\n\n```output\na\n")
        + "```bash\nls\n```\n```output\nb\n```\n"
    )
    told = differences(page, run(page))
    assert len(told) == 2
    assert all("follows no python block" in words for words in told)


def write_outputs(page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "page_outputs.py"), *options, str(page)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_outputs_are_written_in_place(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PRINTING.replace("a\nb\n", "").replace("    from a child", "  wrong\n  lines"))
    assert write_outputs(page).returncode == 0
    assert page.read_text() == PRINTING


def test_outputs_are_added_where_asked_for(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PRINTING)
    assert write_outputs(page, "--add").returncode == 0
    told = '```python\nprint("not told")\n```\n\n```output\nnot told\n```\n'
    assert page.read_text() == PRINTING.replace('```python\nprint("not told")\n```\n', told)


def test_a_page_that_fails_is_left_as_it_is(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\n1 / 0\n```\n```output\n```\n")
    done = write_outputs(page)
    assert done.returncode == 1 and "ZeroDivisionError" in done.stdout
    assert page.read_text() == "```python\n1 / 0\n```\n```output\n```\n"


CONSOLE = """
```python title="hello.py"
import sys
print("hello from a file")
print("and an error", file=sys.stderr)
print("took 1.25 s, digest 0123456789abcdef, again 0123456789abcdef")
```

```console
$ python hello.py
hello from a file
and ...
took 7 s, digest feedfeedfeed, again feedfeedfeed
$ exit 3
$ python -c "print('end')"
end
```
"""


def test_a_page_may_have_the_name_of_a_package_that_it_imports() -> None:
    printed = run("```python\nimport json\nprint(json.dumps([1]))\n```\n", name="json")
    assert printed.blocks == {2: ["[1]"]}


def test_commands_find_the_files_of_the_page_and_print_what_it_says() -> None:
    assert differences(CONSOLE, run(CONSOLE)) == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("hello from a file\nand", "hello\nand"),
        ("and ...\n", ""),
        ("again feedfeedfeed", "again 0badcafe0bad"),
        ("end\n```", "```"),
    ],
)
def test_a_wrong_word_of_a_command_fails(right: str, wrong: str) -> None:
    page = CONSOLE.replace(right, wrong, 1)
    assert page != CONSOLE
    (told,) = differences(page, run(page))
    assert "the page says" in told


def test_what_commands_print_is_written_and_what_was_left_open_stays(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(CONSOLE)
    assert write_outputs(page).returncode == 0
    assert page.read_text() == CONSOLE
    page.write_text(CONSOLE.replace("end\n", "old\n"))
    assert write_outputs(page).returncode == 0
    assert "and an error\ntook 1.25 s, digest 0123456789abcdef" in page.read_text()
