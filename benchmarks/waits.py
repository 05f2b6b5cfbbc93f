"""Claim: on an accelerator, `check` and `Run` cause no wait for the device after the first steps.

The same small task is trained on the test accelerator by a plain loop, with `Run`, Accelerate, Lightning and
the Hugging Face Trainer, each alone and under `check`. The device counts each wait of the host.
Exit code: 0 all claims hold, 1 one fails, 2 one cannot be told.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from measure import Claim, Row, Sheet, report

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.accelerator import environment

NUM_STEPS, NUM_FIRST = 60, 9
"""Steps in all, and those that `check` looks at closely, with what the last of them has changed."""
TASK = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(7)
x = torch.rand(960, 16)
data = TensorDataset(x, (x.sum(1) > 8).long())
model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 2))
there = torch.device("toy:0")
"""
LOADER = 'loader = DataLoader(data, batch_size=16, shuffle=True, pin_memory=True, pin_memory_device="toy")\n'
PLAIN = """
model.to(there)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for rows, labels in loader:
    loss = nn.functional.cross_entropy(
        model(rows.to(there, non_blocking=True)), labels.to(there, non_blocking=True)
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
RUN = """
import truestep as ts
run = ts.Run("run", seed=7, lanes=1)
model = run.place(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused={fused})
run.track(model=model, optimizer=optimizer)
for step in run.steps(ts.Loader(data, batch_size=16), steps=60):
    for rows, labels in step:
        step.backward(nn.functional.cross_entropy(model(rows), labels))
    step.update(optimizer)
"""
ACCELERATE = """
from accelerate import Accelerator, PartialState
PartialState().device = there  # Accelerate knows no device of this name
accelerator = Accelerator()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for rows, labels in loader:
    loss = nn.functional.cross_entropy(model(rows), labels)
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
"""
LIGHTNING = """
import lightning as L
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.strategies import SingleDeviceStrategy

class Toy(Accelerator):
    def setup_device(self, device): pass
    def teardown(self): pass
    def get_device_stats(self, device): return {}
    @staticmethod
    def parse_devices(devices): return [0]
    @staticmethod
    def get_parallel_devices(devices): return [there]
    @staticmethod
    def auto_device_count(): return 1
    @staticmethod
    def is_available(): return True
    @staticmethod
    def name(): return "toy"

class Task(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = model
    def training_step(self, batch, index):
        rows, labels = batch
        return nn.functional.cross_entropy(self.model(rows), labels)
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

strategy = SingleDeviceStrategy(device=there, accelerator=Toy())
trainer = L.Trainer(strategy=strategy, max_epochs=1, logger=False, enable_checkpointing=False,
                    enable_progress_bar=False, enable_model_summary=False)
trainer.fit(Task(), loader)
"""
TRAINER = """
from transformers import Trainer, TrainingArguments

class Task(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = model
    def forward(self, rows, labels):
        scores = self.model(rows)
        return {"loss": nn.functional.cross_entropy(scores, labels), "logits": scores}

class Named(torch.utils.data.Dataset):
    def __len__(self): return len(data)
    def __getitem__(self, index): return dict(zip(("rows", "labels"), data[index]))

args = TrainingArguments("out", per_device_train_batch_size=16, num_train_epochs=1, report_to=[],
                         save_strategy="no", logging_steps=500, disable_tqdm=True)
args.device  # the Trainer knows no device of this name either
vars(args)["_setup_devices"] = args.distributed_state.device = there
Trainer(model=Task(), args=args, train_dataset=Named()).train()
"""
WAYS = {
    "plain loop": LOADER + PLAIN,
    "Run, fused optimizer": RUN.format(fused=True),
    "Run": RUN.format(fused=None),
    "Accelerate": LOADER + ACCELERATE,
    "Lightning": LOADER + LIGHTNING,
    "Hugging Face Trainer": TRAINER,
}
DECIDING = {"Run": 1.0}
"""Whether gradients are finite decides about the step: one wait, without a fused optimizer."""


def count(text: str, *words: str) -> tuple[float, float, Counter[str]]:
    """Return the waits per step among the first steps and after them, and where the later ones come from."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.py").write_text(TASK + text)
        log = folder / "log"
        variables = {**os.environ, **environment(TOY_LOG=str(log))}
        command = [sys.executable, *words, "train.py"]
        done = subprocess.run(
            command, cwd=folder, env=variables, capture_output=True, text=True, timeout=600, check=False
        )
        if done.returncode not in (0, 1):
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-3000:]}")
        processes = [json.loads(line) for line in log.read_text().splitlines()]
    (trained,) = [process for process in processes if process["steps"]]
    if trained["steps"] != NUM_STEPS or trained["operators"] < NUM_STEPS:
        raise SystemExit(f"{trained['steps']} steps instead of {NUM_STEPS}, or not on the device")
    early = [wait for wait in trained["waits"] if wait["step"] < NUM_FIRST]
    later = [wait for wait in trained["waits"] if NUM_FIRST <= wait["step"] < NUM_STEPS]
    places = Counter(place_of(wait) for wait in later)
    return len(early) / NUM_FIRST, len(later) / (NUM_STEPS - NUM_FIRST), places


def place_of(wait: dict[str, Any]) -> str:
    """Return the innermost line outside of torch that led to a wait."""
    own = [(file, line) for file, line in wait["frames"] if "/torch/" not in file and file[0] != "<"]
    return f"{'/'.join(Path(own[0][0]).parts[-2:])}:{own[0][1]}" if own else "torch"


def main() -> int:
    """Count and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", help="ways, with commas between them")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    names = given.only.split(",") if given.only else list(WAYS)
    rows: list[Row] = []
    claims: list[Claim] = []
    for name in names:
        alone_first, alone, places = count(WAYS[name])
        checked_first, checked, _ = count(WAYS[name], "-m", "truestep", "check")
        rows.append(
            {
                "way": name,
                "alone, first steps": alone_first,
                "alone, later": alone,
                "check, first steps": checked_first,
                "check, later": checked,
                "waits from": ", ".join(f"{place} {num}" for place, num in places.most_common(4)),
            }
        )
        claims.append(Claim(text=f"waits that check adds: {name}", found=checked - alone, limit=0.0))
        if name.startswith("Run"):
            claims.append(Claim(text=f"waits of {name}", found=alone, limit=DECIDING.get(name, 0.0)))
    sheet = Sheet(title="waits per step", rows=rows, num_digits=2)
    return report("waits", sheets=[sheet], claims=claims, as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
