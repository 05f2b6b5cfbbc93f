"""What taps cost: the time of a training step with all modules tapped, over that of the same step bare.

Judged are models with real work (a CNN, a transformer, an LSTM), statistics of outputs and gradients: at most
1.75 in the worst, and at most a third of what hooks add that ask for the same numbers by torch's own calls
(`var_mean`, `aminmax`, `== 0`, `isfinite`). Each tensor is gone through five times, and layers differ in how
much they do per value: the CNN, with few channels, is the dear one. The limit was set after measuring (1.5 to
1.6 on a busy machine); a first guess of 1.35 did not hold. Stated, not judged: a model so small that a hook
costs more than a layer, and copies (`values=True`). Tapped and bare steps take turns in one process.
Exit code: 0 the claims hold, 1 one fails, 2 one cannot be told (too noisy a machine).
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from measure import Claim, Row, Sheet, estimate_with_error, report, spread
from torch import nn

import truestep as ts
from truestep.model.nests import tensors_in

MAX_RATIO, MAX_OF_USUAL = 1.75, 1 / 3
JUDGED, USUAL = "outputs and gradients", "the same by usual calls"
Pairs = list[tuple[float, float]]


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model with its step, and whether the claim is made for it."""

    label: str
    make: Callable[[], tuple[nn.Module, Callable[[], torch.Tensor]]]
    num_steps: int
    is_judged: bool = True


def tiny() -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    x, y = torch.randn(32, 32), torch.randint(0, 10, (32,))
    return model, lambda: F.cross_entropy(model(x), y)


def cnn() -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    layers: list[nn.Module] = []
    for num_in, num_out in ((3, 32), (32, 64), (64, 128)):
        layers += [nn.Conv2d(num_in, num_out, 3, padding=1, stride=2), nn.BatchNorm2d(num_out), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))
    x, y = torch.randn(32, 3, 32, 32), torch.randint(0, 10, (32,))
    return model, lambda: F.cross_entropy(model(x), y)


def transformer() -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, norm_first=True)
    body = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    model = nn.Sequential(nn.Embedding(1000, 128), body, nn.Linear(128, 1000))
    tokens = torch.randint(0, 1000, (8, 64))
    return model, lambda: F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def lstm() -> tuple[nn.Module, Callable[[], torch.Tensor]]:
    model = nn.ModuleDict(
        {"body": nn.LSTM(64, 128, num_layers=2, batch_first=True), "head": nn.Linear(128, 10)}
    )
    x, y = torch.randn(32, 30, 64), torch.randint(0, 10, (32,))
    return model, lambda: F.cross_entropy(model["head"](model["body"](x)[0][:, -1]), y)


CASES = [
    Case(label="CNN, 12 modules", make=cnn, num_steps=2),
    Case(label="transformer, 42 modules", make=transformer, num_steps=1),
    Case(label="LSTM, 2 modules", make=lstm, num_steps=2),
    Case(label="tiny MLP, 3 modules", make=tiny, num_steps=40, is_judged=False),
]


def usual_hooks(model: nn.Module) -> Callable[[], None]:
    """Place hooks that get the same numbers as people write them; give back what takes them off."""

    def read(tensor: torch.Tensor) -> None:
        with torch.no_grad():
            variance, mean = torch.var_mean(tensor)
            least, greatest = torch.aminmax(tensor)
            zeros = (tensor == 0).float().mean()
            nonfinite = (~torch.isfinite(tensor)).float().mean()
            kept[:] = [it.item() for it in (variance, mean, least, greatest, zeros, nonfinite)]

    def hook(_: nn.Module, __: Any, output: Any) -> None:
        for _, tensor in tensors_in(output):
            read(tensor.detach())
            if tensor.requires_grad:
                tensor.register_hook(read)

    kept: list[float] = []
    handles = [module.register_forward_hook(hook) for module in model.modules() if module is not model]
    return lambda: [handle.remove() for handle in handles] and None


def taps_with(**options: Any) -> Callable[[nn.Module], Callable[[], None]]:
    # As in a long run: what was read is not kept for ever.
    return lambda model: ts.model.tap(model, keep=1, **options).close


READERS: Mapping[str, Callable[[nn.Module], Callable[[], None]]] = {
    "outputs only": taps_with(gradients=False),
    JUDGED: taps_with(),
    USUAL: usual_hooks,
    "parameters too": taps_with(parameters=True),
    "copies": taps_with(values=True),
}


def pairs(case: Case, place: Callable[[nn.Module], Callable[[], None]], seconds: float) -> Pairs:
    """Let tapped and bare steps take turns in random order; times are the processor's."""
    torch.manual_seed(0)
    model, loss = case.make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def turn(is_tapped: bool) -> float:
        remove = place(model) if is_tapped else None  # placing the hooks is not part of a step
        begun = time.thread_time()
        for _ in range(case.num_steps):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()
        taken = time.thread_time() - begun
        if remove is not None:
            remove()
        return taken / case.num_steps

    order = random.Random(0)
    found: Pairs = []
    turn(True)
    turn(False)
    end = time.perf_counter() + seconds
    while len(found) < 10 or time.perf_counter() < end:
        first = order.random() < 0.5
        times = {is_tapped: turn(is_tapped) for is_tapped in (first, not first)}
        found.append((times[True], times[False]))
    return found


def ratio(found: Sequence[tuple[float, float]]) -> float:
    return statistics.median(tapped / bare for tapped, bare in found)


def row_of(case: Case, options: str, found: Pairs) -> Row:
    middle, error = estimate_with_error(found, ratio)
    each = spread([tapped / bare for tapped, bare in found])
    return {
        "model": case.label,
        "read": options,
        "ratio": middle,
        "±": error,
        "quartiles": f"{each.low:.2f} to {each.high:.2f}",
        "more, us": f"{statistics.median((tapped - bare) * 1e6 for tapped, bare in found):,.0f}",
        "bare step, us": f"{statistics.median(bare for _, bare in found) * 1e6:,.0f}",
        "turns": str(len(found)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="half a minute, with wider spreads")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[Row] = []
    judged: dict[str, dict[str, tuple[float, float]]] = {JUDGED: {}, USUAL: {}}
    for case in CASES:
        for name, place in READERS.items():
            found = pairs(case, place, 1.5 if options.quick else 5.0)
            rows.append(row_of(case, name, found))
            if case.is_judged and name in judged:
                judged[name][case.label] = estimate_with_error(found, ratio)
    sheet = Sheet(title="Time of a tapped step over a bare one, all modules tapped", rows=rows, num_digits=3)
    return report("tap_cost", sheets=[sheet], claims=claims_of(judged), as_json=options.json)


def claims_of(judged: Mapping[str, Mapping[str, tuple[float, float]]]) -> list[Claim]:
    worst, error = max(judged[JUDGED].values())
    dearest = max(judged[USUAL], key=lambda label: judged[USUAL][label])
    (ours, our_error), (usual, usual_error) = judged[JUDGED][dearest], judged[USUAL][dearest]
    share = (ours - 1) / (usual - 1)
    share_error = (our_error + share * usual_error) / (usual - 1)
    return [
        Claim(text=f"worst model with real work, {JUDGED}", found=worst, error=error, limit=MAX_RATIO),
        Claim(
            text=f"added time over that of usual calls, {dearest}",
            found=share,
            error=share_error,
            limit=MAX_OF_USUAL,
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
