"""The wild corpus and the mutation engine: what they rest on, without running anybody's script."""

import importlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[1] / "benchmarks"
SCRIPT = """\
import torch
import torch.nn.functional as F
from torch import nn, optim
from torchvision import datasets, transforms

torch.manual_seed(0)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(2)])
        nn.init.xavier_uniform_(self.layers[0].weight)

    def forward(self, x):
        x = F.dropout(x.view(x.size(0), -1), training=self.training)
        x = torch.cat((x, x), dim=1).transpose(0, 1).masked_fill(x > 3, 0.0)
        return F.log_softmax(x, dim=1)

model, target_net = Net(), Net()
target_net.load_state_dict(model.state_dict())
changes = transforms.Compose([transforms.ToTensor(), transforms.Normalize(0, 1)])
train = datasets.MNIST(".", train=True, transform=changes)
test = datasets.MNIST(".", train=False, transform=transforms.ToTensor())
loader = torch.utils.data.DataLoader(train, shuffle=True)
optimizer = optim.Adam(model.parameters(), lr=0.1)
scheduler = optim.lr_scheduler.StepLR(optimizer, 1)
criterion = nn.CrossEntropyLoss()
total, data, i, n = 0, None, 0, 8
optimizer.param_groups[0]["lr"] = 0.1
for x, y in loader:
    model.train()
    optimizer.zero_grad()
    loss = criterion(
        model(x),
        y,
    ) + F.mse_loss(x.detach(), data[i + 1 : i + 1 + n]) + F.binary_cross_entropy(x, y)
    loss.backward()
    nn.utils.clip_grad_norm_(
        model.parameters(), 1.0
    )
    optimizer.step()
    scheduler.step()
    total += loss.item()
with torch.no_grad():
    model.eval()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "kept.pt")
"""


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def test_every_operator_plants_its_mistake_and_keeps_line_numbers(benchmark: Any) -> None:
    operators, source_module = benchmark("mutant_operators"), benchmark("mutant_source")
    source = source_module.Source(SCRIPT)
    for name, operator in operators.OPERATORS.items():
        found = [*operator.plant(source)]
        assert found, name
        for planted in found:
            text = source_module.apply(source, planted)
            compile(text, name, "exec")
            assert text != SCRIPT and text.count("\n") == SCRIPT.count("\n"), name
            assert text.splitlines()[planted.line - 1] != SCRIPT.splitlines()[planted.line - 1], name
    assert len(operators.OPERATORS) >= 40 and len(operators.BLIND) == 10


def test_manifest_names_source_license_and_the_blind_twenty(benchmark: Any) -> None:
    scripts = benchmark("wild_scripts").read_manifest()
    assert len({script.name for script in scripts}) == len(scripts) >= 100
    assert sum(script.blind for script in scripts) == 20
    for script in scripts:
        assert len(script.commit) == 40 and script.license and script.domain and script.data, script.name


def test_judgements_are_of_scripts_in_the_manifest(benchmark: Any) -> None:
    scripts = benchmark("wild_scripts")
    names = {script.name for script in scripts.read_manifest()}
    for (script, *_), (verdict, why) in benchmark("wild").read_judgements().items():
        assert script in names and verdict in {"true", "debatable", "false"} and why, script


