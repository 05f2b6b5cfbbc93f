"""What the order of samples costs and whether it is a shuffle, against `torch.randperm`.

Prints a table, or with --json one JSON object. Exit status 0 only if every claim holds.
"""

import argparse
import json
import math
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import order_statistics
import torch
from rich.console import Console
from rich.table import Table

from truestep.data.permutation import VERSION, Order

SIZES = {1000: 400, 2**20: 24, 1_000_003: 24}
"""Samples: seeds to spend on them."""
TINY = {3: 600, 4: 2400, 5: 12000}
NUM_ROUNDS = 7
BATCH = 32
MOST_TIMES_RANDPERM = 2.5
MOST_BYTES = 5_000_000


def measure_statistics() -> list[dict[str, Any]]:
    """Compare every statistic at every size; ours has to pass like randperm, two rounds have to fail."""
    rows = []
    shuffles = {
        "truestep": order_statistics.ours,
        "truestep, by epoch": order_statistics.ours_by_epoch,
        "torch.randperm": order_statistics.randperm,
        "two rounds (control)": order_statistics.ours_in_two_rounds,
    }
    for name, shuffle in shuffles.items():
        is_control = "control" in name
        for n, num_seeds in SIZES.items():
            seeds = math.isqrt(num_seeds) if is_control else num_seeds
            worst = order_statistics.worst(order_statistics.measure(shuffle, n, num_seeds=seeds))
            rows.append({"order": name, "n": n, "seeds": seeds, "worst_z": worst, "is_control": is_control})
        for n, num_seeds in TINY.items():
            z = abs(order_statistics.uniformity(shuffle, n, num_seeds=num_seeds))
            rows.append(
                {
                    "order": name,
                    "n": n,
                    "seeds": num_seeds,
                    "worst_z": {"uniform": z},
                    "is_control": is_control,
                }
            )
    return rows


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _read_all(n: int) -> None:
    order = Order(n, seed=1, epoch=0)
    for start in range(0, n, BATCH):
        order.indices(start, min(n, start + BATCH))


def _read_arrays(n: int) -> None:
    order = Order(n, seed=1, epoch=0)
    for start in range(0, n, 32768):
        order.array(start, min(n, start + 32768))


def _read_randperm(n: int) -> None:
    order = torch.randperm(n)
    for start in range(0, n, BATCH):
        order[start : start + BATCH].tolist()


def measure_time() -> list[dict[str, Any]]:
    """Time the orders in turn, so that whatever else runs here slows all of them alike."""
    rows = []
    for n, num_rounds in ((10**6, NUM_ROUNDS), (10**7, 3)):
        works: dict[str, Callable[[], object]] = {
            "compute": partial(_read_arrays, n),
            "compute, randperm": partial(torch.randperm, n),
        }
        if n == 10**6:
            works |= {
                "read 32s": partial(_read_all, n),
                "read 32s, randperm": partial(_read_randperm, n),
            }
        seconds: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(num_rounds):
            for name, work in works.items():
                seconds[name].append(_seconds(work))
        for name in list(works)[::2]:
            ratios = [
                ours / theirs
                for ours, theirs in zip(seconds[name], seconds[f"{name}, randperm"], strict=True)
            ]
            rows.append(
                {
                    "n": n,
                    "what": name,
                    "ns_per_index": statistics.median(seconds[name]) / n * 1e9,
                    "randperm_ns_per_index": statistics.median(seconds[f"{name}, randperm"]) / n * 1e9,
                    "ratio": statistics.median(ratios),
                }
            )
    return rows


def measure_memory() -> list[dict[str, int]]:
    """Return the most memory in use while 100,000 samples are asked for, by size of the dataset."""
    rows = []
    for n in (10**5, 10**7, 10**9, 10**12):
        tracemalloc.start()
        order = Order(n, seed=1, epoch=0)
        for start in range(0, 10**5, BATCH):
            order.indices(start, start + BATCH)
        rows.append({"n": n, "peak_bytes": tracemalloc.get_traced_memory()[1]})
        tracemalloc.stop()
    return rows


def judge(report: dict[str, Any]) -> dict[str, bool]:
    """Return each claim and whether it holds."""
    limit = order_statistics.LIMIT
    worst = [(row["is_control"], max(row["worst_z"].values())) for row in report["statistics"]]
    peaks = [row["peak_bytes"] for row in report["memory"]]
    return {
        f"every statistic of every order but the control is below {limit}": all(
            z < limit for is_control, z in worst if not is_control
        ),
        f"the control with two rounds goes beyond {limit} everywhere": all(
            z > limit for is_control, z in worst if is_control
        ),
        f"an index costs at most {MOST_TIMES_RANDPERM} times that of randperm": all(
            row["ratio"] <= MOST_TIMES_RANDPERM for row in report["time"]
        ),
        "10**12 samples need the memory of 10**5": max(peaks) < MOST_BYTES and max(peaks) < 1.5 * peaks[0],
    }


def show(report: dict[str, Any]) -> None:
    """Print the report for people."""
    console = Console(width=120)
    names = list(report["statistics"][0]["worst_z"])
    large = Table("order", "n", "seeds", *names, title="largest |z|: a shuffle stays below 4.5")
    tiny = Table("order", "n", "seeds", "|z|", title="how often each of the n! orders comes up")
    for row in report["statistics"]:
        cells = row["order"], f"{row['n']:,}", f"{row['seeds']:,}"
        z = [f"{value:.1f}" for value in row["worst_z"].values()]
        (tiny if row["n"] in TINY else large).add_row(*cells, *z)
    console.print(large)
    console.print(tiny)
    table = Table("n", "what", "ns per index", "randperm", "ratio", title="time, interleaved, medians")
    for row in report["time"]:
        numbers = (f"{row[key]:.2f}" for key in ("ns_per_index", "randperm_ns_per_index", "ratio"))
        table.add_row(f"{row['n']:,}", row["what"], *numbers)
    console.print(table)
    table = Table("n", "peak MB", "randperm MB", title="memory to read 100,000 samples in batches of 32")
    for row in report["memory"]:
        table.add_row(f"{row['n']:,}", f"{row['peak_bytes'] / 1e6:.2f}", f"{row['n'] * 8 / 1e6:,.1f}")
    console.print(table)
    for claim, holds in report["claims"].items():
        console.print(f"{'holds' if holds else 'FAILS'}: {claim}", highlight=False)


def main() -> int:
    """Measure, print, and return 0 if every claim holds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    report: dict[str, Any] = {
        "version": VERSION,
        "statistics": measure_statistics(),
        "time": measure_time(),
        "memory": measure_memory(),
    }
    report["claims"] = judge(report)
    if arguments.json:
        print(json.dumps(report))
    else:
        show(report)
    return 0 if all(report["claims"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
