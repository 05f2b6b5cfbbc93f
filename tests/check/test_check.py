"""`truestep check` as its user meets it: output, exit codes, hiding, rules of one's own."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
import types
from pathlib import Path
from typing import Any

import pytest

from tests.gathering import run_script
from truestep import cli
from truestep.check import Evaluation, RuleFinding, Settings, as_sarif, evaluate_rules, read_settings
from truestep.check.examine import Result
from truestep.check.suppress import hide, read_comments
from truestep.errors import UsageError
from truestep.rules import Evidence, Finding, find_rules
from truestep.rules.rule import read_rule

SCRIPT = """\
import sys

import torch
from torch import nn

print("begins", *sys.argv[1:])
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    x = torch.randn(8, 4)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
print("ends")
"""
LINE = 13
COMMAND = str(Path(sys.executable).with_name("truestep"))
MENDED = SCRIPT.replace("    optimizer.step()\n", "    optimizer.step()\n    optimizer.zero_grad()\n")


def check(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, "check", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def write(folder: Path, text: str = SCRIPT) -> Path:
    path = folder / "train.py"
    path.write_text(text)
    return path


def told_of(path: Path) -> tuple[list[RuleFinding], Any]:
    evidence = run_script(path).evidence
    return evaluate_rules(find_rules(), evidence).findings, evidence


def test_json_is_alone_on_stdout_and_keeps_the_contract(tmp_path: Path) -> None:
    write(tmp_path)
    done = check(tmp_path, "--format", "json", "train.py", "--lr", "3")
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    assert done.stderr.splitlines()[0] == "begins --lr 3"
    (finding,) = [item for item in answer["findings"] if item["severity"] != "info"]
    wanted = [
        "code",
        "name",
        "severity",
        "file",
        "line",
        "message",
        "evidence",
        "cost",
        "fix",
        "step",
        "count",
    ]
    assert [key for key in wanted if key not in finding] == []
    assert (finding["code"], finding["name"], finding["line"]) == ("LOOP01", "stale-gradients", LINE)
    assert finding["file"] == str(tmp_path / "train.py") and finding["step"] == 2 and finding["count"] == 5
    assert answer["steps"] == 6 and "LOOP06" in answer["not_observed"]
    assert "a scheduler" in answer["not_seen"]
    assert answer["failed_rules"] == []


def test_text_shows_the_line_and_what_to_do(tmp_path: Path) -> None:
    write(tmp_path)
    done = check(tmp_path, "train.py")
    assert done.returncode == 1
    assert done.stdout.startswith("begins\nends\n")
    assert f"train.py:{LINE}\n    loss.backward()\n" in done.stdout
    assert "optimizer.zero_grad()" in done.stdout and "1 error" in done.stdout
    assert len(done.stdout.splitlines()) < 25


@pytest.mark.verdict(
    "No optimizer step ran, so nothing was checked. Does the script train in a process that it "
    "starts, need arguments to train, or find its training finished? Pass the script and the "
    "arguments that train."
)
@pytest.mark.verdict(
    "No optimizer step ran, so training was not checked. Steps that the script makes itself "
    "with torch.autograd.grad are not counted."
)
@pytest.mark.verdict(
    "No optimizer step ran, so training was not checked. There were backward passes, but the "
    "weights did not change after them. Pass the script that updates them, with its arguments."
)
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("print('trained already')\n", "No optimizer step ran, so nothing was checked."),
        (
            "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import torch'], check=True)\n",
            "Does the script train in a process that it starts",
        ),
        ("import torch\noptimizer = torch.optim.SGD([torch.ones(1)])\n", "need arguments to train"),
        (
            "import torch\nweight = torch.ones(2, requires_grad=True)\nweight.sum().backward()\n",
            "the weights did not change",
        ),
        (
            "import torch\nw = torch.ones(1, requires_grad=True)\nw.data -= torch.autograd.grad(w, w)[0]\n",
            "torch.autograd.grad are not counted",
        ),
    ],
    ids=["finished", "subprocess", "no-step", "no-update", "functional"],
)
def test_a_run_without_an_optimizer_step_is_inconclusive(tmp_path: Path, text: str, reason: str) -> None:
    write(tmp_path, text)
    done = check(tmp_path, "--format", "json", "train.py")
    answer = json.loads(done.stdout)
    assert done.returncode == 2 and answer["steps"] == 0 and reason in answer["inconclusive"]
    assert answer["findings"] == [] and answer["exit_code"] == 0


def test_an_inconclusive_run_is_not_said_to_be_without_findings(tmp_path: Path) -> None:
    write(tmp_path, "import torch\n\ntorch.ones(2, requires_grad=True).sum().backward()\n")
    done = check(tmp_path, "train.py")
    assert done.returncode == 2 and "inconclusive: No optimizer step ran, so" in done.stdout
    assert "nothing found" not in done.stdout


def test_an_option_after_the_script_is_named_when_the_script_fails(tmp_path: Path) -> None:
    write(tmp_path, "import sys\n\nraise SystemExit(len(sys.argv) > 1)\n")
    done = check(tmp_path, "train.py", "--steps", "20")
    assert done.returncode == 2
    assert "The script got --steps: if it is an option of truestep, put it before the script." in done.stdout


def test_a_right_script_ends_with_0_and_a_failing_one_with_2(tmp_path: Path) -> None:
    write(tmp_path, MENDED)
    done = check(tmp_path, "train.py")
    assert done.returncode == 0 and "nothing found in 6 steps" in done.stdout
    write(tmp_path, SCRIPT + "raise ValueError('no more data')\n")
    done = check(tmp_path, "train.py")
    assert done.returncode == 2
    assert "inconclusive: the script failed (exit code 1): ValueError: no more data" in done.stdout
    assert "LOOP01" in done.stdout, "what was seen before it failed is told"
    done = check(tmp_path, "missing.py")
    assert done.returncode == 2 and "missing.py is not a file. Options of truestep come before" in done.stderr


def test_sarif_names_rule_and_place(tmp_path: Path) -> None:
    write(tmp_path)
    done = check(tmp_path, "--format", "sarif", "--steps", "3", "train.py")
    log = json.loads(done.stdout)
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    (result,) = [item for item in run["results"] if item["level"] == "error"]
    place = result["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "train.py"}, "region": {"startLine": LINE}}
    rule = run["tool"]["driver"]["rules"][result["ruleIndex"]]
    assert rule["id"] == result["ruleId"] == "LOOP01" and "## How to fix" in rule["help"]["markdown"]


@pytest.mark.parametrize("how", ["ctrl-c", "sigterm"])
def test_what_was_seen_before_an_interruption_is_told(tmp_path: Path, how: str) -> None:
    text = SCRIPT.replace("range(6)", "range(10**9)").replace("lr=0.01", "lr=1e-9")  # however long: finite
    text = text.replace(
        "    optimizer.step()\n", "    optimizer.step()\n    step == 5 and print('warm', flush=True)\n"
    )
    write(tmp_path, text)
    (tmp_path / "temporary").mkdir()
    process = subprocess.Popen(
        [COMMAND, "check", "train.py"],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(tmp_path / "temporary")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    while process.stdout.readline() != "warm\n":
        assert process.poll() is None
    time.sleep(0.2)
    if how == "ctrl-c":
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    else:
        os.kill(process.pid, signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1 and f"train.py:{LINE}" in output, output
    assert "1 error" in output and not list((tmp_path / "temporary").iterdir())
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)  # the script has ended too


@pytest.mark.verdict("{}: {} is not a rule, so this comment suppresses nothing")
@pytest.mark.verdict("{}:{}: suppresses nothing; remove ignore[{}]")
def test_a_comment_hides_a_finding_and_one_that_hides_nothing_is_told(tmp_path: Path) -> None:
    path = write(tmp_path)
    findings, _ = told_of(path)
    assert [told.rule.meta.code for told in findings if told.severity != "info"] == ["LOOP01"]
    marked = SCRIPT.replace("loss.backward()", "loss.backward()  # truestep: ignore[stale-gradients] wanted")
    above = SCRIPT.replace("    loss.backward()", "    # truestep: ignore[LOOP]\n    loss.backward()")
    whole = SCRIPT + "# truestep: ignore-file[LOOP01] a study of momentum\n"
    for text in (marked, above, whole):
        findings, evidence = told_of(write(tmp_path, text))
        kept, unused = hide(findings, evidence.sources)
        assert "LOOP01" not in [told.rule.meta.code for told in kept] and unused == []
    (comment,) = read_comments(evidence.source(str(path)))
    assert comment.reason == "a study of momentum"
    done = check(tmp_path, "train.py")
    assert done.returncode == 0 and "1 finding suppressed" in done.stdout
    assert "suppresses nothing" not in done.stdout
    write(tmp_path, MENDED.replace("print(", "# truestep: ignore[LOOP01]\nprint(", 1))
    done = check(tmp_path, "train.py")
    assert done.returncode == 0 and "train.py:6: suppresses nothing; remove ignore[LOOP01]" in done.stdout
    assert "is not a rule" not in done.stdout
    write(tmp_path, MENDED + "# truestep: ignore[LOOP99] an unknown rule\n")
    assert "train.py:17: LOOP99 is not a rule" in check(tmp_path, "train.py").stdout


def test_what_each_rule_that_runs_by_default_has_found_is_listed() -> None:
    proofs = tomllib.loads((Path(__file__).parents[2] / "benchmarks/wild/proofs.toml").read_text())
    listed = [*proofs.pop("public"), *(code for kind in proofs.values() for code in kind["rules"])]
    assert sorted(listed) == sorted(rule.meta.code for rule in find_rules())


def test_rules_are_chosen_by_code_name_or_family(tmp_path: Path) -> None:
    rules = find_rules()
    chosen = Settings(select=("stale-gradients", "PAR"), ignore=("PAR01",)).choose(rules)
    codes = {rule.meta.code for rule in chosen}
    assert "LOOP01" in codes and "PAR02" in codes and "PAR01" not in codes and "LOOP02" not in codes
    with pytest.raises(UsageError, match=r"select names an unknown rule, .LOOP99.\. Pass a code"):
        Settings(select=("LOOP99",)).choose(rules)
    (tmp_path / "pyproject.toml").write_text('[tool.truestep.check]\nignore = ["LOOP01"]\nrules = ["mine"]\n')
    inner = tmp_path / "inner"
    inner.mkdir()
    assert read_settings(inner) == Settings(ignore=("LOOP01",), rules=(tmp_path / "mine",))
    (tmp_path / "pyproject.toml").write_text('[tool.truestep.check]\nignored = ["LOOP01"]\n')
    with pytest.raises(UsageError, match=r"has unknown keys: ignored\. Use ignore, rules, select"):
        read_settings(inner)


def test_what_follows_from_a_finding_is_told_when_that_one_is_left_out(tmp_path: Path) -> None:
    rules = {rule.meta.code: rule for rule in find_rules()}
    path = write(tmp_path, "x = load()  # truestep: ignore[DATA07] on purpose\noptimizer.step()\n")
    evidence = Evidence(texts={str(path): path.read_text()})
    source = evidence.source(str(path))
    assert source is not None
    follows = RuleFinding(rule=rules["LOOP11"], finding=Finding(message="not finite", file=str(path), line=2))
    cause = Finding(message="not scaled", file=str(path), line=1)
    findings = [RuleFinding(rule=rules["DATA07"], finding=cause, consequences=(follows,))]
    kept, unused = hide(findings, [source])
    assert kept == [follows] and unused == []
    log = as_sarif(
        Result(code=0, evidence=evidence, rules=[*rules.values()], evaluation=Evaluation(findings=findings))
    )
    assert [item["ruleId"] for item in log["runs"][0]["results"]] == ["DATA07", "LOOP11"]


RULE = '''\
"""More than five steps are made.

