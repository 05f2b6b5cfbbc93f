"""Claim: `check` finds slow faults in the course of a run, and reports none in repaired twins.

Twenty scripts with one planted fault each: loss spikes, losses that diverge, memory that grows in the process
or in loader workers, and steps that become slower. Each has a twin in which the fault's line is repaired. For
spikes the step that is named is compared with the one in which the fault was planted.
Exit code: 0 all claims hold, 1 one fails, 2 one cannot be told.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from measure import Claim, Row, Sheet, report

ONSET = 120
HEAD = """
import json, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset
torch.manual_seed(0)
torch.set_num_threads(1)
"""
REGRESSION = """
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(200):
    x = torch.randn(16, 8)
    y = x.sum(1, keepdim=True)
    {fault}
    loss = F.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
"""
LANGUAGE = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 16), nn.Linear(32, 20)
        self.rnn = nn.GRU(16, 32, batch_first=True)

    def forward(self, tokens):
        return self.head(self.rnn(self.embed(tokens))[0])

model = Model()
optimizer = torch.optim.{optimizer}
for step in range(400):
    start = torch.randint(0, 20, (8, 1))
    tokens = (start + torch.arange(12)) % 20
    {fault}
    scores = model(tokens[:, :-1])
    loss = F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
IMAGES = """
model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
kept = {kept}
for step in range(320):
    y = torch.arange(64) % 2
    x = torch.randn(64, 1, 8, 8) + y[:, None, None, None]
    out = model(x)
    loss = F.cross_entropy(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {fault}
"""


@dataclass(frozen=True, kw_only=True)
class Case:
    """A fault and its repair, as what is put into a script."""

    code: str
    name: str
    script: str
    fault: dict[str, str]
    repair: dict[str, str]


def case(code: str, name: str, *, script: str, fault: str, repair: str = "pass", **both: str) -> Case:
    """Return a case whose fault is one line."""
    return Case(
        code=code, name=name, script=script, fault={"fault": fault, **both}, repair={"fault": repair, **both}
    )


SGD, ADAM = "SGD(model.parameters(), lr=0.5)", "AdamW(model.parameters(), lr=3e-3)"
LENGTH = "return torch.full((8,), len({}) / 50)"
CASES = [
    case("LONG01", "damaged target", script=REGRESSION, fault=f"if step == {ONSET}: y[3] = 1e5"),
    case("LONG01", "damaged input", script=REGRESSION, fault=f"if step == {ONSET}: x[3] *= 1e4; y[3] = 0"),
    case("LONG01", "wrong unit", script=REGRESSION, fault=f"if step == {ONSET}: y *= 1000"),
    case(
        "LONG01",
        "one wild rate",
        script=REGRESSION,
        fault=f"optimizer.param_groups[0]['lr'] = 3.0 if step == {ONSET - 1} else 1e-3",
        repair="optimizer.param_groups[0]['lr'] = 1e-3",
    ),
    case(
        "LONG02",
        "restart at a high rate",
        script=LANGUAGE,
        optimizer=SGD,
        fault="if step == 200: optimizer.param_groups[0]['lr'] = 200.0",
        repair="if step == 200: optimizer.param_groups[0]['lr'] = 0.2",
    ),
    case(
        "LONG02",
        "rate grows",
        script=LANGUAGE,
        optimizer=ADAM,
        fault="optimizer.param_groups[0]['lr'] = 3e-3 * 1.1 ** max(0, step - 150)",
        repair="optimizer.param_groups[0]['lr'] = 3e-3 * 0.99 ** max(0, step - 150)",
    ),
    case(
        "LONG02",
        "sign of the gradient",
        script=LANGUAGE,
        optimizer="AdamW(model.parameters(), lr=3e-3, maximize=False)",
        fault="if step == 220: optimizer.param_groups[0]['maximize'] = True",
    ),
    case(
        "LONG02",
        "noise in the weights",
        script=LANGUAGE,
        optimizer=ADAM,
        fault="if step >= 200: [p.data.add_(torch.randn_like(p), alpha=0.3) for p in model.parameters()]",
    ),
    case("LONG03", "outputs", script=IMAGES, kept="[]", fault="kept.append(torch.cat([x.flatten(1)] * 40))"),
    case(
        "LONG03",
        "batches by step",
        script=IMAGES,
        kept="{}",
        fault="kept[step] = (x.repeat(30, 1, 1, 1), out.detach())",
        repair="kept[0] = (x.repeat(30, 1, 1, 1), out.detach())",
    ),
    case(
        "LONG03",
        "history of gradients",
        script=IMAGES,
        kept="[]",
        fault="kept.append([p.grad.repeat(200) if p.dim() == 1 else p.grad.flatten().repeat(200) "
        "for p in model.parameters()])",
        repair="kept.append([float(p.grad.norm()) for p in model.parameters()])",
    ),
    case(
        "LONG03",
        "Python objects",
        script=IMAGES,
        kept="[]",
        fault="kept.append(x.repeat(6, 1, 1, 1).flatten().tolist())",
        repair="kept = x.repeat(6, 1, 1, 1).flatten().tolist()",
    ),
    case(
        "LONG05",
        "sorted history",
        script=IMAGES,
        kept="[]",
        fault="kept += [loss.item()] * 400; average = sum(sorted(kept)) / len(kept)",
        repair="kept += [loss.item()] * 400; average = kept[-1]",
    ),
    case(
        "LONG05",
        "file written whole",
        script=IMAGES,
        kept="[]",
        fault="kept += out.flatten().tolist() * 4; open('log.json', 'w').write(json.dumps(kept))",
        repair="open('log.json', 'a').write(json.dumps(out.flatten().tolist() * 4))",
    ),
    case(
        "LONG05",
        "stacked losses",
        script=IMAGES,
        kept="[]",
        fault="kept += [loss.detach()] * 50; average = torch.stack(kept).median()",
        repair="kept = [loss.detach()] * 50; average = torch.stack(kept).median()",
    ),
    case(
        "LONG05",
        "searched list",
        script=IMAGES,
        kept="[]",
        fault="kept += range(step * 64, step * 64 + 64); known = [i in kept for i in kept[-30:]]",
        repair="kept = list(range(64)); known = [i in kept for i in kept[-30:]]",
    ),
]


def check(text: str) -> list[dict[str, object]]:
    """Return what `check` finds of this family in a script."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(HEAD + text)
        words = [
            sys.executable,
            "-m",
            "truestep",
            "check",
            "--select",
            "LONG",
            "--format",
            "json",
            "train.py",
        ]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=1200)
    if done.returncode not in (0, 1):
        raise SystemExit(f"check failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}\n{text}")
    found: list[dict[str, object]] = json.loads(done.stdout)["findings"]
    return found


