"""Stock scripts of other frameworks, verified as they are: the verdict is what their own weights say.

All of them, with what is true of each, are in benchmarks/verify_frameworks.py; here are the quickest.
"""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "verify_frameworks.py"
QUICK = ("--runs", "1", "--kill")
"""That each repeats without a kill is left to the benchmark."""


def load_benchmark() -> ModuleType:
    """Load it by its path, so that no folder of benchmarks stays on the import path."""
    spec = importlib.util.spec_from_file_location("verify_frameworks", BENCHMARK)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


frameworks = load_benchmark()
CASES = {case.name: case for case in frameworks.CASES}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["torchdata-after-iter", "accelerate", "lightning-stateful", "trainer"])
def test_the_verdict_on_a_stock_script_is_true(name: str) -> None:
    case = CASES[name]
    said = frameworks.verify(replace(case, options=QUICK))
    assert said["same"] is case.same, said
    assert [run["kind"] for run in said["runs"]] == ["first", "killed"]
    if not case.same:
        found = said["first_difference"]
        assert found["step"] == 17, "the first step after the resume"
        assert found["file"] == str(case.path.resolve())


def test_every_script_of_the_benchmark_is_there_and_knows_nothing_of_us() -> None:
    for case in CASES.values():
        assert case.path.is_file()
    for path in (BENCHMARK.parent / "frameworks").glob("*.py"):
        assert "truestep" not in path.read_text()
