"""How much memory a process has used at most."""

import subprocess
import sys

import torch

from truestep.base.device import peak_bytes
from truestep.base.memory import process_peak_bytes

LARGER = """\
import subprocess, sys
held = bytearray(1_500_000_000)
for at in range(0, len(held), 4096):
    held[at] = 1
code = "from truestep.base.memory import process_peak_bytes; print(process_peak_bytes())"
print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
"""


def test_a_large_tensor_raises_the_peak_and_its_end_does_not_lower_it() -> None:
    before = process_peak_bytes()
    num_bytes = before + 200_000_000  # more than was ever there at once
    held = torch.ones(num_bytes, dtype=torch.uint8)
    assert process_peak_bytes() >= num_bytes
    del held
    assert process_peak_bytes() >= num_bytes  # the kernel counts to some pages only
    assert peak_bytes() >= num_bytes or torch.cuda.is_initialized()


def test_a_process_that_a_larger_one_started_counts_itself_alone() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LARGER], capture_output=True, text=True, check=True, timeout=120
    )
    assert 50_000_000 < int(done.stdout) < 1_000_000_000