def examine(item: Case) -> Row:
    """Run a script and its twin."""
    found, spared = check(item.script.format(**item.fault)), check(item.script.format(**item.repair))
    own = [finding for finding in found if finding["code"] == item.code]
    is_spike = item.code == "LONG01" and own
    return {
        "code": item.code,
        "fault": item.name,
        "found": float(bool(own)),
        "delay in steps": int(str(own[0]["step"])) - (ONSET + 1) if is_spike else None,
        "also": " ".join(sorted({str(finding["code"]) for finding in found} - {item.code})),
        "in the twin": " ".join(sorted(str(finding["code"]) for finding in spared)),
    }


def main() -> int:
    """Run all cases, or some."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="cases whose code or name has this in it")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = [examine(item) for item in CASES if given.only in f"{item.code} {item.name}"]
    claims = [
        Claim(text="faults that are missed", found=sum(1.0 for row in rows if not row["found"]), limit=0.0),
        Claim(text="twins with a finding", found=sum(1.0 for row in rows if row["in the twin"]), limit=0.0),
    ]
    return report(
        "slow_faults",
        sheets=[Sheet(title="slow faults and their twins", rows=rows, num_digits=3)],
        claims=claims,
        as_json=given.json,
    )


if __name__ == "__main__":
    sys.exit(main())
