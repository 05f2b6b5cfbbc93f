"""What a release is made of agrees with itself: versions, addresses, dependencies, workflows."""

import importlib.util
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import truestep
from tests.test_house import PROJECT

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
CONDA_NAMES = {"torch": "pytorch"}


def load_script() -> Any:
    spec = importlib.util.spec_from_file_location("release", ROOT / "scripts" / "release.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout that is ready to be released as 9.8.7."""
    script = load_script()
    names = {*script.ADDRESSED, "CHANGELOG.md", "src/truestep/__init__.py"}
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
        text = (tmp_path / name).read_text().replace(script.PLACEHOLDER, "someone/truestep")
        text = text.replace(truestep.__version__, "9.8.7").replace(
            "\n## Unreleased\n", "\n## Unreleased\n\n## 9.8.7\n"
        )
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_checkout_that_agrees_is_ready(checkout: Path) -> None:
    assert list(load_script().find_faults(checkout, "v9.8.7")) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "fault"),
    [
        (
            "src/truestep/__init__.py",
            "9.8.7",
            "9.8.6",
            "src/truestep/__init__.py lacks '__version__ = \"9.8.7\"'",
        ),
        ("CITATION.cff", "9.8.7", "9.8.6", "CITATION.cff lacks 'version: 9.8.7'"),
        ("CHANGELOG.md", "## 9.8.7", "## Next", "CHANGELOG.md lacks '## 9.8.7'"),
        ("pyproject.toml", "someone/", "OWNER/", "pyproject.toml has OWNER/truestep"),
    ],
)
def test_what_is_left_to_do_is_named(checkout: Path, file: str, old: str, new: str, fault: str) -> None:
    path = checkout / file
    path.write_text(path.read_text().replace(old, new))
    (found,) = load_script().find_faults(checkout, "v9.8.7")
    assert found.startswith(fault)


def test_a_tag_of_another_form_is_refused(checkout: Path) -> None:
    assert list(load_script().find_faults(checkout, "release-1")) == [
        "the tag must be like v0.2.0, got release-1"
    ]


def test_citation_and_recipe_have_the_version_and_the_dependencies_of_the_package() -> None:
    recipe = yaml.safe_load((ROOT / "deploy/conda/recipe.yaml").read_text())
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(citation["version"]) == recipe["context"]["version"] == truestep.__version__
    project = PROJECT["project"]
    needed = [Requirement(text) for text in project["dependencies"]]
    run = [f"{CONDA_NAMES.get(item.name, item.name)} {item.specifier}" for item in needed]
    assert recipe["requirements"]["run"] == [f"python {project['requires-python']}", *run]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_has_few_rights_and_runs_what_exists(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    commands = "\n".join(step.get("run", "") for step in steps)
    assert "${{" not in commands, "text from outside must not stand in a command"
    for name in re.findall(r"(?:scripts|\.ci)/[\w.]+", commands):
        assert (ROOT / name).exists(), name
    assert all("@" in step["uses"] for step in steps if "uses" in step)


def test_only_the_job_that_publishes_can_publish() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    assert (
        jobs["publish"]["permissions"] == {"id-token": "write"} and jobs["publish"]["environment"] == "pypi"
    )
    assert jobs["publish"]["needs"] == "install" and jobs["install"]["needs"] == "build"
