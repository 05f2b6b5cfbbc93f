"""The rules of the house that no linter knows, and proof that the layers are really held."""

import ast
import graphlib
import os
import subprocess
import tomllib
from collections.abc import Container, Iterator
from pathlib import Path

import pytest

from tests import preloaded

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src" / "truestep").rglob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
OPTIONAL = [
    "torchmetrics",
    "tensorboard",
    "pyarrow",
    "fsspec",
    "mcp",
]
FRAMEWORKS = ["accelerate", "ignite", "lightning", "pytorch_lightning", "transformers"]
"""Users have them already, so they are no extras."""


def imported_in(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def reads_environment(path: Path) -> bool:
    return any(
        isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv"}
        for node in ast.walk(ast.parse(path.read_text()))
    )


@pytest.mark.parametrize("dependency", OPTIONAL + FRAMEWORKS)
def test_an_optional_dependency_is_imported_in_at_most_one_module(dependency: str) -> None:
    importing = [
        str(path.relative_to(ROOT))
        for path in SOURCES
        if any(name.split(".")[0] == dependency for name in imported_in(path))
    ]
    assert len(importing) <= 1, importing


def test_environment_variables_are_read_in_at_most_one_module() -> None:
    reading = [str(path.relative_to(ROOT)) for path in SOURCES if reads_environment(path)]
    assert len(reading) <= 1, reading


def test_optional_dependencies_are_those_of_the_extras() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    names = (
        "metrics",
        "tensorboard",
        "parquet",
        "shards",
        "mcp",
    )
    declared = [extras[name][0].split(">")[0] for name in names]
    assert declared == OPTIONAL


def test_changelog_has_a_place_for_the_next_change() -> None:
    assert "\n## Unreleased\n" in (ROOT / "CHANGELOG.md").read_text()


def lint_copy(root: Path, importing: str, imported: str) -> subprocess.CompletedProcess[str]:
    """Lint an empty package of our layers in which one module imports another."""
    for contract in PROJECT["tool"]["importlinter"]["contracts"]:
        layers = [name.strip(" ()") for layer in contract["layers"] for name in layer.split("|")]
        package = root.joinpath(*contract["containers"][0].split("."))
        package.mkdir(exist_ok=True)
        for name in ("__init__", *layers):
            (package / f"{name}.py").touch()
    for room in ("base", "run"):  # a package now, not a module
        (root / "truestep" / f"{room}.py").unlink()
    place = root / "truestep" / importing.replace(".", "/")
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    file.write_text(f"import truestep.{imported}\n")
    command = ["lint-imports", "--no-cache", "--no-logo", "--config", str(ROOT / "pyproject.toml")]
    return subprocess.run(
        [str(Path(preloaded.REAL).parent / command[0]), *command[1:]],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("importing", "imported"), [("cli", "run.train"), ("run.train", "errors"), ("run.data", "base.rng")]
)
def test_an_import_down_the_layers_is_allowed(tmp_path: Path, importing: str, imported: str) -> None:
    done = lint_copy(tmp_path, importing, imported)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("importing", "imported"),
    [
        ("run.data", "run.train"),
        ("base.device", "base.bits"),
        ("errors", "cli"),
        ("run", "watch"),
        ("base", "run"),
        ("tune", "verify"),
    ],
)
def test_an_import_up_or_aside_is_stopped(tmp_path: Path, importing: str, imported: str) -> None:
    done = lint_copy(tmp_path, importing, imported)
    assert done.returncode == 1
    assert f"truestep.{importing} is not allowed to import truestep.{imported}" in done.stdout


def test_a_module_without_a_layer_is_stopped(tmp_path: Path) -> None:
    done = lint_copy(tmp_path, "stray", "errors")
    assert done.returncode == 1
    assert "stray" in done.stdout


def test_no_module_imports_itself_through_others() -> None:
    names = {_module_name(path): path for path in SOURCES}
    uses = {name: {*_modules_imported(path, names)} - {name} for name, path in names.items()}
    graphlib.TopologicalSorter(uses).prepare()  # raises CycleError with the circle


def _module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")


def _modules_imported(path: Path, known: Container[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module in known:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name if name in known else str(node.module) for name in whole)
