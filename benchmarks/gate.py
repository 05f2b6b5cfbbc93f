"""What a checkout finds and costs, in one table, so that a change can be compared with what was before it.

Runs the checkout's own check_corpus, wild and mutants on a fixed draw, and counts our calls in a step and the
lines of each package. Results are kept in --out: wild.jsonl and mutants.jsonl are resumed, gate.json is the
table. To compare, run it in each checkout and pass the other's gate.json as --against.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import figures
from measure import Row, Sheet, report
from wild import rows_of_findings

WILD = (
    *("examples-mnist", "examples-mnist-rnn", "examples-forward-forward", "examples-vae", "examples-dcgan"),
    *("examples-gcn", "examples-gat", "examples-regression", "examples-siamese", "examples-word-lm-lstm"),
    *("examples-word-lm-transformer", "examples-time-sequence", "examples-super-resolution", "pygcn"),
    *("yunjey-linear", "yunjey-logistic", "yunjey-birnn", "yunjey-cnn", "yunjey-lm", "yunjey-gan"),
    *("gan-gan", "gan-aae", "gan-cgan", "gan-wgan", "gan-wgan-gp", "gan-infogan", "gan-sgan", "gan-ebgan"),
    *("hunkim-linear", "hunkim-logistic", "hunkim-loader-logistic", "hunkim-softmax-mnist"),
    *("hunkim-cnn-mnist", "hunkim-hello-rnn-seq", "nlp-nnlm", "nlp-word2vec", "nlp-textcnn", "nlp-textlstm"),
    *("nlp-seq2seq-attention", "nlp-bilstm-attention", "nlp-transformer", "nlp-bert"),
    *("loeber-model-loss-optimizer", "loeber-logistic", "loeber-feedforward", "loeber-transfer"),
    *("jcjohnson-two-layer-net-module", "jcjohnson-dynamic-net", "beginner-logistic", "beginner-rnn"),
    *("beginner-bag-of-words", "beginner-conv-autoencoder", "nanogpt", "mingpt-chargpt", "mingpt-adder"),
    *("makemore-transformer", "makemore-bow", "cifar-kuangliu", "devnag-gan", "simclr-sthalles"),
)
"""Scripts of small public repositories that run in seconds and need no further package."""
FIGURES = {
    "mutants__counted": "mutants, all, counted",
    "mutants__found": "mutants, all, found",
    "mutants__at_line": "mutants, all, at line",
    "wild__ran": "wild, scripts that ran",
    "wild__true": "wild, true findings",
}
"""What pages state, and its row."""
PER_SCRIPT = 5
"""Mutants of each of them that have to count."""
LOOP = """
import sys, torch
from torch import nn
calls = dict.fromkeys(("window", "later"), 0)
def count(frame, event, _):
    name = frame.f_code.co_filename
    calls[at] += event == "call" and ("/truestep/" in name or "truestep.watch" in name)
data = torch.utils.data.TensorDataset(torch.randn(6400, 20), torch.randint(0, 10, (6400,)))
model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.AdamW(model.parameters())
for step, (inputs, labels) in enumerate(torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)):
    at = "window" if step < 10 else "later"
    if step < 10 or step >= 150:
        sys.setprofile(count)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    sys.setprofile(None)