## What it finds
Too many steps.

## Why it matters
For the test.

## How to fix
Make fewer.
"""
from truestep.rules import Finding, Meta
from truestep.watch.evidence.facts.optimizing import OptimizerStep

RULE = Meta(code="MINE01", severity="warning", needs=(OptimizerStep,), fix="Make fewer steps.")


def check(evidence):
    steps = evidence.of(OptimizerStep)
    if len(steps) > 5:
        yield Finding.at(steps[-1], "too many steps", evidence=f"{len(steps)} steps")
'''


def test_one_file_in_a_folder_adds_a_rule(tmp_path: Path) -> None:
    write(tmp_path, MENDED)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "too_many_steps.py").write_text(RULE)
    done = check(tmp_path, "--rules", "mine", "train.py")
    assert done.returncode == 1
    assert "warning  MINE01 too-many-steps" in done.stdout and "train.py:14" in done.stdout
    (mine / "empty.py").write_text("")
    done = check(tmp_path, "--rules", "mine", "train.py")
    assert done.returncode == 2
    assert (
        "empty.py is not a rule: it lacks RULE, check. A rule has a docstring with the sections"
        in done.stderr
    )


def test_another_package_adds_rules_by_an_entry_point(tmp_path: Path) -> None:
    """Installed as pip leaves it: a module, and metadata that names it."""
    write(tmp_path, MENDED)
    site = tmp_path / "site"
    (site / "steps_rules-1.0.dist-info").mkdir(parents=True)
    (site / "too_many_steps.py").write_text(RULE)
    (site / "steps_rules-1.0.dist-info" / "METADATA").write_text("Name: steps-rules\nVersion: 1.0\n")
    points = "[truestep.rules]\ntoo-many-steps = too_many_steps\n"
    (site / "steps_rules-1.0.dist-info" / "entry_points.txt").write_text(points)
    done = subprocess.run(
        [COMMAND, "check", "train.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(site)},
        timeout=120,
    )
    assert done.returncode == 1 and "MINE01 too-many-steps" in done.stdout


def test_a_rule_that_fails_takes_no_other_with_it(tmp_path: Path) -> None:
    module = types.ModuleType("broken")
    module.__file__ = "broken.py"
    exec(RULE.replace("if len(steps) > 5", "if steps[99]"), vars(module))
    evidence = run_script(write(tmp_path)).evidence
    told = evaluate_rules([*find_rules(), read_rule(module)], evidence)
    assert told.failed == ["MINE01 broken: IndexError: list index out of range"]
    assert "LOOP01" in [item.rule.meta.code for item in told.findings]


SPAWNED = """\
import torch
from torch import multiprocessing, nn
from torch.utils.data import DataLoader


