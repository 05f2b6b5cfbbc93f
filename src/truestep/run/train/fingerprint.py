"""What the bits depend on besides the script, pinned and described.

Owns torch's global settings and the environment variables that change kernels. Compares nothing.
"""

import platform
from typing import Any

import torch

from truestep.base.bits import matmul_precision
from truestep.base.cores import num_cores
from truestep.base.device import describe, pinned_variables
from truestep.base.variables import read_variables, set_defaults


def pin_settings(threads: int | None, *, num_lanes: int) -> None:
    """Fix the settings that would let the same computation give other bits."""
    if threads is None and num_lanes > 1:
        # bits: the number of threads must not depend on that of processes, which torchrun would have it do.
        # Shared out over the lanes: as many processes as lanes then use all cores, and no core is used twice.
        threads = max(1, num_cores() // num_lanes)
    if threads is not None:
        torch.set_num_threads(threads)
    # bits: refuse kernels whose result depends on scheduling. Filling fresh memory is a debugging aid that
    # costs a pass over every output, and results that depend on fresh memory are wrong anyway.
    # Not `use_deterministic_algorithms`: it imports the compiler, 1.5 s, to set a flag there; `place` does so
    # when it compiles.
    torch.set_deterministic_debug_mode("error")
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    set_defaults(pinned_variables())


def fingerprint(device: torch.device) -> dict[str, Any]:
    """Describe what the bits depend on: build, machine, threads, flags. Equal means: promised the same."""
    facts: dict[str, Any] = {
        "torch": torch.__version__,
        "torch_commit": torch.version.git_version,
        **describe(device),
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "matmul_precision": matmul_precision(),
        "default_dtype": str(torch.get_default_dtype()),
        "mkldnn": torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled,
    }
    return facts | read_variables(("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "MKL_CBWR"))