print("calls", calls["window"] / 10, calls["later"] / 50)
"""
Numbers = dict[str, float]


def count_lines(root: Path) -> Numbers:
    """Return the lines of Python of each package and folder."""
    numbers: Counter[str] = Counter()
    for name in ("src", "tests", "benchmarks"):
        for path in (root / name).rglob("*.py"):
            lines = len(path.read_text().splitlines())
            parts = path.relative_to(root / name).parts[:-1]
            numbers[name] += lines
            if name == "src":
                numbers[f"src/{parts[1] if len(parts) > 1 else '(files)'}"] += lines
    return {f"lines, {name}": float(number) for name, number in sorted(numbers.items())}


def count_calls(root: Path) -> Numbers:
    """Return how many Python calls of ours a step makes, while it is examined and later."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "loop.py")
        script.write_text(LOOP)
        words = [python_of(root), "-m", "truestep", "check", "--format", "json", str(script)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    line = next(line for line in done.stderr.splitlines() if line.startswith("calls "))
    window, later = map(float, line.split()[1:])
    return {"calls in a step, first 10": window, "calls in a step, after 150": later}


def python_of(root: Path) -> str:
    """Return the Python that runs the checkout's own source."""
    own = root / ".venv/bin/python"
    return str(own) if own.exists() else sys.executable


def run_part(root: Path, name: str, *words: str) -> dict[str, Any]:
    """Run a benchmark of the checkout and return its answer."""
    command = [python_of(root), str(root / "benchmarks" / name), *words, "--json"]
    done = subprocess.run(command, cwd=root, stdout=subprocess.PIPE, text=True, check=False)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def corpus_score(root: Path) -> Numbers:
    """Return what is found in the corpus, and how many of its correct scripts are flagged."""
    has_costs = "--costs" in (root / "benchmarks" / "check_corpus.py").read_text()
    answer = run_part(root, "check_corpus.py", *(("--costs", "0") if has_costs else ()))
    ours = next(sheet for sheet in answer["sheets"] if sheet["title"] == "in sum")["rows"][0]
    return {f"corpus, {name}": number for name, number in ours.items() if name != "tool"}


def wild_findings(path: Path) -> Numbers:
    """Return how many findings have which verdict, and each one."""
    results = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    numbers: Counter[str] = Counter(f"wild, scripts that {row['state']}" for row in results)
    for row in rows_of_findings(results):
        if row["severity"] != "info":
            numbers[f"wild, {row['verdict']} findings"] += 1
            numbers[f"wild, {row['verdict']}: {row['script']} {row['rule']} {row['line']}"] += 1
    return {name: float(number) for name, number in sorted(numbers.items())}


def mutant_shares(path: Path) -> Numbers:
    """Return how many mutants count and how many are found and at their line, in all and by kind."""
    results = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    numbers: Counter[str] = Counter()
    for row in results:
        if row["state"] == "counted":
            for kind in ("all", row["operator"]):
                numbers[f"mutants, {kind}, counted"] += 1
                numbers[f"mutants, {kind}, found"] += row["found"]
                numbers[f"mutants, {kind}, at line"] += row["at line"]
    return {name: float(number) for name, number in sorted(numbers.items())}


def compare(now: Numbers, before: Mapping[str, float]) -> list[Row]:
    """Return the lines of the table; with something to compare with, only those that differ."""
    names = sorted({*now, *before}) if before else [*now]
    return [
        {"what": name, "before": before.get(name), "now": now.get(name)}
        for name in names
        if not before or now.get(name) != before.get(name)
    ]


def main() -> int:
    """Measure a checkout."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--checkout", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--out", type=Path, default=Path("gate"), help="where results are kept")
    parser.add_argument("--against", type=Path, help="the gate.json of another checkout")
    parser.add_argument("--parts", default="lines,calls,wild,mutants,corpus", help="with commas between")
    parser.add_argument("--measured", type=Path, help="mutants of another checkout, measured already")
    parser.add_argument("--seconds", default="7200", help="of each part: start nothing further after this")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    root, parts = asked.checkout.resolve(), set(asked.parts.split(","))
    wild, mutants = (asked.out.resolve() / f"{name}.jsonl" for name in ("wild", "mutants"))
    draw = ("--scripts", ",".join(WILD), "--seconds", asked.seconds)
    if "wild" in parts:
        run_part(root, "wild.py", *draw, "--results", str(wild))
    if "mutants" in parts:
        known = ("--measured", str(asked.measured.resolve())) if asked.measured else ()
        limits = ("--per-script", str(PER_SCRIPT), "--results", str(mutants))
        run_part(root, "mutants.py", *draw, *limits, *known)
    for name, path in (("wild", wild), ("mutants", mutants)):
        if name in parts and not (path.exists() and path.read_text().strip()):
            raise SystemExit(f"gate: {name} measured nothing, see what it printed above")
    saved = asked.out / "gate.json"
    kept: Numbers = json.loads(saved.read_text()) if saved.exists() else {}
    numbers = {name: number for name, number in kept.items() if name.startswith(("calls", "corpus"))}
    numbers |= count_lines(root)
    numbers |= count_calls(root) if "calls" in parts else {}
    numbers |= corpus_score(root) if "corpus" in parts else {}
    numbers |= wild_findings(wild) | mutant_shares(mutants)
    saved.write_text(json.dumps(numbers, indent=1) + "\n")
    known = {name: numbers.get(key) for name, key in FIGURES.items()}
    figures.write(**{name: int(value) for name, value in known.items() if value is not None})
    before = json.loads(asked.against.read_text()) if asked.against else {}
    sheet = Sheet(title="gate", rows=compare(numbers, before), num_digits=1)
    return report("gate", sheets=[sheet], claims=[], as_json=asked.json)


if __name__ == "__main__":
    sys.exit(main())
