"""Claim: observing a script takes at most 2 % more memory than the script, from 100 million parameters on.

A language model is trained for some steps: bare, under `check`, under `verify`, and with `Run`. The snapshots
of `Run` are written while training waits, or in the background from one copy of the state, which is not
counted. `verify` is shown and not claimed: it holds two processes that have imported torch, whatever the
model. The memory of a command is the peak of what all its processes hold together, shared pages counted
once (PSS), sampled ten times a second. The peak of a script differs from run to run: all ways take turns
--repeats times, and the medians are compared. With --device toy also the peak on the test accelerator.
Exit code: 0 all claims hold, 1 one fails, 2 one cannot be told.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from measure import Claim, Row, Sheet, report

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.accelerator import environment
from truestep.watch.evidence import kernel

MAX_RATIO, LARGE = 1.02, 100
COPYING, COPY_BYTES = "Run in background", 12
"""The way that copies the state, and its bytes per parameter: weights and AdamW's two averages."""
SIZES = {1: (128, 4, 512), 124: (768, 12, 50257), 500: (1280, 24, 24576)}
"""Millions of parameters: width, layers and words."""
MODEL = """
import os, resource, sys, torch
from torch import nn
WIDTH, LAYERS, WORDS, DEVICE, STEPS = {width}, {layers}, {words}, "{device}", {steps}
torch.manual_seed(0)
torch.set_num_threads(2)

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.02)

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.head(self.blocks(self.embed(tokens), mask=mask, is_causal=True))

tokens = torch.randint(0, WORDS, (STEPS * 8, 33))
"""
BARE = """
model = Model().to(DEVICE)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
for batch in tokens.split(8):
    batch = batch.to(DEVICE)
    scores = model(batch[:, :-1])
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
PEAK = """
if DEVICE != "cpu":
    print("peak on the device", torch.accelerator.max_memory_allocated(), file=sys.stderr)
"""
RUN = """
import truestep as ts
run = ts.Run("{folder}", seed=0, lanes=1, snapshots=ts.Snapshots(in_background={in_background}))
model = run.place(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
run.track(model=model, optimizer=optimizer)
data = torch.utils.data.TensorDataset(tokens)
for step in run.steps(ts.Loader(data, batch_size=8), steps=STEPS):
    for (batch,) in step:
        scores = model(batch[:, :-1])
        step.backward(nn.functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten()))
    step.update(optimizer)
"""


class Tree:
    """Samples the memory of a process and of all that it starts."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process, self._is_over = process, threading.Event()
        self.peak_bytes = 0
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    def _sample(self) -> None:
        while not self._is_over.wait(0.1):
            before = list(family(self._process.pid))
            now = sum(map(pss_of, before))
            # A process that begins or ends in between changes the others' shares of what they hold together.
            if before == list(family(self._process.pid)):
                self.peak_bytes = max(self.peak_bytes, now)

    def end(self) -> int:
        """Stop sampling and return the peak."""
        self._is_over.set()
        self._thread.join()
        return self.peak_bytes


def family(pid: int) -> Iterator[int]:
    """Yield a process and all under it."""
    yield pid
    for child in kernel.children_of(pid):
        yield from family(child)


def pss_of(pid: int) -> int:
    """Return what a process holds, its share of shared pages included."""
    try:
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0
    return int(found[1]) * 1024 if found else 0


def measure(words: Sequence[str], folder: Path, *, device: str) -> dict[str, Any]:
    """Run a command and return its peak, its processor time and what it printed."""
    # Without the test accelerator where it is not asked for: a Run would train there.
    variables = {**os.environ, **({} if device == "cpu" else environment())}
    process = subprocess.Popen(
        words, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    tree = Tree(process)
    begun = os.times()
    printed, errors = process.communicate()
    used = os.times()
    if process.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(words)} failed:\n{errors[-2000:]}{printed[-2000:]}")
    device = re.search(r"peak on the device (\d+)", errors + printed)
    return {
        "peak_gb": tree.end() / 1e9,
        "cpu_s": used.children_user + used.children_system - begun.children_user - begun.children_system,
        "device_gb": int(device[1]) / 1e9 if device else 0.0,
        "printed": printed,
    }


