"""Claim: of 200 bits that flip in one process, audits find every one that matters and name the process.

Trains with `Run(audit_every=K)` on 4 processes. One bit of one value flips in the weights, the optimizer's
state, a summed gradient, an activation or a lane's gradient. A run that ends with the bits of a clean one
was not affected; the flip is then drawn again and counted. Clean runs must never stop.
"""

import argparse
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import group
import torch
import torch.distributed as dist
import torch.nn.functional as F
from measure import Claim, Sheet, fact, report
from torch import nn
from torch.optim import AdamW
from torch.utils.data import TensorDataset

import truestep as ts
from truestep.errors import AuditFailed, NonFiniteError
from truestep.run.train.audit import AuditPlan
from truestep.run.train.step import Step

SIZE, LANES, BATCH, EVERY, STEPS = 4, 8, 64, 5, 60
AT_ONCE = 25
"""Flips in one group of processes."""
BITS = [*range(28), 31]
"""Not the three highest of the exponent: what they give is not finite soon, and any check finds that."""

KINDS = {
    "weights": 50,
    "optimizer state": 50,
    "gradient, summed": 20,
    "gradient of a lane, every lane from then on": 15,
    "gradient of a lane, once, in an audited one": 15,
    "activation, every lane from then on": 25,
    "activation, once, in an audited lane": 25,
}
UNAUDITED = "activation, once, in a lane that is not audited"


class Flip(NamedTuple):
    """One bit that flips: in which process, from which step on, and a number that decides the rest."""

    kind: str
    rank: int
    step: int
    number: int


class Outcome(NamedTuple):
    """How a run with a flip ended."""

    step: int
    ranks: list[int]
    end: str
    """found, not finite, unaffected, or missed."""


def flip_bit(tensor: torch.Tensor, choice: random.Random) -> None:
    """Flip one bit of one value, in place."""
    values = tensor.detach().view(-1)
    place, bit = choice.randrange(values.numel()), choice.choice(BITS)
    values[place : place + 1].view(torch.int32).bitwise_xor_(torch.tensor(1).bitwise_left_shift_(bit).int())


