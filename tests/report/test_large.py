"""A million steps: the report stays small and quick."""

import json
import re
import time
from pathlib import Path

import numpy as np
import pytest

from truestep.report.compose import write_report

NUM_STEPS = 1_000_000
PER_LINE = 500
"""As a loop of a thousand steps a second writes them."""
SPIKE = 654_321


def _write(folder: Path) -> None:
    random = np.random.default_rng(0)
    losses = 3 / (1 + np.arange(NUM_STEPS) / 1e4) + random.random(NUM_STEPS) * 0.3
    losses[SPIKE] = 77.0
    with (folder / "record.jsonl").open("w") as file:
        begun = {"kind": "start", "time_s": 1.0, "version": 1, "cursor": 0, "processes": 1}
        file.write(json.dumps(begun) + "\n")
        for first in range(0, NUM_STEPS, PER_LINE):
            steps = list(range(first, first + PER_LINE))
            numbers = losses[first : first + PER_LINE].tolist()
            ends_us = [1000 * step + 1000 for step in steps]
            line = {"kind": "steps", "time_s": 1.0, "first": first, "loss": numbers, "end_us": ends_us}
            file.write(json.dumps(line | {"wait_us": [50] * PER_LINE}) + "\n")
            for name in ("grad_norm", "learning_rate"):
                values = {"kind": "values", "time_s": 1.0, "name": name, "steps": steps, "values": numbers}
                file.write(json.dumps(values) + "\n")


@pytest.mark.slow
def test_a_million_steps_make_a_report_below_1_mb_in_10_s(tmp_path: Path) -> None:
    _write(tmp_path)
    begun_s = time.process_time()  # others may use this machine as well
    path = write_report(tmp_path)
    spent_s = time.process_time() - begun_s
    page = path.read_text()
    print(f"{path.stat().st_size / 1e6:.2f} MB in {spent_s:.1f} s of the processor")
    assert path.stat().st_size < 1e6
    assert spent_s < 10
    assert "highest 77 at step 654,322" in page
    points = re.findall(r"L([\d.]+) ([\d.]+)", page)
    assert min(points, key=lambda point: float(point[1]))[0] == "654.3", "the spike is drawn"