def examine(size: int, *, device: str, steps: int, ways: Sequence[str], repeats: int) -> list[Row]:
    """Return a row for each way to run a model of this size."""
    width, layers, words = SIZES[size]
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = MODEL.format(width=width, layers=layers, words=words, device=device, steps=steps)
        (folder / "train.py").write_text(text + BARE + PEAK)
        (folder / "run.py").write_text(text + RUN.format(folder="waiting", in_background=False) + PEAK)
        (folder / "copying.py").write_text(text + RUN.format(folder="copying", in_background=True) + PEAK)
        commands = {
            "bare": [sys.executable, "train.py"],
            "check": [sys.executable, "-m", "truestep", "check", "--format", "json", "train.py"],
            "verify": [sys.executable, "-m", "truestep", "verify", "train.py"],
            "Run": [sys.executable, "run.py"],
            COPYING: [sys.executable, "copying.py"],
        }
        for _ in range(repeats):
            for way in ways:
                runs[way].append(measure(commands[way], folder, device=device))
    bare = {key: median_of(runs["bare"], key) for key in ("peak_gb", "device_gb")}
    return [
        {
            "parameters": f"{size}M",
            "way": way,
            "peak_gb": median_of(found, "peak_gb"),
            "from": min(run["peak_gb"] for run in found),
            "to": max(run["peak_gb"] for run in found),
            "ratio": (median_of(found, "peak_gb") - copy_gb(way, size)) / bare["peak_gb"],
            "cpu_s": median_of(found, "cpu_s"),
            "device_gb": median_of(found, "device_gb") or None,
            "device ratio": median_of(found, "device_gb") / bare["device_gb"] if bare["device_gb"] else None,
            "rules": rules_in(found[-1]["printed"]) if way == "check" else "",
        }
        for way, found in runs.items()
    ]


def median_of(runs: Sequence[dict[str, Any]], key: str) -> float:
    """Return the median of one measurement."""
    return float(statistics.median(run[key] for run in runs))


def copy_gb(way: str, size: int) -> float:
    """Return the copy of the state that a way makes by its own description: it is not counted."""
    return COPY_BYTES * size / 1e3 if way == COPYING else 0.0


def rules_in(printed: str) -> str:
    """Return how many rules ran, and what was not checked."""
    answer = json.loads(printed)
    missing = [code for code in answer["not_observed"] if code.startswith("PROBE")]
    return f"did not apply: {len(answer['not_observed'])}, of these {' '.join(missing) or 'no PROBE rule'}"


def claims_of(rows: Sequence[Row]) -> list[Claim]:
    """Return what is claimed."""
    large = [row for row in rows if int(str(row["parameters"])[:-1]) >= LARGE]
    return [
        Claim(
            text=f"peak of {way} over bare, from {LARGE}M parameters on",
            found=max((float(row[key] or 0) for row in large if row["way"] == way), default=None),
            limit=MAX_RATIO,
        )
        for way in sorted({str(row["way"]) for row in rows} - {"bare", "verify"})
        for key in ("ratio", "device ratio")
        if any(row["way"] == way and row[key] is not None for row in large)
    ]


def main() -> int:
    """Run what is asked for and print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default="1,124,500", help="millions of parameters, with commas")
    parser.add_argument("--ways", default=f"bare,check,verify,Run,{COPYING}")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows: list[Row] = []
    for size in map(int, given.sizes.split(",")):
        rows += examine(
            size,
            device=given.device,
            steps=given.steps,
            ways=given.ways.split(","),
            repeats=given.repeats,
        )
    sheets = [Sheet(title="memory and processor time", rows=rows, num_digits=3)]
    return report("watch_memory", sheets=sheets, claims=claims_of(rows), as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
