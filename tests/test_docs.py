"""The documentation: pages are built, links lead somewhere, every public name has its place."""

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer

import truestep
import truestep.model
from scripts.built_pages import build_pages
from truestep.cli import build_app
from truestep.rules import find_rules

ROOT = Path(__file__).parent.parent
BUILT = build_pages()
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
CODE = re.compile(r"^ *(```+|~~~+).*?^ *\1\s*$|`[^`\n]*`", flags=re.MULTILINE | re.DOTALL)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES = {
    "accelerate": "accelerate",
    "ignite": "pytorch-ignite",
    "lightning": "lightning",
    "sklearn": "scikit-learn",
    "torchmetrics": "torchmetrics",
    "transformers": "transformers",
}
"""What examples may need besides truestep, by what is imported."""
LINK = re.compile(r"\]\((?P<path>[^)\s#]*)(?:#(?P<anchor>[^)\s]*))?\)")


def test_pages_state_the_figures_that_were_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    figures = importlib.import_module("figures")
    stated = {path: path.read_text() for path in PAGES}
    assert [path.name for path, text in stated.items() if figures.filled(text) != text] == []
    marked = {found["name"] for text in stated.values() for found in figures.MARKED.finditer(text)}
    assert marked == json.loads(figures.FILE.read_text()).keys(), "each figure of the file is stated"
    old = "<!-- figure: corpus.found -->7<!-- /figure -->"
    assert figures.filled(old) != old


def test_the_version_that_pages_install_is_this_one() -> None:
    pinned = {
        version for page in PAGES for version in re.findall(r"OWNER/truestep@v([\d.]+)", page.read_text())
    }
    assert pinned == {truestep.__version__}


def test_the_list_of_rules_is_fresh() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "rules_page.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_rule_command_and_public_name_has_a_built_page_with_links_that_lead_somewhere() -> None:
    pages = BUILT
    codes = {
        code for _, text in pages.values() for code in re.findall(r"^##? ([A-Z]+\d\d) ", text, re.MULTILINE)
    }
    assert {rule.meta.code for rule in find_rules()} <= codes
    assert {"commands/check.md", "commands.md", "api.md", "practices.md"} <= pages.keys()
    assert "## Example\n\n```py\nimport torch" in pages["rules/LOOP01.md"][1]
    sources = [source for source, _ in pages.values()]
    assert len(sources) == len(set(sources))
    assert all((ROOT / source).is_file() for source in sources)
    broken = [
        f"{name}: {found['path']}"
        for name, (_, text) in pages.items()
        for found in LINK.finditer(CODE.sub("", text))
        if found["path"] and "://" not in found["path"]
        for path in [os.path.normpath(Path("docs", name).parent / found["path"])]
        if path.removeprefix("docs/") not in pages and not (ROOT / path).is_file()
    ]
    assert broken == []


def broken_links(page: Path) -> list[str]:
    """Return links to files that are not there; what is on other hosts is not asked for."""
    text = CODE.sub("", page.read_text())
    links = [found["path"] for found in LINK.finditer(text) if found["path"]]
    return [path for path in links if "://" not in path and not (page.parent / path).exists()]


def test_links_between_files_lead_somewhere() -> None:
    broken = {str(page.relative_to(ROOT)): broken_links(page) for page in PAGES}
    assert {page: links for page, links in broken.items() if links} == {}


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "[a](page.md#x) [b](gone.md) `[c](code.md)` [d](https://example.org)\n```\n[e](f.md)\n```\n"
    )
    assert broken_links(page) == ["gone.md"]


def test_every_public_name_is_on_one_page_of_the_api() -> None:
    text = "\n".join(text for name, (_, text) in BUILT.items() if name.startswith("api/"))
    shown = re.findall(r"^\| `ts\.([\w.]+)` \|", text, flags=re.MULTILINE)
    filled = re.findall(r"^::: (\S+)$", text, flags=re.MULTILINE)
    # decay_groups is shown as that of truestep.model.
    public = {*truestep.__all__} - {"__version__", "decay_groups", "errors", "model"}
    public |= {f"model.{name}" for name in truestep.model.__all__}
    assert len(shown) == len(set(shown)) and len(filled) == len(set(filled))
    assert public <= set(shown), public - set(shown)


def test_examples_in_docstrings_become_code_on_the_site() -> None:
    pytest.importorskip("griffe", reason="needs the extra docs")
    from scripts.docstring_examples import fenced

    text = "Words.\n\n>>> f(1)\n2\n\nMore.\n\n>>> g()"
    assert fenced(text) == "Words.\n\n\n```pycon\n>>> f(1)\n2\n```\n\nMore.\n\n\n```pycon\n>>> g()\n```"