def _commit(folder: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "."], [*who, "commit", "-q", "-m", "x"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    return subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_script_is_set_up_from_a_mirror_with_edits_and_data(benchmark: Any, tmp_path: Path) -> None:
    wild = benchmark("wild_scripts")
    place = tmp_path / "mirror" / "some+one" / "repo"
    commit = _commit(place, {"a/train.py": "epochs = 100\n", "a/part.py": "", "b/other.py": ""})
    fields = {"name": "s", "repository": "some/one", "commit": commit, "license": "MIT", "domain": "d"}
    script = wild.Script(path="a/train.py", edits=(("100", "1"),), write=(("in.txt", "text", 100),), **fields)
    path = wild.set_up(script, tmp_path / "in", mirror=tmp_path / "mirror")
    assert path.read_text() == "epochs = 1\n"
    assert sorted(file.name for file in path.parent.iterdir()) == ["in.txt", "part.py", "train.py"]
    stale = wild.Script(path="a/train.py", edits=(("200", "1"),), **fields)
    with pytest.raises(wild.CannotFetch, match="not in the script"):
        wild.set_up(stale, tmp_path / "in2", mirror=tmp_path / "mirror")


def test_a_finding_nobody_has_judged_fails_the_claim(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wild = benchmark("wild")
    judged = {"script": "s", "rule": "LOOP01", "file": "a.py", "line": 3, "verdict": "true", "why": "it is"}
    monkeypatch.setattr(wild, "JUDGEMENTS", tmp_path / "judgements.jsonl")
    wild.JUDGEMENTS.write_text(json.dumps(judged) + "\n")
    finding = {
        "rule": "LOOP01",
        "severity": "error",
        "file": "a.py",
        "line": 3,
        "message": "m",
        "evidence": "",
    }
    results = [{"script": "s", "state": "ran", "findings": [finding]}]
    assert all(
        claim.verdict == "holds" for claim in wild.claims_of(results, wild.rows_of_findings(results), 1)
    )
    results = [{"script": "s", "state": "ran", "findings": [finding, {**finding, "line": 4}]}]
    verdicts = [claim.verdict for claim in wild.claims_of(results, wild.rows_of_findings(results), 1)]
    assert verdicts == ["holds", "holds", "fails", "fails", "fails"]


def test_a_mutant_is_found_only_by_a_new_finding_of_its_rules(benchmark: Any) -> None:
    mutants, module = benchmark("mutants"), benchmark("mutant_source")
    source = module.Source(SCRIPT)
    (planted,) = benchmark("mutant_operators").OPERATORS["drop_zero_grad"].plant(source)

    class Known:
        keys = frozenset({("LOOP01", 50, False)})
        has_steps = True

    def judge(line: int, code: str = "LOOP01", severity: str = "error") -> tuple[bool, bool]:
        item = {"code": code, "line": line, "severity": severity, "consequences": []}
        answer = {"findings": [item], "inconclusive": None, "steps": 3}
        told = mutants.judge(answer, Known(), frozenset({"LOOP01"}), planted)
        return told["found"], told["at line"]

    assert judge(planted.line + 3) == (True, True)
    assert judge(planted.line + 4) == (True, False)
    assert judge(50) == (False, False), "the original has it too"
    assert judge(planted.line, code="LOOP02") == (False, False)
    assert judge(planted.line, severity="info") == (False, False)
    answer = {"findings": [], "inconclusive": "no step ran", "steps": 0}
    assert mutants.judge(answer, Known(), frozenset({"LOOP01"}), planted)["found"]
    Known.has_steps = False
    assert not mutants.judge(answer, Known(), frozenset({"LOOP01"}), planted)["found"], "nor did the original"


def test_runs_are_apart_by_their_largest_relative_difference(benchmark: Any) -> None:
    difference = benchmark("mutants").difference
    run = {"losses": [2.0, 1.0], "weights": [4.0]}
    assert difference(run, run) == 0.0
    assert difference(run, {"losses": [2.0, 0.5], "weights": [4.0]}) == 0.5
    assert difference(run, {"losses": [2.0], "weights": [4.0]}) == float("inf")
    assert difference(run, {"losses": [2.0, float("nan")], "weights": [4.0]}) == float("inf")


def test_output_is_compared_at_its_end_and_without_numbers(benchmark: Any) -> None:
    lost_lines = benchmark("wild").lost_lines
    assert not lost_lines(
        "start\nloss 0.52\nis good: True\ndone in 3 s\n", "loss 0.4\nis good: False\ndone in 4 s\n"
    )
    assert lost_lines("loss 0.52\ndone\n", "loss 0.48\n") == {"done"}


def test_a_factor_of_the_loss_counts_only_if_steps_have_another_length(benchmark: Any) -> None:
    mutants = benchmark("mutants")
    original = mutants.Bare.__new__(mutants.Bare)
    weights = [4.0, 4.1, 4.0, 4.2]
    original.first = {"losses": [2.0], "weights": weights, "outputs": [], "num_graphs": 1}
    original.noise = original.spread = 0.0
    scaled = {**original.first, "losses": [2.0 / 64]}
    assert original.effect(scaled) and not original.effect(scaled, is_factor=True)
    assert not original.effect({**scaled, "weights": [4.0, 4.1, 4.03, 4.2]}, is_factor=True)
    assert original.effect({**scaled, "weights": [4.0, 4.01, 4.0, 4.02]}, is_factor=True)


def test_scripts_try_the_same_operators_each_in_another_order(benchmark: Any) -> None:
    mutants = benchmark("mutants")
    first, second = (mutants.order_operators(name, [*mutants.OPERATORS]) for name in ("a", "b"))
    assert sorted(first) == sorted(second) and first != second
    assert first == mutants.order_operators("a", [*mutants.OPERATORS])


def test_blind_mutants_are_reported_apart(benchmark: Any) -> None:
    mutants = benchmark("mutants")
    row = {"state": "counted", "found": True, "at line": False}
    blind = next(iter(mutants.BLIND))
    rows = [
        {**row, "script": "a", "operator": "drop_eval"},
        {**row, "script": "a", "operator": blind},
        {**row, "script": "b", "operator": blind},
        {"state": "equivalent", "script": "a", "operator": "drop_eval"},
    ]
    assert [line["counted"] for line in mutants.halves(rows, {"b"})] == [1.0, 1.0, 1.0]
