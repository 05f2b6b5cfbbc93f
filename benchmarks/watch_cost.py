"""What watching costs: the time of a watched step over that of the same step left alone.

Judged are cheap moments, and all that `truestep check` keeps once its first steps are over: at most 1.05 in
the median of all scripts, 1.15 in the worst. Stated are digests of every step, the look at every operation,
which a script that differs gets for a few steps, and what the first steps under `check` cost in all.
Watched and bare steps take turns in one process, with observers switched off for the bare ones; what
passing those costs is measured and taken off. Times are the processor's, system calls included. What is in
memory is written twice a second, as in use; its cost is spread over all steps.
Exit code: 0 all claims hold, 1 one fails, 2 one cannot be told (too noisy a machine).
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from measure import Claim, Row, Sheet, estimate_with_error, report, spread
from torch import nn
from torch.optim import SGD, AdamW
from torch.utils.data import DataLoader, TensorDataset

from truestep.check import check_plan
from truestep.watch import DIGESTS, Plan
from truestep.watch.hooks.engine import watch_torch
from truestep.watch.hooks.table import UNSEEN, remove
from truestep.watch.script.tape import Tape

MAX_MEDIAN, MAX_WORST = 1.05, 1.15
NUM_FIRST, NUM_BEFORE = 16, 128
"""How many steps are the first ones, and how many are made before those that are measured."""
Steps = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class Script:
    """A training loop as people write it: makes a function that does a number of steps."""

    label: str
    make: Callable[[], Steps]
    num_steps: int
    """Per turn, some ten milliseconds."""


def tiny_mlp() -> Steps:
    """Loop over batches in a list: nothing to hide behind."""
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = AdamW(model.parameters(), lr=1e-3)
    batches = [(torch.randn(32, 32), torch.randint(0, 10, (32,))) for _ in range(16)]

    def run(num: int) -> None:
        for index in range(num):
            x, y = batches[index % 16]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()

    return run


def loaded_mlp() -> Steps:
    """The same with a loader, clipping and a scheduler: more moments in a step."""
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 10))
    optimizer = AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100_000)
    data = TensorDataset(torch.randn(640, 32), torch.randint(0, 10, (640,)))
    loader = DataLoader(data, batch_size=32, shuffle=True)

    def run(num: int) -> None:
        for _ in range(num // 20):
            model.train()
            for x, y in loader:
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()

    return run


def digits() -> Steps:
    """The model of examples/digits.py."""
    layers = [nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Dropout(0.1), nn.Linear(32 * 16, 10))
    optimizer = AdamW(model.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(1024, 1, 8, 8), torch.randint(0, 10, (1024,)))
    loader = DataLoader(data, batch_size=256, shuffle=True)

    def run(num: int) -> None:
        for _ in range(num // 4):
            for x, y in loader:
                loss = F.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()

    return run


def lstm() -> Steps:
    """A recurrent network over sequences."""
    body, head = nn.LSTM(16, 64, num_layers=2, batch_first=True), nn.Linear(64, 10)
    optimizer = AdamW([*body.parameters(), *head.parameters()], lr=1e-3)
    x, y = torch.randn(32, 20, 16), torch.randint(0, 10, (32,))

    def run(num: int) -> None:
        for _ in range(num):
            optimizer.zero_grad()
            F.cross_entropy(head(body(x)[0][:, -1]), y).backward()
            optimizer.step()

    return run


def cnn() -> Steps:
    """Convolution and BatchNorm, gradients accumulated over two batches."""
    layers: list[nn.Module] = []
    for num_in, num_out in ((3, 24), (24, 48), (48, 96)):
        layers += [nn.Conv2d(num_in, num_out, 3, padding=1, stride=2), nn.BatchNorm2d(num_out), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(96, 10))
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)
    x, y = torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))

    def run(num: int) -> None:
        for _ in range(num):
            for _ in range(2):
                (F.cross_entropy(model(x), y) / 2).backward()
            optimizer.step()
            optimizer.zero_grad()

    return run


def transformer() -> Steps:
    """Many small modules inside one: what nested calls cost."""
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
    body = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(100, 32), body, nn.Linear(32, 100))
    optimizer = AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(0, 100, (4, 16))

    def run(num: int) -> None:
        for _ in range(num):
            loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

    return run


def two_models() -> Steps:
    """Generator and critic: two optimizers, three forward passes, two backward passes."""
    generator = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 20))
    critic = nn.Sequential(nn.Linear(20, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    one, two = AdamW(critic.parameters(), lr=1e-3), AdamW(generator.parameters(), lr=1e-3)
    real, noise = torch.randn(32, 20), torch.randn(32, 8)

    def run(num: int) -> None:
        for _ in range(num):
            fake = generator(noise)
            one.zero_grad()
            (F.softplus(-critic(real)).mean() + F.softplus(critic(fake.detach())).mean()).backward()
            one.step()
            two.zero_grad()
            F.softplus(-critic(fake)).mean().backward()
            two.step()

    return run


SCRIPTS = {
    "tiny": Script(label="tiny MLP", make=tiny_mlp, num_steps=60),
    "loaded": Script(label="tiny MLP, loader, clip, scheduler", make=loaded_mlp, num_steps=40),
    "digits": Script(label="digits CNN of the examples", make=digits, num_steps=4),
    "lstm": Script(label="LSTM", make=lstm, num_steps=2),
    "cnn": Script(label="small CNN, accumulation", make=cnn, num_steps=2),
    "transformer": Script(label="small transformer", make=transformer, num_steps=1),
    "gan": Script(label="two models, two optimizers", make=two_models, num_steps=40),
}


class Watched:
    """All scripts in this process, with observers in place that can be switched off."""

    def __init__(self, plan: Plan, folder: str) -> None:
        self._tape = Tape(folder, plan)
        self._is_looked_at = plan.operations is not None and plan.operations[1] == sys.maxsize
        self._calling_s = time_calls(Nothing())
        self._unwritten_s = 0.0
        self._writing: list[float] = []
        """For each writing of what is in memory: its share of the time since the last."""
        watch_torch(self._tape)
        self._runs = {name: script.make() for name, script in SCRIPTS.items()}
        gc.collect()
        gc.freeze()

    def turn(self, name: str, *, is_watched: bool) -> float:
        """Return the seconds per step of some steps, without writing what is in memory."""
        num = SCRIPTS[name].num_steps
        self._tape.is_on = is_watched
        if not is_watched:
            self._switch_off()
        elif self._is_looked_at and not self._tape.recorder.is_open:
            self._tape.recorder.move(0)
        begun = time.thread_time()
        self._runs[name](num)
        taken = time.thread_time() - begun
        self._unwritten_s += taken * is_watched
        if self._unwritten_s >= Plan().flush_s:
            self._write()
        return taken / num

    def _write(self) -> None:
        self._tape.is_on = True
        begun = time.thread_time()
        self._tape.flush()
        self._writing.append((time.thread_time() - begun) / self._unwritten_s)
        self._unwritten_s = 0.0

    def pairs(self, name: str, seconds: float) -> list[tuple[float, float]]:
        """Let watched and bare steps take turns in random order."""
        order = random.Random(0)
        self._writing.clear()
        for _ in range(-(-NUM_BEFORE // SCRIPTS[name].num_steps) if self._tape.plan.inspect else 3):
            self.turn(name, is_watched=True)
            self.turn(name, is_watched=False)
        passing_s = self.num_passed(name) * self.passing_s()
        found = []
        end = time.perf_counter() + seconds
        while len(found) < 20 or time.perf_counter() < end:
            first = order.random() < 0.5
            times = {is_watched: self.turn(name, is_watched=is_watched) for is_watched in (first, not first)}
            found.append((times[True], times[False] - passing_s))
        if not self._writing:
            self._write()
        writing = 1 + statistics.median(self._writing)
        return [(watched * writing, bare) for watched, bare in found]

    def num_passed(self, name: str) -> float:
        """How many wrappers a bare step goes through, which the script left alone would not."""
        num = 0

        def count(frame: Any, event: str, _: Any) -> None:
            nonlocal num
            num += event == "call" and frame.f_code.co_filename == UNSEEN

        self._switch_off()
        sys.setprofile(count)
        self._runs[name](SCRIPTS[name].num_steps)
        sys.setprofile(None)
        return num / SCRIPTS[name].num_steps

    def passing_s(self) -> float:
        """What passing one wrapper costs: calls of a module that does nothing, with and without it."""
        self._switch_off()
        return max(0.0, time_calls(Nothing()) - self._calling_s)

    def _switch_off(self) -> None:
        self._tape.is_on = False
        if self._tape.recorder is not None:
            self._tape.recorder.close()

    def close(self) -> None:
        remove()
        self._tape.is_on = True
        self._tape.close()


class Nothing(nn.Module):
    def forward(self) -> None:
        return None


def time_calls(module: nn.Module) -> float:
    turns = []
    for _ in range(30):
        begun = time.thread_time()
        for _ in range(500):
            module()
        turns.append((time.thread_time() - begun) / 500)
    return min(turns)


def measure(plan: Plan, seconds: float) -> dict[str, list[tuple[float, float]]]:
    """Time all scripts with one plan, in a process of its own: no observers of another plan are met there."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure_here, (plan, seconds))


