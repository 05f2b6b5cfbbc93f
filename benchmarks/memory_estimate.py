"""Claim: before the first step, `check` expects the peak of memory on a device within 10 %, on 22 models.

Each script trains a small model for four steps on the test accelerator, which counts its memory exactly. The
script is run bare, which gives the peak, and under `check`, which gives what was expected before the first
step of each optimizer. "First passes" is the peak of the first forward and backward passes alone: what one
would expect without an account of what comes later.
Exit code: 0 all claims hold, 1 one fails, 2 one cannot be told.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from measure import Claim, Row, Sheet, report

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.accelerator import environment

LIMIT = 0.10
HEAD = """
import sys, torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
torch.manual_seed(0)
torch.set_num_threads(1)
def mlp(*sizes):
    layers = [item for a, b in zip(sizes, sizes[1:]) for item in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*layers[:-1])
def numbers(*shape):
    return torch.randn(*shape, device="toy")
def classes(num, *shape):
    return torch.randint(0, num, shape, device="toy")
"""
BARE = """
import gc, json, sys, torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
accelerator, first = torch.accelerator, []
register_optimizer_step_pre_hook(lambda *_: first.append(accelerator.max_memory_allocated()))
for name in sys.argv[1:]:
    gc.collect()
    assert not accelerator.memory_allocated()
    accelerator.reset_peak_memory_stats()
    first.clear()
    space = {}
    exec(compile(open(name).read(), name, "exec"), space)
    print(json.dumps([first[0], accelerator.max_memory_allocated()]))
    space.clear()
"""
CLASSIFY = """
model = MODEL
optimizer = torch.optim.OPTIMIZER
for step in range(4):
    x, y = INPUT, classes(10, len(x))
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
""".replace("x, y = INPUT, classes(10, len(x))", "x = INPUT\n    y = classes(10, len(x))")
TOKENS = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(2000, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.1, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(128, 2000, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return self.head(self.blocks(self.embed(tokens), mask=mask, is_causal=True))

model = Model().to("toy")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
for step in range(4):
    tokens = classes(2000, 8, 49)
    scores = model(tokens[:, :-1])
    loss = F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
"""
TRANSLATION = """
model = nn.Transformer(96, 4, 2, 2, 384, batch_first=True).to("toy")
optimizer = torch.optim.NAdam(model.parameters(), lr=1e-4)
for step in range(4):
    source, target = numbers(16, 40, 96), numbers(16, 40, 96)
    out = model(source, target)
    loss = F.mse_loss(out, target)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""
UNET = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.c = nn.Conv2d(32, 64, 3, padding=1)
        self.up, self.d = nn.ConvTranspose2d(64, 32, 2, 2), nn.Conv2d(64, 32, 3, padding=1)
        self.last, self.e = nn.ConvTranspose2d(32, 16, 2, 2), nn.Conv2d(32, 2, 3, padding=1)

    def forward(self, x):
        a = F.relu(self.a(x))
        b = F.relu(self.b(F.max_pool2d(a, 2)))
        c = F.relu(self.c(F.max_pool2d(b, 2)))
        d = F.relu(self.d(torch.cat([self.up(c), b], 1)))
        return self.e(torch.cat([self.last(d), a], 1))

model = Net().to("toy")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(4):
    x, y = numbers(8, 3, 32, 32), classes(2, 8, 32, 32)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
"""
RECURRENT = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.KIND(64, 128, 2, batch_first=True)
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])
"""
GAN = """
make, judge = mlp(64, 512, 1024).to("toy"), mlp(1024, 512, 1).to("toy")
one = torch.optim.Adam(judge.parameters(), lr=1e-4)
other = torch.optim.Adam(make.parameters(), lr=1e-4)
for step in range(4):
    real, noise = numbers(256, 1024), numbers(256, 64)
    fake = make(noise)
    one.zero_grad()
    yes, no = judge(real), judge(fake.detach())
    loss = F.binary_cross_entropy_with_logits(yes, torch.ones_like(yes))
    loss = loss + F.binary_cross_entropy_with_logits(no, torch.zeros_like(no))
    loss.backward()
    one.step()
    other.zero_grad()
    no = judge(fake)
    loss = F.binary_cross_entropy_with_logits(no, torch.ones_like(no))
    loss.backward()
    other.step()
