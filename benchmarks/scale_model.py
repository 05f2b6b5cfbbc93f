"""Claim: a few measured terms predict steps, snapshots, restarts and order within 25 % of each measurement.

Terms are fitted to some points (one and two processes, two sizes each) and checked on others: 1, 2, 3, 4 and
8 real gloo processes, other sizes, real kills. Then larger clusters are computed, with stated figures of such
clusters as inputs. Formulas: scale_formulas.py; fits and checks: scale_checks.py; timing: scale_terms.py.
Takes about 7 minutes. Prints tables, or with --json one JSON object. Exit status 0 only if every claim holds,
2 if it cannot tell: time by the clock is only judged where others left the machine alone. With --keep, turns
of several runs are put together, and only what was disturbed is measured again.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import scale_checks as checks
import scale_formulas as formulas
import scale_terms as terms
from measure import Claim, Row, Sheet, report

MOST_OFF = 0.25
RANKS = (10, 100, 1000, 10_000)
POWERS = (16, 128, 1024, 16_384)
SAMPLES = (10**6, 10**9, 10**12)
CLUSTER, JOB = formulas.Cluster(), formulas.Job()
GB = 1e9


def judge(points: Sequence[checks.Point]) -> list[Claim]:
    """One claim for each kind; one that others disturbed is not judged."""
    claims = []
    for kind in dict.fromkeys(point.kind for point in points):
        chosen = [point for point in points if point.kind == kind]
        found = max(abs(point.off) for point in chosen)
        is_judged = all(point.others <= 2 * terms.MAX_OTHERS for point in chosen)
        note = "" if is_judged else f"; not judged, as others used the machine: {found:.2f}"
        claims.append(
            Claim(
                text=f"{kind}: off from any of {len(chosen)} points that were not fitted{note}",
                found=found if is_judged else None,
                limit=MOST_OFF,
                unit="of it",
            )
        )
    return claims


def list_terms(groups: dict[str, Any]) -> Sheet:
    """Each term with its value."""
    rows: list[Row] = []
    for name, group in groups.items():
        values = asdict(group) if not isinstance(group, dict) else group
        for key, value in values.items():
            shown = (
                {f"{key}, {part}": number for part, number in value.items()}
                if isinstance(value, dict)
                else {key: value}
            )
            rows += [{"of": name, "term": term, "value": f"{number:.4g}"} for term, number in shown.items()]
    return Sheet(title="Terms, measured here", rows=rows, note="Seconds, unless the name says otherwise.")


def list_restarts(found: Mapping[tuple[int, int], terms.Restarted]) -> Sheet:
    rows: list[Row] = [
        {"processes": str(size), "model, MB": str(blocks), **turn._asdict()}
        for (size, blocks), turn in found.items()
    ]
    return Sheet(title="Restarts in parts, measured", rows=rows, num_digits=2)


def list_ranks(sizes: Sequence[int], books: checks.Books) -> Sheet:
    """Steps on a cluster, computed."""
    rows = []
    for size in sizes:
        step = formulas.cluster_step(size, CLUSTER, JOB)
        books_s = books.lanes.at(size)
        rows.append(
            {
                "ranks": f"{size:,}",
                "compute, s": step["compute_s"],
                "bytes, s": step["bytes_s"],
                "messages, s": step["messages_s"],
                "small talk, s": step["ring_s"],
                "books, s": books_s,
                "step, s": sum(step[name] for name in ("compute_s", "bytes_s", "messages_s", "ring_s"))
                + books_s,
                "sharded: messages, s": step["shard_messages_s"],
                "sent, GB": step["sent"] / GB,
                "messages": f"{step['messages']:,.0f}",
                "connections": f"{books.sockets.at(size):,.0f}",
            }
        )
    note = (
        f"Computed, nothing overlapped. Inputs, not ours: {CLUSTER}; {JOB}. Books and connections: our terms."
    )
    return Sheet(title="A step on a cluster, computed", rows=rows, note=note, num_digits=3)


def list_snapshots(sizes: Sequence[int], lines: dict[str, formulas.Line]) -> Sheet:
    rows = []
    for size in sizes:
        found = formulas.cluster_snapshot(size, CLUSTER, JOB)
        rows.append(
            {
                "ranks": f"{size:,}",
                "all, GB": found["total_bytes"] / GB,
                "each rank, GB": found["rank_bytes"] / GB,
                "holds the loop, s": found["held_s"],
                "written in, s": found["write_s"],
                "held by a rank as slow as here, s": lines["hold"].at(found["rank_bytes"]),
                "written by it in, s": lines["write"].at(found["rank_bytes"]),
            }
        )
    return Sheet(title="A sharded snapshot on a cluster, computed", rows=rows, num_digits=3)


def list_samples(order: formulas.Order) -> Sheet:
    rows = [
        {
            "samples": f"{number:.0e}",
            "index in memory, MB": order.num_bytes / 1e6,
            "a shuffled list, MB": 8 * number / 1e6,
            "each index, ns": 1e9 * order.index_s(number),
            "a batch of 160,000, ms": 1e3 * 160_000 * order.index_s(number),
            "first chunk after resuming, ms": 1e3 * 2048 * order.index_s(number),
        }
        for number in SAMPLES
    ]
    return Sheet(title="The order of samples, computed from our terms", rows=rows, num_digits=2)


def measure(options: argparse.Namespace) -> tuple[list[Sheet], list[Claim]]:
    """Measure, fit, check, and compute what is larger than this machine."""
    kept, load = checks.Kept(options.keep), os.getloadavg()
    groups = {size: checks.time_group(size, options.seconds, kept) for size in checks.SIZES}
    machine = checks.fit_machine(groups, len(os.sched_getaffinity(0)))
    points = [*checks.check_steps(groups, machine)]
    lines, found = checks.check_snapshots(kept)
    points += found
    restarts = checks.time_restarts(kept, options.restarts)
    restart, found = checks.check_restarts(machine, restarts)
    points += found
    order, found = checks.check_order(kept)
    points += found
    books, found = checks.check_books(kept)
    points += found
    values = {"crossing processes": machine, **checks.fit_tasks(groups, machine), "restart": restart}
    values |= {f"snapshot, {name}": line for name, line in lines.items()} | {"order": order, "books": books}
    sizes = sorted({*RANKS, *POWERS})
    sheets = [
        list_terms(values),
        Sheet(
            title="Predicted and measured; none of these points was fitted",
            rows=[point.row for point in points],
            note=f"Load before: {load[0]:.1f}, {load[1]:.1f}, {load[2]:.1f}. Others: cores that others used.",
            num_digits=2,
        ),
        list_restarts(restarts),
        list_ranks(sizes, books),
        list_snapshots(sizes, lines),
        list_samples(order),
    ]
    return sheets, judge(points)


def main() -> int:
    """Measure, print, and return 0 if every claim holds."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=25.0, help="for each number of processes")
    parser.add_argument("--restarts", type=int, default=2, help="rounds of kills and restarts")
    parser.add_argument("--cores", type=int, help="use so many cores (default: all)")
    parser.add_argument("--keep", help="a JSON file of what is finished")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    options = parser.parse_args()
    if options.cores:
        terms.pin(options.cores)
    sheets, claims = measure(options)
    return report("scale_model", sheets=sheets, claims=claims, as_json=options.json)


if __name__ == "__main__":
    sys.exit(main())