class Fault:
    """Does what a flip says, in the process it says."""

    def __init__(self, flip: Flip | None, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        is_here = flip is not None and flip.rank == dist.get_rank()
        self.flip = flip if is_here else None
        self.choice = random.Random(flip.number if flip else 0)
        self.model, self.optimizer = model, optimizer
        self.index, self.is_armed = 0, False
        if self.flip is None:
            return
        if "activation" in self.flip.kind:
            layers = [item for item in model if isinstance(item, nn.Linear)]
            self.choice.choice(layers).register_forward_hook(self.on_output)
        elif "of a lane" in self.flip.kind:
            self.choice.choice([*model.parameters()]).register_hook(self.on_gradient)
        elif "summed" in self.flip.kind:
            optimizer.register_step_pre_hook(self.on_update)

    def begin(self, step: Step) -> None:
        """Start a step: some bits flip between two of them."""
        self.index = step.index
        if self.flip is None or step.index != self.flip.step:
            return
        parameters = [*self.model.parameters()]
        if self.flip.kind == "weights":
            flip_bit(self.choice.choice(parameters), self.choice)
        elif self.flip.kind == "optimizer state":
            state = self.optimizer.state[self.choice.choice(parameters)]
            flip_bit(state[self.choice.choice(["exp_avg", "exp_avg_sq"])], self.choice)
        self.is_armed = "once" in self.flip.kind

    def enter(self, step: Step, plan: AuditPlan) -> None:
        """Start a lane."""
        if self.flip is None or "once" not in self.flip.kind or step.index != self.flip.step:
            return
        audited = plan.at(step.index, step.num_samples)
        is_audited = audited is not None and step._lane.lane == audited.lane
        self.is_hit = self.is_armed and is_audited == ("not audited" not in self.flip.kind)
        self.is_armed = self.is_armed and not self.is_hit

    is_hit = False

    @property
    def strikes(self) -> bool:
        """Whether a bit flips in what this lane computes now."""
        if self.flip is None or "once" in self.flip.kind:
            hit, self.is_hit = self.is_hit, False
            return hit
        return self.index >= self.flip.step

    def on_output(self, _module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        """Flip a bit in a layer's output."""
        if self.strikes:
            flip_bit(output.data, self.choice)

    def on_gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return a parameter's gradient with a bit flipped."""
        if not self.strikes:
            return gradient
        changed = gradient.clone()
        flip_bit(changed, self.choice)
        return changed

    def on_update(self, *_: Any) -> None:
        """Flip a bit in a gradient after it was summed over all lanes."""
        assert self.flip is not None
        if self.index == self.flip.step:
            gradients = [item.grad for item in self.model.parameters() if item.grad is not None]
            flip_bit(self.choice.choice(gradients), self.choice)


def make_net(width: int) -> nn.Sequential:
    """Return a network without parts that swallow differences, but for its ReLU."""
    return nn.Sequential(
        nn.Linear(16, width),
        nn.ReLU(),
        nn.LayerNorm(width),
        nn.Linear(width, width),
        nn.Tanh(),
        nn.Linear(width, 4),
    )


def train(
    folder: Path, flip: Flip | None, *, every: int | None, seed: int = 1, steps: int = STEPS, width: int = 32
) -> tuple[Outcome, str, list[float]]:
    """Train once; return how it ended, the digest, and when each step began."""
    made = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(512, 16, generator=made), torch.randint(0, 4, (512,), generator=made))
    rank, size = dist.get_rank(), dist.get_world_size()
    plan = AuditPlan(every=every or 10**9, rank=rank, size=size, num_lanes=LANES, is_dealt=False)
    index, begun = 0, []
    options: Any = {"lanes": LANES, "threads": 1, "progress": False, "snapshots": ts.Snapshots(every_s=None)}
    with ts.Run(folder, seed=seed, audit_every=every, **options) as run:
        model = run.place(make_net(width))
        optimizer = AdamW(model.parameters(), lr=1e-3)
        run.track(model=model, optimizer=optimizer)
        fault = Fault(flip, model, optimizer)
        try:
            for step in run.steps(ts.Loader(data, batch_size=BATCH), steps=steps):
                index = step.index
                begun.append(time.perf_counter())
                fault.begin(step)
                for x, y in step:
                    fault.enter(step, plan)
                    step.backward(F.cross_entropy(model(x), y))
                step.update(optimizer)
        except AuditFailed as error:
            return Outcome(index, error.ranks, "found"), "", begun
        except NonFiniteError:
            return Outcome(index, [], "not finite"), "", begun
        digest = ts.digest_state({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    return Outcome(index, [], "missed"), digest, begun


def draw(kind: str, number: int) -> Flip:
    """Return the flip of a number: another process, step, tensor, value and bit each time."""
    choice = random.Random(f"{kind} {number}")
    rank, step = choice.randrange(SIZE), choice.randrange(6, 16)
    if "once, in an audited" in kind:  # of this process, as it does its own work
        plan = AuditPlan(every=EVERY, rank=rank, size=SIZE, num_lanes=LANES, is_dealt=False)
        audits = [(at, plan.at(at, BATCH)) for at in range(5, STEPS - 5)]
        step = choice.choice([at for at, item in audits if item is not None and item.owner == rank])
    return Flip(kind, rank, step, number)


def try_flips(seat: group.Seat, kind: str, first: int, count: int) -> None:
    """Let bits of one kind flip one after the other; tell the outcomes."""
    seat.meet("flips")
    _, clean, _ = train(seat.folder / "clean", None, every=EVERY)
    number, num_done = first, 0
    while num_done < count:
        flip = draw(kind, number)
        outcome, digest, _ = train(seat.folder / str(number), flip, every=EVERY)
        if outcome.end == "missed":
            digests: list[Any] = [None] * SIZE
            dist.all_gather_object(digests, digest)
            outcome = outcome._replace(end="unaffected" if {*digests} == {clean} else "missed")
        num_done += outcome.end != "unaffected"
        number += 1
        seat.tell(("flip", (flip, outcome)))
    dist.barrier()
    seat.part()


def try_clean(seat: group.Seat, num_runs: int) -> None:
    """Train without a flip, with an audit in every step; tell how it ended."""
    seat.meet("clean")
    for number in range(num_runs):
        outcome, _, _ = train(seat.folder / str(number), None, every=1, seed=number)
        seat.tell(("clean", outcome.end))
    dist.barrier()
    seat.part()


def time_steps(seat: group.Seat, num_steps: int) -> None:
    """Train with an audit in each tenth step; tell each step's duration."""
    seat.meet("cost")
    _, _, begun = train(seat.folder / "run", None, every=10, steps=num_steps, width=512)
    seat.tell(("times", [b - a for a, b in pairwise(begun)]))
    dist.barrier()
    seat.part()


def run_group(function: Callable[..., None], *args: Any, folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield what the first process tells; see that all end well."""
    processes = group.Group(function, *args, size=SIZE, folder=folder)
    try:
        yield from (message for rank, message in processes.messages(300.0) if rank == 0)
        if not processes.wait_all(60.0) or any(processes.codes):
            raise SystemExit(processes.errors())
    finally:
        processes.end()


def flip_rows(pairs: list[tuple[Flip, Outcome]]) -> list[dict[str, Any]]:
    """Return a row for each kind of flip."""
    rows: list[dict[str, Any]] = []
    for kind in dict.fromkeys(flip.kind for flip, _ in pairs):
        of_kind = [(flip, outcome) for flip, outcome in pairs if flip.kind == kind]
        real = [pair for pair in of_kind if pair[1].end != "unaffected"]
        after = [outcome.step - flip.step for flip, outcome in real if outcome.end == "found"]
        rows.append(
            {
                "what flips": kind,
                "flips": len(real),
                "found": len(after),
                "process named": sum(outcome.ranks == [flip.rank] for flip, outcome in real),
                "not finite": sum(outcome.end == "not finite" for _, outcome in real),
                "steps until found": statistics.mean(after) if after else None,
                "at most": max(after) if after else None,
                "no effect": len(of_kind) - len(real),
            }
        )
    return rows


def cost_rows(times: list[float]) -> tuple[float, list[dict[str, Any]]]:
    """Return what an audit costs, in steps, and the share of time for each interval."""
    audited = [value for place, value in enumerate(times) if (place + 1) % 10 == 0]
    plain = statistics.median(value for place, value in enumerate(times) if (place + 1) % 10)
    audit = statistics.median(audited) - plain
    rows = [
        {
            "audit_every": f"{every:,}",
            "step ms": 1e3 * plain,
            "audit ms": 1e3 * audit,
            "% of the time": 100 * audit / (every * plain),
        }
        for every in (10, 100, 1000)
    ]
    return audit / plain, rows


def main() -> int:
    """Run all, print the tables, and return 0 if the claims hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the flips, for a short look")
    parser.add_argument("--clean", type=int, default=20, help="runs without a flip")
    parser.add_argument("--steps", type=int, default=1000, help="timed steps")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    group.prepare()
    counts = {kind: max(1, round(count * given.share)) for kind, count in KINDS.items()}
    counts[UNAUDITED] = max(1, round(20 * given.share))
    pairs: list[tuple[Flip, Outcome]] = []
    clean: list[str] = []
    times: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        for kind, count in counts.items():
            for first in range(0, count, AT_ONCE):
                num = min(AT_ONCE, count - first)
                place = Path(name, f"{kind} {first}".replace(" ", "-"))
                for _, pair in run_group(try_flips, kind, 1000 * first, num, folder=place):
                    pairs.append(pair)
                    print(*pair[0][:3], *pair[1], file=sys.stderr)
        clean += [end for _, end in run_group(try_clean, given.clean, folder=Path(name, "clean"))]
        for _, found in run_group(time_steps, given.steps, folder=Path(name, "cost")):
            times += found
    in_steps, costs = cost_rows(times)
    real = [pair for pair in pairs if pair[1].end != "unaffected" and pair[0].kind != UNAUDITED]
    num_named = sum(outcome.ranks == [flip.rank] for flip, outcome in real)
    num_nonfinite = sum(outcome.end == "not finite" for _, outcome in real)
    note = f"{SIZE} processes, {LANES} lanes, audit_every={EVERY}. The last row is what audits cannot find."
    return report(
        "bit flips",
        sheets=[
            Sheet(title="Flips", rows=flip_rows(pairs), note=note),
            Sheet(
                title="Cost",
                rows=costs,
                note="From the medians of steps with and without an audit.",
                num_digits=2,
            ),
        ],
        claims=[
            Claim(
                text=f"of {len(real)} flips: not found, or another process named",
                found=len(real) - num_named,
                limit=0,
            ),
            Claim(text="share of flips that were not finite", found=num_nonfinite / len(real), limit=0.01),
            Claim(
                text=f"stops in {len(clean)} clean runs", found=sum(end != "missed" for end in clean), limit=0
            ),
            fact("all clean runs were made", len(clean) == given.clean),
            Claim(text="an audit costs, in steps", found=in_steps, limit=1.0),
        ],
        as_json=given.json,
    )


if __name__ == "__main__":
    sys.exit(main())
