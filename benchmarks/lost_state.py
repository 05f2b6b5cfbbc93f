"""Claim: after a kill, `truestep verify` names what the checkpoint lacks, and proves it by putting it back.

Runs `verify --kill` on every script of benchmarks/lost, whose checkpoint lacks what its first line says, and
on a copy that saves it too. Right is: the cause and exactly these variables. The copy must be the same.
Exit code: 0 at least 70 % are right, none is proved wrong and no copy is called different, 1 not so.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table

FOLDER = Path(__file__).parent / "lost"
LEAST_RIGHT = 0.7
MAX_S = 900
REPAIRS: dict[str, list[tuple[str, str]]] = {
    "centroids": [
        ("self.centroids = torch", 'self.register_buffer("centroids", torch'),
        ("(num, width)\n\n", "(num, width))\n\n"),
    ],
    "class_mean": [
        ('"step": self.step}', '"step": self.step, "kept": (Normalizer.mean, Normalizer.seen)}'),
        ("torch.load(FILE)", "torch.load(FILE, weights_only=False)"),
        ('state["step"]\n', 'state["step"]\n        Normalizer.mean, Normalizer.seen = state["kept"]\n'),
    ],
    "closure_counter": [
        ("def make_warmup(base):\n    count = 0", "def make_warmup(base, count):\n    count = count"),
        ("rate = make_warmup(3e-3)\n", ""),
        ("while done", "rate = make_warmup(3e-3, done)\nwhile done"),
    ],
    "curriculum": [
        ('"step": step}', '"step": step, "level": level}'),
        ("    step = json.loads", "    stored = json.loads"),
        ('.read_text())["step"]', '.read_text())\n    step, level = stored["step"], stored["level"]'),
    ],
    "early_stopping": [
        ('"e": e + 1}', '"e": e + 1, "kept": [stopper.best, stopper.bad]}'),
        ('z["e"]\n', 'z["e"]\n    stopper.best, stopper.bad = z["kept"]\n'),
    ],
    "index_list": [
        ('"n": n + 1}', '"n": n + 1, "order": order}'),
        ("random.shuffle(order)\n", 'random.shuffle(order)\nif last.exists():\n    order = c["order"]\n'),
    ],
    "local_cosine": [
        ('"epoch": epoch + 1}', '"epoch": epoch + 1, "ticks": ticks}'),
        ('old["epoch"]\n', 'old["epoch"]\n        ticks = old["ticks"]\n'),
    ],
    "loss_list": [
        ('"i": i + 1}', '"i": i + 1, "p": past}'),
        ('saved["i"]\n', 'saved["i"]\n        past = saved["p"]\n'),
    ],
    "own_generator": [
        ('"at": at + 1}', '"at": at + 1, "rng": rng.bit_generator.state}'),
        ('d["at"]\n', 'd["at"]\n    rng.bit_generator.state = d["rng"]\n'),
    ],
    "priorities": [
        ('"k": k}', '"k": k, "p": sampler.priorities}'),
        ('s["k"]\n', 's["k"]\n        sampler.priorities = s["p"]\n'),
    ],
    "replay_deque": [
        ('"tick": tick + 1', '"tick": tick + 1, "memory": agent.memory'),
        ('kept["tick"]\n', 'kept["tick"]\n    agent.memory = kept["memory"]\n'),
    ],
    "swa_model": [
        ('"epoch": epoch + 1}', '"epoch": epoch + 1, "swa": swa.state_dict()}'),
        ('blob["epoch"]\n', 'blob["epoch"]\n    swa.load_state_dict(blob["swa"])\n'),
    ],
}
"""What makes each checkpoint complete."""


def verify(text: str) -> dict[str, Any]:
    """Run the command on a script; return what it says, and how long it took."""
    words = [sys.executable, "-m", "truestep", "verify", "--kill", "--format", "json", "train.py"]
    begun = perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(text)
        done = subprocess.run(
            words, cwd=folder, env=os.environ, capture_output=True, text=True, check=False, timeout=MAX_S
        )
    try:
        said = json.loads(done.stdout)
    except ValueError:
        said = {"same": None, "first_difference": None, "reason": done.stderr[-2000:]}
    return {**said, "seconds": round(perf_counter() - begun, 1)}


def complete(name: str, text: str) -> str:
    """Return the script with a checkpoint that has everything."""
    for before, after in REPAIRS[name]:
        if before not in text:
            raise SystemExit(f"{name}: there is no {before!r} to repair")
        text = text.replace(before, after, 1)
    return text


def judge(path: Path) -> dict[str, Any]:
    """Verify a script and its complete copy, and hold both against what is known."""
    text = path.read_text()
    cause, *variables = text.splitlines()[0].removeprefix("# lost: ").split()
    ours, theirs = verify(text), verify(complete(path.stem, text))
    found = ours["first_difference"] or {}
    proof = next((item for item in found.get("evidence", ()) if " put back " in item), "")
    named = sorted(re.findall(r"`([^`]+)`", proof))
    is_right = found.get("name") == cause and named == sorted(variables)
    print(f"{path.stem}: {'right' if is_right else 'WRONG'}, complete {theirs['same']}", file=sys.stderr)
    return {
        "script": path.stem,
        "lost": [cause, *sorted(variables)],
        "named": [found.get("name"), *named],
        "proved": found.get("proved", False),
        "right": is_right,
        "complete": {True: "same", False: "different"}.get(theirs["same"], "inconclusive"),
        "found_in_complete": theirs["first_difference"],
        "reason": ours.get("reason") or theirs.get("reason"),
        "seconds": ours["seconds"],
        "complete_seconds": theirs["seconds"],
    }


def render(rows: list[dict[str, Any]]) -> Table:
    """The results as a table."""
    table = Table(title="what a checkpoint lacks", title_justify="left")
    for name in ("script", "lost", "named", "proved", "complete copy", "s"):
        table.add_column(name)
    for row in rows:
        named = " ".join(map(str, row["named"]))
        table.add_row(
            row["script"],
            " ".join(row["lost"]),
            named if row["right"] else f"[red]{named}[/]",
            "yes" if row["proved"] else "no",
            row["complete"] if row["complete"] == "same" else f"[red]{row['complete']}[/]",
            str(row["seconds"]),
        )
    return table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", help="scripts, with commas between them")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    args = parser.parse_args()
    known = {path.stem: path for path in sorted(FOLDER.glob("*.py"))}
    names = args.only.split(",") if args.only else list(known)
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"no such script: {', '.join(unknown)}. Choose from {', '.join(known)}")
    rows = [judge(known[name]) for name in names]
    num_right = sum(row["right"] for row in rows)
    num_wrong = sum(row["proved"] and not row["right"] for row in rows)
    num_flagged = sum(row["complete"] == "different" for row in rows)
    holds = num_right >= LEAST_RIGHT * len(rows) and not num_wrong and not num_flagged
    told = {"scripts": len(rows), "right": num_right, "proved_wrong": num_wrong, "flagged": num_flagged}
    if args.json:
        print(json.dumps({**told, "holds": holds, "rows": rows}))
    else:
        Console().print(render(rows))
        print(", ".join(f"{name} {value}" for name, value in told.items()))
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
