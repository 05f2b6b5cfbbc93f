"""What every test gets: one thread, and torch's global settings as they were before it."""

import os

# Before torch is imported, and for every process that a test starts.
os.environ["OMP_NUM_THREADS"] = "1"

import random
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch
from hypothesis import settings

from tests import preloaded

torch.set_num_threads(1)

# A shell starts what it runs in the background with Ctrl-C ignored, and every process below inherits that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Timings depend on what else runs here, and a failure must be the same one the next time.
settings.register_profile("truestep", deadline=None, derandomize=True)
settings.load_profile("truestep")


def pytest_configure(config: pytest.Config) -> None:
    """Let what tests start with `sys.executable` or as `truestep` have torch imported already."""
    if preloaded.FOLDER not in os.environ:  # the workers of xdist share one server
        folder = tempfile.TemporaryDirectory(prefix="truestep-tests-")
        config.add_cleanup(folder.cleanup)
        preloaded.install(Path(folder.name))
        os.environ[preloaded.FOLDER] = folder.name
    is_starting_workers = getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput")
    if not is_starting_workers:
        preloaded.use(Path(os.environ[preloaded.FOLDER]))


@pytest.fixture(autouse=True)
def start_cold(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Start Python as users do in tests that are marked so."""
    if request.node.get_closest_marker("cold"):
        monkeypatch.setenv(preloaded.COLD, "1")


@pytest.fixture(autouse=True)
def restore_global_settings() -> Iterator[None]:
    """Give back what `Run` and the tests themselves change for the whole process."""
    threads = torch.get_num_threads()
    deterministic_mode = torch.get_deterministic_debug_mode()
    fills_memory = torch.utils.deterministic.fill_uninitialized_memory
    cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    precision = torch.get_float32_matmul_precision()
    dtype = torch.get_default_dtype()
    is_grad_enabled = torch.is_grad_enabled()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
    yield
    torch.set_num_threads(threads)
    # `use_deterministic_algorithms` would import inductor, 1.5 s, to set the same flag there.
    torch.set_deterministic_debug_mode(deterministic_mode)
    inductor = sys.modules.get("torch._inductor.config")
    if hasattr(inductor, "deterministic"):  # from torch 2.10 on
        inductor.deterministic = deterministic_mode > 0
    torch.utils.deterministic.fill_uninitialized_memory = fills_memory
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn
    torch.set_float32_matmul_precision(precision)
    torch.set_default_dtype(dtype)
    torch.set_grad_enabled(is_grad_enabled)
    for number, handler in handlers.items():
        signal.signal(number, handler)
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    numpy.random.set_state(states[2])