def test_links_that_leave_the_documentation_lead_to_pages_of_the_site() -> None:
    pytest.importorskip("mkdocs", reason="needs the extra docs")
    from scripts.site_pages import relinked

    assert (
        relinked("examples.md", "[a](../examples/digits.py#x) [b](check.md)")
        == "[a](source/examples/digits.py.md#x) [b](check.md)"
    )
    assert (
        relinked("rules/LOOP01.md", "[a](../../CONTRIBUTING.md) [b](../check.md)")
        == "[a](../project/CONTRIBUTING.md) [b](../check.md)"
    )
    assert (
        relinked("check.md", "[a](../src/truestep/rules/loop/stale_gradients.py)") == "[a](rules/LOOP01.md)"
    )
    assert relinked("project/CHANGELOG.md", "[a](docs/tune.md)") == "[a](../tune.md)"
    assert relinked("tensors.md", "x[0](gone)") == "x[0](gone)"


def test_the_first_page_leads_to_all_others() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    written = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs" / "how-to").glob("*.md")]
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in written} - {"index.md"}
    assert pages - {found["path"] for found in LINK.finditer(index)} == set()


def test_the_finding_in_the_readme_is_printed_by_the_script_of_the_quickstart() -> None:
    shown = (ROOT / "README.md").read_text().split("```\n")[1].removeprefix("$ truestep check train.py\n")
    assert "error  LOOP01" in shown
    # The quickstart runs the script and compares what is printed.
    assert shown in (ROOT / "docs" / "quickstart-script.md").read_text()


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_the_picture_of_the_layers_is_that_of_the_contract(page: str) -> None:
    contract = PROJECT["tool"]["importlinter"]["contracts"][0]
    layers = [layer for layer in contract["layers"] if layer != "__main__"]
    (block,) = re.findall(r"```\n(cli  .*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert [re.split(r"  +", line)[0] for line in block.splitlines()] == layers


def test_the_table_of_examples_names_what_each_of_them_needs() -> None:
    table = (ROOT / "docs" / "examples.md").read_text()
    for name, needs in re.findall(r"^\| \[(\w+\.py)\]\(\S+\) \|.*\| (.*) \|$", table, flags=re.MULTILINE):
        source = (ROOT / "examples" / name).read_text()
        imported = set(re.findall(r"^(?:from|import) (\w+)", source, flags=re.MULTILINE))
        wanted = {PACKAGES[module] for module in imported & PACKAGES.keys()}
        assert not {package for package in wanted if package not in needs}, name


SHOWN = re.compile(
    r"^ *(?P<prompt>\$ |!|- run: )?(truestep (?:(?!  |#|>|\|).)+)|`(truestep [a-z]+ [^`]*)`",
    flags=re.MULTILINE,
)


def strange_options(words: list[str], commands: dict[str, Any]) -> list[str]:
    """Return what a command line asks for that the command does not have: itself, or options of truestep."""
    _, name, *rest = words
    if name.startswith("-"):
        return []
    if name not in commands:
        return [name]
    known = {option: param for param in commands[name].params for option in param.opts if option[0] == "-"}
    strange, rest = [], [*rest]
    while rest and rest[0].startswith("-"):
        option, has_value, _ = rest.pop(0).partition("=")
        if option not in known and option not in ("--help", "-h"):
            strange.append(option)
        elif option in known and not known[option].is_flag and not has_value and rest:
            rest.pop(0)
    return strange


def test_every_command_on_every_page_exists_with_its_options() -> None:
    commands = typer.main.get_command(build_app()).commands  # type: ignore[attr-defined]
    strange, num = [], 0
    for page in [*PAGES, *sorted((ROOT / "deploy").glob("*.md"))]:
        for found in SHOWN.finditer(page.read_text()):
            line = (found[2] or found[3]).strip()
            is_sentence = not found["prompt"] and not found[3] and line.split()[1] not in commands
            if page.name == "CHANGELOG.md" or "..." in line or "|" in line or is_sentence:
                continue
            num += 1
            words = shlex.split(line.replace("'", "").replace('"', ""), comments=True)
            strange += [f"{page.name}: {line}: {what}" for what in strange_options(words, commands)]
    assert num > 150
    assert not strange, "\n".join(strange)


def test_a_command_that_does_not_exist_is_found() -> None:
    commands = typer.main.get_command(build_app()).commands  # type: ignore[attr-defined]
    told = [
        strange_options(shlex.split(line), commands)
        for line in (
            "truestep chekc train.py",
            "truestep check --step 3 train.py",
            "truestep verify --resume-with='--last' --kill train.py --lr 1",
            "truestep check --steps 3 train.py --anything",
        )
    ]
    assert told == [["chekc"], ["--step"], [], []]
