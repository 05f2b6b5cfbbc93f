"""Claim: `truestep check` changes nothing about a script: what it prints, writes, computes, and how it ends.

Runs each script bare and as `check` starts it, and compares standard output and error, the exit code, all
files with their bytes and modes, the weights of all models in `__main__`, the states of the generators, and
for scripts that are not odd ones the calls of each class of modules. Scripts: those of tests/watch/odd; some
of the bug corpus, others with another --turn; examples; and programs that are put together by chance.
A script of the last three kinds that differs from itself, run bare twice, is left out and named.

With --threads N, each odd script has two more threads that run other models, and runs N times under `check`:
no run may end by a signal or hang, and none may differ from a script that is equal to itself, run bare.
Exit code: 0 all are equal, 1 one differs.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from measure import Claim, Row, Sheet, report

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests import preloaded  # noqa: E402
from tests.watch.both import Case, Outcome, differences, odd_cases, run, try_case  # noqa: E402

MIN_TRIED = 100
UNEQUAL_ANYWAY = {"printing_thread"}
"""Odd scripts whose output differs from run to run; the tests compare what must not."""
EXAMPLES = {"accelerate_digits": "", "lightning_digits": ""}
"""Examples that do not say how long they took, and the arguments that make them short."""

MODELS = (
    "nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))",
    "nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.GELU(), nn.Dropout(0.3), nn.Linear(8, 3))",
    "nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 4, 3), nn.Flatten(), nn.Linear(8, 3))",
    "nn.Sequential(nn.Unflatten(1, (2, 2)), nn.TransformerEncoderLayer(2, 1), nn.Flatten(), nn.Linear(4, 3))",
)
OPTIMIZERS = (
    "torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)",
    "torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True)",
    "torch.optim.RMSprop([{'params': [item]} for item in model.parameters()], lr=0.01)",
)
LOADERS = (
    "[(x[i : i + 8], y[i : i + 8]) for i in range(0, 96, 8)]",
    "torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 8, shuffle=True)",
    "torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), 8, num_workers=1)",
)
SETTINGS = (
    "model.register_forward_hook(lambda module, args, out: out * 1.01)",
    "schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5); after.append(schedule.step)",
    "after.append(lambda: print(round(loss.item(), 6), torch.rand(1).item()))",
    "before.append(lambda: torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5))",
    "before.append(lambda: print(sum(item.grad.norm().item() for item in model.parameters())))",
    "after.append(lambda: torch.save(model.state_dict(), f'step{len(losses)}.pt'))",
    "after.append(lambda: model.eval() and model(x[:4]).sum().item() and model.train())",
    "after.append(lambda: losses.append(random.random() + np.random.rand()))",
    "before.append(lambda: print(len(torch.autograd.grad(model(x[:8]).sum(), list(model.parameters())))))",
    "average = copy.deepcopy(model); after.append(lambda: average.load_state_dict(model.state_dict()))",
    "torch.set_default_dtype(torch.float64); x = x.double(); model.double()",
)
ENDS = (
    "",
    "",
    "sys.exit(3)",
    "raise ValueError('no')",
    "model(x[:, :2])",
    "sys.exit('bye')",
    "loss.backward()",
    "os._exit(7)",
)


def make(seed: int) -> Case:
    """Return a program that is put together by chance."""
    draw = random.Random(seed)
    chosen = draw.sample(SETTINGS, 3)
    text = f"""
import copy, os, random, sys
import numpy as np
import torch
from torch import nn
torch.manual_seed({seed})
x, y = torch.randn(96, 4), torch.randint(0, 3, (96,))
model, losses, before, after = {draw.choice(MODELS)}, [], [], []
optimizer = {draw.choice(OPTIMIZERS)}
{chr(10).join(chosen)}
for a, b in {draw.choice(LOADERS)}:
    loss = nn.functional.cross_entropy(model(a), b)
    losses.append(loss.item())
    optimizer.zero_grad({draw.choice(("", "set_to_none=False"))})
    loss.backward()
    for act in before: act()
    optimizer.step()
    for act in after: act()
print(losses[-1], len(losses))
{draw.choice(ENDS)}
"""
    return Case(name=f"chance/{seed}", text=text, is_odd=False)


def choose(turn: int, num_corpus: int, num_made: int) -> dict[str, list[Case]]:
    """Return the scripts to try, by where they are from."""
    corpus = sorted(
        path for path in (ROOT / "tests" / "corpus").rglob("*.py") if path.parent.name != "corpus"
    )
    stride = max(1, len(corpus) // num_corpus)
    chosen = corpus[turn % stride :: stride][:num_corpus]
    return {
        "odd": [case for case in odd_cases() if case.name not in UNEQUAL_ANYWAY],
        "corpus": [
            Case(name=f"{path.parent.name}/{path.stem}", text=path.read_text(), is_odd=False)
            for path in chosen
        ],
        "examples": [
            Case(name=name, text=_example(name) + f"\n# arguments: {words}\n# timed: runs\n", is_odd=False)
            for name, words in EXAMPLES.items()
        ],
        "by chance": [make(turn * num_made + number) for number in range(num_made)],
    }


def _example(name: str) -> str:
    return (ROOT / "examples" / f"{name}.py").read_text()


def try_both(case: Case) -> list[str] | None:
    """Return the differences; None for a script that is not an odd one and differs from itself run bare."""
    with tempfile.TemporaryDirectory(prefix="truestep-both-") as folder:
        found, bare, _ = try_case(case, Path(folder))
        if found and not case.is_odd:
            again = run(case, Path(folder), is_watched=False)
            return None if differences(case, bare, again) else found
        return found


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A script with threads beside it, several times under `check`."""

    name: str
    crashes: list[str]
    """How each run ended that was killed by a signal or did not end, where a bare run did neither."""
    differing: list[str] | None
    """What is not as bare; None if bare runs differ from each other."""