def train(rank):
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x in DataLoader(torch.arange(48.0).reshape(12, 4), batch_size=2, num_workers=1):
        model(x).mean().backward()
        optimizer.step()


if __name__ == "__main__":
    torch.manual_seed(0)
    multiprocessing.set_start_method("spawn")
    multiprocessing.spawn(train, nprocs=1)
"""


def test_a_training_that_the_script_spawns_is_checked_and_loader_workers_are_left_alone(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, SPAWNED)
    done = check(tmp_path, "--format", "json", str(path))
    assert done.returncode == 1, done.stderr
    answer = json.loads(done.stdout)
    assert ("LOOP01", 10) in {(item["code"], item["line"]) for item in answer["findings"]}
    assert answer["steps"] == 6


def test_with_several_processes_arguments_arrive_as_they_were_written(tmp_path: Path) -> None:
    path = write(tmp_path, "import os, sys\n" + MENDED)
    done = check(tmp_path, "--format", "json", "--processes", "2", str(path), "${local_rank}", "$$HOME")
    assert done.returncode == 0, done.stderr
    assert "begins ${local_rank} $$HOME" in done.stderr


def test_a_run_of_ours_seeds_what_it_draws_from(tmp_path: Path) -> None:
    write(
        tmp_path,
        """\
import torch
import truestep as ts