"""
AUTOENCODER = """
model = nn.Sequential(
    nn.Conv2d(3, 32, 4, 2, 1), nn.GELU(), nn.Conv2d(32, 64, 4, 2, 1), nn.GELU(),
    nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.GELU(), nn.ConvTranspose2d(32, 3, 4, 2, 1),
).to("toy")
optimizer = torch.optim.Adagrad(model.parameters(), lr=1e-3)
for step in range(4):
    x = numbers(16, 3, 32, 32)
    loss = F.mse_loss(model(x), x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
FROZEN = """
body, head = mlp(256, 1024, 1024).to("toy"), nn.Linear(1024, 10).to("toy")
body.requires_grad_(False)
optimizer = torch.optim.AdamW([*body.parameters(), *head.parameters()], lr=1e-3)
for step in range(4):
    x, y = numbers(512, 256), classes(10, 512)
    optimizer.zero_grad()
    loss = F.cross_entropy(head(body(x)), y)
    loss.backward()
    optimizer.step()
"""
RECOMPUTED = """
blocks = nn.ModuleList([mlp(256, 1024, 256) for _ in range(4)]).to("toy")
head = nn.Linear(256, 10).to("toy")
optimizer = torch.optim.AdamW([*blocks.parameters(), *head.parameters()], lr=1e-3)
for step in range(4):
    x, y = numbers(1024, 256), classes(10, 1024)
    for block in blocks:
        x = x + checkpoint(block, x, use_reentrant=False)
    loss = F.cross_entropy(head(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
AUTOCAST = """
model = mlp(256, 1024, 1024, 10).to("toy")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(4):
    x, y = numbers(1024, 256), classes(10, 1024)
    optimizer.zero_grad()
    with torch.autocast("toy", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
"""
ACCUMULATED = """
model = mlp(256, 1024, 1024, 10).to("toy")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(4):
    optimizer.zero_grad()
    for part in range(4):
        x, y = numbers(512, 256), classes(10, 512)
        loss = F.cross_entropy(model(x), y) / 4
        loss.backward()
    optimizer.step()
"""
CLOSURE = """
model = mlp(64, 256, 256, 1).to("toy")
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, history_size=5)
x, y = numbers(1024, 64), numbers(1024, 1)
def closure():
    optimizer.zero_grad()
    loss = F.mse_loss(model(x), y)
    loss.backward()
    return loss
for step in range(4):
    optimizer.step(closure)
"""
EMBEDDINGS = """
model = nn.Sequential(nn.EmbeddingBag(20_000, 64), nn.Linear(64, 10)).to("toy")
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(4):
    x, y = classes(20_000, 256, 8), classes(10, 256)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
"""
TWO_LOSSES = """
body = mlp(128, 512, 512).to("toy")
first, second = nn.Linear(512, 10).to("toy"), nn.Linear(512, 128).to("toy")
every = [*body.parameters(), *first.parameters(), *second.parameters()]
optimizer = torch.optim.Adam(every, lr=1e-3, weight_decay=1e-4)
for step in range(4):
    x, y = numbers(1024, 128), classes(10, 1024)
    hidden = F.relu(body(x))
    loss = F.cross_entropy(first(hidden), y)
    other = F.mse_loss(second(hidden), x)
    optimizer.zero_grad(set_to_none=False)
    (loss + other).backward()
    optimizer.step()
"""
AVERAGED = """
model = mlp(256, 1024, 1024, 10).to("toy")
average = torch.optim.swa_utils.AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
for step in range(4):
    x, y = numbers(256, 256), classes(10, 256)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    average.update_parameters(model)
"""
CONVOLUTIONS = """nn.Sequential(
    nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)).to("toy")"""


def classify(model: str, optimizer: str, given: str) -> str:
    """Return a script with this model, optimizer and input."""
    text = CLASSIFY.replace("MODEL", model).replace("OPTIMIZER", optimizer)
    return text.replace("INPUT", given)


PARAMETERS = "(model.parameters(), lr=1e-3"
SCRIPTS = {
    "MLP, AdamW": classify('mlp(256, 1024, 1024, 10).to("toy")', f"AdamW{PARAMETERS})", "numbers(256, 256)"),
    "MLP, SGD": classify('mlp(256, 1024, 1024, 10).to("toy")', f"SGD{PARAMETERS})", "numbers(1024, 256)"),
    "MLP, SGD with momentum and decay": classify(
        'mlp(256, 1024, 1024, 10).to("toy")',
        f"SGD{PARAMETERS}, momentum=0.9, weight_decay=1e-4)",
        "numbers(128, 256)",
    ),
    "convolutions and BatchNorm": classify(
        CONVOLUTIONS, f"SGD{PARAMETERS}, momentum=0.9)", "numbers(32, 3, 32, 32)"
    ),
    "U-Net": UNET,
    "language model, tied weights, not foreach": TOKENS,
    "encoder and decoder": TRANSLATION,
    "GRU, RMSprop": RECURRENT.replace("KIND", "GRU")
    + classify('Model().to("toy")', f"RMSprop{PARAMETERS})", "numbers(32, 24, 64)"),
    "LSTM, Adamax": RECURRENT.replace("KIND", "LSTM")
    + classify('Model().to("toy")', f"Adamax{PARAMETERS})", "numbers(32, 24, 64)"),
    "GAN, two optimizers": GAN,
    "autoencoder, Adagrad": AUTOENCODER,
    "frozen layers": FROZEN,
    "recomputed activations": RECOMPUTED,
    "autocast": AUTOCAST,
    "accumulated gradients": ACCUMULATED,
    "Adafactor": classify(
        'mlp(256, 1024, 1024, 10).to("toy")', f"Adafactor{PARAMETERS})", "numbers(256, 256)"
    ),
    "L-BFGS": CLOSURE,
    "large embedding": EMBEDDINGS,
    "large head, fused": classify(
        'mlp(64, 128, 20_000).to("toy")', f"AdamW{PARAMETERS}, fused=True)", "numbers(64, 64)"
    ),
    "two losses, zeroed in place": TWO_LOSSES,
    "averaged weights": AVERAGED,
    "MLP, Adadelta": classify(
        'mlp(256, 1024, 1024, 10).to("toy")', f"Adadelta{PARAMETERS})", "numbers(64, 256)"
    ),
}


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command that finds the device."""
    variables = {**os.environ, **environment()}
    return subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, check=False)