def try_with_threads(case: Case, num_repeats: int) -> Tried:
    """Run a script with two more threads twice bare, then as often as asked under `check`."""
    case = replace(case, has_threads=True)
    with tempfile.TemporaryDirectory(prefix="truestep-both-") as folder:
        bare = [_run_or_hang(case, Path(folder), is_watched=False) for _ in range(2)]
        watched = [_run_or_hang(case, Path(folder), is_watched=True) for _ in range(num_repeats)]
        differing = [text for item in watched for text in _differences(case, bare[0], item)]
        if differing:
            bare += [_run_or_hang(case, Path(folder), is_watched=False) for _ in range(num_repeats)]
    codes = {None if item is None else item.code for item in bare}
    ends = [None if item is None else item.code for item in watched]
    crashes = [
        "did not end" if code is None else f"ended by signal {-code}"
        for code in ends
        if (code is None or code < 0) and code not in codes
    ]
    is_equal = not any(_differences(case, bare[0], item) for item in bare[1:])
    return Tried(name=case.name, crashes=crashes, differing=differing if is_equal else None)


def _run_or_hang(case: Case, folder: Path, *, is_watched: bool) -> Outcome | None:
    """Return what a run leaves; None if it does not end."""
    try:
        return run(case, folder, is_watched=is_watched)
    except subprocess.TimeoutExpired:
        return None


def _differences(case: Case, bare: Outcome | None, other: Outcome | None) -> list[str]:
    if bare is None or other is None:
        return [] if bare is other else ["one run ends, and the other does not"]
    return differences(case, bare, other)


def report_threads(options: argparse.Namespace) -> int:
    """Try all odd scripts with threads beside them."""
    names = options.only.split(",")
    cases = [case for case in odd_cases() if any(name in case.name for name in names)]
    with ThreadPoolExecutor(options.jobs) as pool:
        tried = [*pool.map(lambda case: try_with_threads(case, options.threads), cases)]
    left_out = [item.name for item in tried if item.differing is None]
    rows: list[Row] = [
        {"script": item.name, "difference": text}
        for item in tried
        for text in (*item.crashes, *sorted(set(item.differing or ())))
    ]
    note = f"not compared, as bare runs differ: {', '.join(left_out) or 'none'}"
    num = len(cases) * options.threads
    claims = [
        Claim(
            text=f"of {num} runs beside two threads, ended by a signal or hung only under `check`",
            found=float(sum(len(item.crashes) for item in tried)),
            limit=0.0,
        ),
        Claim(
            text=f"scripts with threads that `check` changes, of {len(cases) - len(left_out)} compared",
            found=float(sum(bool(item.differing) for item in tried)),
            limit=0.0,
        ),
    ]
    sheets = [Sheet(title="Differences", rows=rows, note=note)]
    return report("non_interference", sheets=sheets, claims=claims, as_json=options.json)


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--turn", type=int, default=0, help="which scripts of the corpus, and which programs")
    parser.add_argument("--corpus", type=int, default=16, help="how many scripts of the corpus")
    parser.add_argument("--made", type=int, default=12, help="how many programs put together by chance")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at a time")
    parser.add_argument("--preloaded", action="store_true", help="fork from a Python that has torch imported")
    parser.add_argument("--threads", type=int, default=0, metavar="N", help="see above")
    parser.add_argument("--only", default="", help="only scripts whose name has this in it")
    return parser.parse_args()


def main() -> int:
    options = _read_options()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory(prefix="truestep-tests-") as folder:
        if options.preloaded:
            preloaded.install(Path(folder))
            preloaded.use(Path(folder))
        return report_threads(options) if options.threads else report_all(options)


def report_all(options: argparse.Namespace) -> int:
    """Try scripts of all kinds as they are."""
    chosen = choose(options.turn, options.corpus, options.made)
    pairs = [(kind, case) for kind in chosen for case in chosen[kind] if options.only in case.name]
    with ThreadPoolExecutor(options.jobs) as pool:
        found = [*pool.map(lambda pair: try_both(pair[1]), pairs)]
    left_out = [case.name for (_, case), texts in zip(pairs, found, strict=True) if texts is None]
    tried = Counter(kind for (kind, _), texts in zip(pairs, found, strict=True) if texts is not None)
    equal = Counter(kind for (kind, _), texts in zip(pairs, found, strict=True) if texts == [])
    total = Counter(kind for kind, _ in pairs)
    rows: list[Row] = [
        {"from": kind, "tried": tried[kind], "equal": equal[kind], "left out": total[kind] - tried[kind]}
        for kind in total
    ]
    note = f"left out, as two bare runs differ: {', '.join(left_out) or 'none'}"
    sheets = [Sheet(title="Scripts", rows=rows, num_digits=0, note=note)]
    rows = [
        {"script": case.name, "difference": text}
        for (_, case), texts in zip(pairs, found, strict=True)
        for text in texts or ()
    ]
    if rows:
        sheets.append(Sheet(title="Differences", rows=rows))
    num, num_missing = tried.total(), 0 if options.only else max(0, MIN_TRIED - tried.total())
    claims = [
        Claim(text="scripts that `check` changes in any way", found=float(num - equal.total()), limit=0.0),
        Claim(text=f"scripts missing to {MIN_TRIED}", found=float(num_missing), limit=0.0),
    ]
    return report("non_interference", sheets=sheets, claims=claims, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