with ts.Run("runs/small", seed=1, progress=False) as run:
    model = run.place(torch.nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run.track(model=model, optimizer=optimizer)
    data = torch.randn(64, 4)
    for step in run.steps(ts.Loader(data, batch_size=8), epochs=1):
        for x in step:
            step.backward(model(x).square().mean())
        step.update(optimizer)
""",
    )
    done = check(tmp_path, "train.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_script_that_cannot_be_mended_is_still_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path)
    replace = Path.replace

    def refuse(self: Path, target: Path) -> Path:
        if target.name == "train.py":
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", refuse)
    monkeypatch.setattr(sys, "argv", ["truestep", "check", "--fix", str(path)])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    said = capsys.readouterr()
    assert exit_.value.code == 2 and "train.py cannot be written (Read-only file system)" in said.err
    assert "LOOP01" in said.out and path.read_text() == SCRIPT


@pytest.mark.parametrize("words", [("--select", "LOPO01"), ("--steps", "0")])
def test_what_is_mistyped_is_refused_before_the_script_runs_and_leaves_no_folder(
    tmp_path: Path, words: tuple[str, str]
) -> None:
    write(tmp_path)
    done = check(tmp_path, *words, "--record", "run", "train.py")
    assert done.returncode == 2 and "begins" not in done.stdout + done.stderr
    assert not (tmp_path / "run").exists()


def test_a_rule_that_fails_ends_with_3_if_nothing_was_found(tmp_path: Path) -> None:
    write(tmp_path, MENDED)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "broken.py").write_text(RULE.replace("if len(steps) > 5", "if steps[99]"))
    done = check(tmp_path, "--rules", "mine", "train.py")
    assert done.returncode == 3 and "a rule failed: MINE01 broken: IndexError" in done.stdout


def test_an_interruption_with_nothing_found_ends_with_130(tmp_path: Path) -> None:
    write(tmp_path, MENDED.replace('print("ends")', "raise KeyboardInterrupt"))
    done = check(tmp_path, "train.py")
    assert done.returncode == 130, done.stdout
    assert "nothing found in 6 steps (you stopped the script)" in done.stdout, done.stdout
    assert "inconclusive" not in done.stdout and "Traceback" not in done.stderr


def test_an_interruption_before_any_step_is_inconclusive(tmp_path: Path) -> None:
    write(tmp_path, "import torch\nraise KeyboardInterrupt\n" + MENDED)
    done = check(tmp_path, "train.py")
    assert done.returncode == 130, done.stdout
    assert "inconclusive: you stopped the script before its first optimizer step" in done.stdout
    assert "nothing found" not in done.stdout


def test_an_interrupted_script_that_wrote_no_end_is_inconclusive(tmp_path: Path) -> None:
    killed = "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)"
    write(tmp_path, MENDED.replace('print("ends")', killed))
    done = check(tmp_path, "train.py")
    assert done.returncode == 130, done.stdout
    assert "inconclusive: SIGTERM ended the script before it had written all" in done.stdout


def test_the_reason_of_a_script_that_ends_itself_is_told(tmp_path: Path) -> None:
    parser = "import argparse\nparser = argparse.ArgumentParser()\n"
    write(tmp_path, parser + "parser.add_argument('--data', required=True)\nparser.parse_args()\n")
    done = check(tmp_path, "train.py")
    assert done.returncode == 2
    assert "(exit code 2): the following arguments are required: --data" in done.stdout


def test_steps_that_could_not_be_counted_are_named(tmp_path: Path) -> None:
    hide = "if step == 40: optimizer.param_groups[:] = map(Hidden, optimizer.param_groups)"
    text = MENDED.replace("range(6)", "range(60)").replace('print("ends")', f"    {hide}")
    write(tmp_path, "class Hidden(dict): get = None\n" + text)
    done = check(tmp_path, "train.py")
    assert "nothing found in 41 steps (not all were counted)" in done.stdout, done.stdout
