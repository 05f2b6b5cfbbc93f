"""Unseeded generators: one finding for all of them, as severe as what the script promises."""

from pathlib import Path

import pytest

from tests.gathering import run_text
from truestep.check import RuleFinding, evaluate_rules
from truestep.rules import find_rules

TRAINING = """
model = torch.nn.Linear(4, 1)
x = torch.ones(32, 4)[order]
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(3):
    optimizer.zero_grad()
    (model(x) - 1).square().mean().backward()
    optimizer.step()
"""


def unseeded(text: str) -> list[RuleFinding]:
    rules = [rule for rule in find_rules() if rule.meta.code == "REPRO01"]
    return evaluate_rules(rules, run_text(text).evidence).findings


def test_a_script_that_seeds_nothing_gets_one_remark_for_all_generators() -> None:
    draws = "import random, numpy, torch\norder = numpy.random.permutation(32)\nrandom.shuffle([1, 2, 3])\n"
    (told,) = unseeded(draws + TRAINING)
    assert told.severity == "info"
    for name in ("torch.manual_seed(", "numpy.random.seed(", "random.seed("):
        assert name in told.fix


def test_a_script_that_seeds_one_generator_and_forgets_two_gets_one_warning() -> None:
    draws = "order = numpy.random.permutation(32)\nrandom.shuffle([1, 2, 3])\n"
    (told,) = unseeded("import random, numpy, torch\ntorch.manual_seed(0)\n" + draws + TRAINING)
    assert (told.severity, told.finding.line) == ("warning", 3)
    assert "example.py:4" in told.finding.evidence and "torch" not in told.fix


def test_a_line_that_never_ran_is_not_named() -> None:
    unused = "def unused():\n    return Net(), numpy.random.RandomState()\n"
    net = "class Net(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(4, 1)\n"
    made = "order = list(range(32))\nkinds = [Net]\n" + TRAINING.replace(
        "torch.nn.Linear(4, 1)", "kinds[0]()"
    )
    (told,) = unseeded("import numpy, torch\n" + unused + net + made)
    assert told.finding.line == 6
    assert "RandomState" not in told.finding.evidence


LIBRARY = """
import random, torch
def build():
    return torch.ones(random.randint(8, 9), 4)
"""


def drawn_in_library(folder: Path, library: str, seed: str = "") -> list[RuleFinding]:
    packages = folder / "site-packages"
    packages.mkdir()
    (packages / "made_up.py").write_text(library)
    path = f"import random, sys, torch\ntorch.manual_seed(0)\n{seed}\nsys.path.insert(0, {str(packages)!r})\n"
    return unseeded(path + "import made_up\nx = made_up.build()\norder = range(8)\n" + TRAINING)


def test_a_draw_inside_of_a_library_is_reported_at_the_line_that_called_it(tmp_path: Path) -> None:
    (told,) = drawn_in_library(tmp_path, LIBRARY)
    assert (told.severity, told.finding.line) == ("warning", 6)
    assert "random.randint() with 1 value, in made_up.build()" in told.finding.evidence


def test_a_draw_inside_of_a_library_is_not_reported_if_the_script_seeds_it(tmp_path: Path) -> None:
    assert not drawn_in_library(tmp_path, LIBRARY, "random.seed(0)")


def test_a_draw_of_library_code_without_tensors_is_not_reported(tmp_path: Path) -> None:
    pause = LIBRARY.replace("random, torch", "random").replace("torch.ones(", "sum((").replace("4)", "4))")
    assert not drawn_in_library(tmp_path, pause)


def test_a_seed_that_a_library_takes_back_is_no_seed_of_the_script(tmp_path: Path) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    (folder / "pretrained.py").write_text(
        "import torch\ndef build():\n    with torch.random.fork_rng():\n"
        "        torch.manual_seed(0)\n        return torch.nn.Linear(4, 4)\n"
    )
    path = f"import sys, torch\nsys.path.insert(0, {str(folder)!r})\nimport pretrained\n"
    (told,) = unseeded(path + "noise = torch.randn(8)\npretrained.build()\norder = [*range(32)]\n" + TRAINING)
    assert told.severity == "info"
    assert "never seeded" in told.finding.message


def test_a_seed_before_every_step_stands_for_data_and_promises_nothing() -> None:
    text = "import torch\norder = [*range(32)]\n" + TRAINING
    within = text.replace(
        "    optimizer.zero_grad()\n", "    torch.manual_seed(_)\n    optimizer.zero_grad()\n"
    )
    (told,) = unseeded(within)
    assert told.severity == "info"
    once = text.replace("optimizer = ", "torch.manual_seed(0)\noptimizer = ")
    (told,) = unseeded(once)
    assert told.severity == "warning"


OPTION = """import argparse, numpy, torch
parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=DEFAULT)
args = parser.parse_args([])
USE
order = [*range(32)]
"""


@pytest.mark.parametrize(
    ("default", "use", "line"),
    [
        ("1", "", 4),
        ("1", "numpy.random.seed(args.seed)", 5),
        ("1", "torch.cuda.manual_seed_all(args.seed)", 5),
    ],
)
def test_an_option_that_seeds_nothing_in_torch_is_a_warning(default: str, use: str, line: int) -> None:
    (told,) = unseeded(OPTION.replace("DEFAULT", default).replace("USE", use) + TRAINING)
    assert (told.severity, told.finding.line) == ("warning", line)
    assert told.finding.message.startswith("--seed is not given to torch's generator")


@pytest.mark.parametrize(
    ("default", "use"),
    [
        ("None", "if args.seed is not None: torch.manual_seed(args.seed)"),
        ("0", "if args.seed: torch.manual_seed(args.seed)"),
        ("7", "if numpy.pi < 3: torch.manual_seed(args.seed)"),
        ("7", "def seed_all(): torch.manual_seed(args.seed)"),
    ],
)
def test_a_seed_that_is_not_asked_for_is_a_remark(default: str, use: str) -> None:
    (told,) = unseeded(OPTION.replace("DEFAULT", default).replace("USE", use) + TRAINING)
    assert told.severity == "info"


def test_a_constant_that_seeds_nothing_is_a_warning() -> None:
    text = "import torch\nSEED = 7\norder = [*range(32)]\n" + TRAINING
    (told,) = unseeded(text)
    assert (told.severity, told.finding.line) == ("warning", 2)
    assert unseeded(text.replace("order", "torch.manual_seed(SEED)\norder", 1)) == []