def measure(texts: Sequence[str], folder: Path) -> list[list[int]]:
    """Return the device's peak before the first step and in the end, for each script."""
    names = [f"{number}.py" for number in range(len(texts))]
    for name, text in zip(names, texts, strict=True):
        (folder / name).write_text(HEAD + text)
    done = run([sys.executable, "-c", BARE, *names], folder)
    if done.returncode:
        raise SystemExit(f"the scripts failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def expect(text: str, folder: Path) -> int | None:
    """Return what `check` expects of a script."""
    (folder / "train.py").write_text(HEAD + text)
    done = run([sys.executable, "-m", "truestep", "check", "--format", "json", "train.py"], folder)
    if done.returncode not in (0, 1):
        raise SystemExit(f"check failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}{text}")
    expected = json.loads(done.stdout)["expected_memory"]
    return None if expected is None else int(expected["peak_bytes"])


def examine(scripts: Mapping[str, str]) -> list[Row]:
    """Return what scripts were expected to take, and what they took."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        peaks = measure(list(scripts.values()), folder)
        expected = [expect(text, folder) for text in scripts.values()]
    return [
        {
            "model": model,
            "peak MB": peak / 1e6,
            "expected MB": None if bytes_ is None else bytes_ / 1e6,
            "off by %": None if bytes_ is None else 100 * (bytes_ / peak - 1),
            "first passes, off by %": 100 * (first / peak - 1),
        }
        for model, (first, peak), bytes_ in zip(scripts, peaks, expected, strict=True)
    ]


def main() -> int:
    """Run all scripts, or some."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="models whose name has this in it")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = examine({name: text for name, text in SCRIPTS.items() if given.only in name})
    off = [row["off by %"] for row in rows]
    worst = None if None in off else max(abs(float(item or 0)) for item in off)
    return report(
        "memory_estimate",
        sheets=[Sheet(title="expected before the first step, and found", rows=rows, num_digits=2)],
        claims=[Claim(text="the largest difference", found=worst, limit=100 * LIMIT, unit="%")],
        as_json=given.json,
    )


if __name__ == "__main__":
    sys.exit(main())