def measure_here(plan: Plan, seconds: float) -> dict[str, list[tuple[float, float]]]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        watched = Watched(plan, folder)
        found = {name: watched.pairs(name, seconds) for name in SCRIPTS}
        watched.close()
    return found


def measure_first(plan: Plan, name: str) -> tuple[float, float]:
    """Return what building a script and its first steps cost more if watched, and alone, in seconds."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure_first_here, (plan, name))


def measure_first_here(plan: Plan, name: str) -> tuple[float, float]:
    torch.set_num_threads(1)
    script = SCRIPTS[name]

    def begin() -> float:
        begun = time.thread_time()
        steps = script.make()
        for _ in range(-(-NUM_FIRST // script.num_steps)):
            steps(script.num_steps)
        return time.thread_time() - begun

    alone = min(begin() for _ in range(5))
    with tempfile.TemporaryDirectory() as folder:
        tape = Tape(folder, plan)
        watch_torch(tape)
        watched = begin()
        tape.close()
        remove()
    return watched - alone, alone


def list_first(plan: Plan, rounds: int) -> Sheet:
    rows: list[Row] = []
    for name, script in SCRIPTS.items():
        found = [measure_first(plan, name) for _ in range(rounds)]
        more, alone = (statistics.median(item[place] * 1e3 for item in found) for place in (0, 1))
        steps = -(-NUM_FIRST // script.num_steps) * script.num_steps
        rows.append({"script": script.label, "more, ms": more, "alone, ms": alone, "steps": str(steps)})
    return Sheet(title="First steps under check, with the building (stated, not judged)", rows=rows)


def ratio(pairs: Sequence[tuple[float, float]]) -> float:
    return statistics.median(watched / bare for watched, bare in pairs)


def overhead_us(pairs: Sequence[tuple[float, float]]) -> float:
    return statistics.median((watched - bare) * 1e6 for watched, bare in pairs)


def list_results(title: str, results: dict[str, list[tuple[float, float]]]) -> Sheet:
    rows: list[Row] = []
    for name, pairs in results.items():
        found, error = estimate_with_error(pairs, ratio)
        each = spread([watched / bare for watched, bare in pairs])
        rows.append(
            {
                "script": SCRIPTS[name].label,
                "ratio": found,
                "±": error,
                "quartiles": f"{each.low:.3f} to {each.high:.3f}",
                "us per step": f"{overhead_us(pairs):,.1f}",
                "bare step, us": f"{statistics.median(bare for _, bare in pairs) * 1e6:,.0f}",
                "turns": str(len(pairs)),
            }
        )
    return Sheet(title=title, rows=rows, num_digits=3)


def claims_of(what: str, results: dict[str, list[tuple[float, float]]]) -> list[Claim]:
    estimates = sorted(estimate_with_error(pairs, ratio) for pairs in results.values())
    middle, worst = estimates[len(estimates) // 2], estimates[-1]
    return [
        Claim(text=f"median over scripts, {what}", found=middle[0], error=middle[1], limit=MAX_MEDIAN),
        Claim(text=f"worst script, {what}", found=worst[0], error=worst[1], limit=MAX_WORST),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="some minutes instead of ten, with wider spreads"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args()
    seconds, digest_seconds = (3.0, 1.0) if options.quick else (12.0, 4.0)
    cheap = measure(Plan(flush_s=3600.0), seconds)
    checked = measure(replace(check_plan(), flush_s=3600.0), seconds)
    digested = measure(Plan(digests=DIGESTS), digest_seconds)
    looked_at = measure(Plan(digests=DIGESTS, operations=(0, sys.maxsize)), digest_seconds)
    claims = [*claims_of("cheap moments", cheap), *claims_of("check", checked)]
    sheets = [
        list_results("Time of a watched step over a bare one, cheap moments", cheap),
        list_results("The same under check, after the first steps", checked),
        list_first(check_plan(), 1 if options.quick else 5),
        list_results("The same with the digest chain of every step (stated, not judged)", digested),
        list_results("The same with every operation noted as well (stated, not judged)", looked_at),
    ]
    return report("watch_cost", sheets=sheets, claims=claims, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
