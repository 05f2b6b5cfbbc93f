"""The probe: what is installed on this machine, whether it starts, and what it is limited to.

Owns asking. Nothing here was tried on a GPU. torch is asked in a process of its own: a build that does not
fit may crash or hang, and what it said until then still counts.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterable
from contextlib import suppress
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from truestep.base.cores import num_cores
from truestep.base.variables import read_variables
from truestep.rules.env._machine import Device, Machine, Need

COMPANIONS = (
    "accelerate",
    "bitsandbytes",
    "evaluate",
    "lightning",
    "numpy",
    "pytorch-lightning",
    "torchao",
    "torchaudio",
    "torchdata",
    "torchmetrics",
    "torchvision",
    "transformers",
    "triton",
)
VARIABLES = (
    "CUDA_HOME",
    "CUDA_VISIBLE_DEVICES",
    "LD_LIBRARY_PATH",
    "MKL_NUM_THREADS",
    "NVIDIA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
)
_EXTRAS = {"transformers": ("torch", "accelerate")}
"""It turns torch off, or its trainer, where these are too old, and asks for them in no other place."""
_TORCH_PATIENCE_S = 180.0
_TOOL_PATIENCE_S = 20.0
_NVIDIA, _DISPLAY = "0x10de", "0x03"
_ASK_TORCH = "from truestep.doctor.survey import print_torch; print_torch()"


def probe() -> Machine:
    """Return what is found out about this machine. Takes as long as importing torch."""
    facts: dict[str, Any] = {
        **_about_host(),
        **read_limits(Path("/")),
        **_about_driver(),
        **_about_packages(),
        **_ask_torch(),
        "num_pci_gpus": _count_cards(Path("/sys/bus/pci/devices")),
        "toolkit": _find_toolkit(),
    }
    facts["archs"] = tuple(facts.get("archs", ()))
    facts["devices"] = tuple(Device(**item) for item in facts.get("devices", ()))
    return Machine(**facts)


def _about_host() -> dict[str, Any]:
    return {
        "platform": sys.platform,
        "processor": platform.machine(),
        "python": platform.python_version(),
        "num_cores": os.cpu_count() or 1,
        "num_usable_cores": num_cores(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        **_about_shared_memory(),
    }


def _about_shared_memory() -> dict[str, int]:
    try:
        found = os.statvfs("/dev/shm")
    except OSError:
        return {}
    return {
        "shm_bytes": found.f_frsize * found.f_blocks,
        "shm_free_bytes": found.f_frsize * found.f_bavail,
    }


def read_limits(root: Path) -> dict[str, Any]:
    """Return the processor time and the memory that the control groups grant: the least on the way up."""
    quotas: list[float] = []
    limits: list[int] = []
    mount = root / "sys/fs/cgroup"
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        folder = mount / line.split(":", 2)[2].lstrip("/")
        for group in (folder, *(above for above in folder.parents if above.is_relative_to(mount))):
            quota, _, period = (_read(group / "cpu.max") or "max").partition(" ")
            if quota != "max":
                quotas.append(int(quota) / int(period))
            limit = _read(group / "memory.max") or "max"
            if limit != "max":
                limits.append(int(limit))
    return {"cpu_quota": min(quotas, default=None), "memory_limit_bytes": min(limits, default=None)}


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _count_cards(bus: Path) -> int:
    return sum(
        _read(device / "vendor") == _NVIDIA and (_read(device / "class") or "").startswith(_DISPLAY)
        for device in (bus.iterdir() if bus.is_dir() else ())
    )


def _about_driver() -> dict[str, Any]:
    said, error = _run("nvidia-smi")
    if said is None:
        return {"driver_error": error}
    # From driver 590 on the two numbers are called after the halves of the driver.
    driver = re.search(r"(?:Driver|KMD) Version:\s*([\d.]+)", said)
    highest = re.search(r"CUDA (?:UMD )?Version:\s*(\d+\.\d+)", said)
    listed, _ = _run("nvidia-smi", "-L")
    return {
        "driver": driver[1] if driver else None,
        "driver_cuda": highest[1] if highest else None,
        "gpus": tuple(re.findall(r"^GPU \d+: (.+?)(?: \(UUID.*)?$", listed or "", flags=re.MULTILINE)),
    }


def _find_toolkit() -> str | None:
    said, _ = _run("nvcc", "-V")
    if said is None:
        said, _ = _run("/usr/local/cuda/bin/nvcc", "-V")
    found = re.search(r"release (\d+\.\d+)", said or "")
    return found[1] if found else None


def _run(*words: str) -> tuple[str | None, str | None]:
    """Return what a tool prints, or what is wrong with it; nothing at all if it is not there."""
    if shutil.which(words[0]) is None:
        return None, None
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=_TOOL_PATIENCE_S, errors="replace"
        )
    except subprocess.TimeoutExpired:
        return None, f"{words[0]} did not answer within {_TOOL_PATIENCE_S:.0f} s"
    except OSError as error:
        return None, str(error)
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        return None, lines[0] if lines else f"{words[0]} ended with {done.returncode}"
    return done.stdout, None


def _about_packages() -> dict[str, Any]:
    needs = [need for owner in ("truestep", "torch", *COMPANIONS) for need in _needs_of(owner)]
    packages = {name: _version(name) for name in (*COMPANIONS, *(need.name for need in needs))}
    present = {name: version for name, version in packages.items() if version and name != "torch"}
    return {
        "packages": present,
        "needs": tuple(need for need in needs if need.name in present or need.name == "torch"),
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _needs_of(owner: str) -> list[Need]:
    try:
        lines = metadata.requires(owner) or []
    except metadata.PackageNotFoundError:
        return []
    found = read_needs(owner, lines, extras=_EXTRAS.get(owner, ()))
    return [need for need in found if need.name in (*COMPANIONS, "torch") or need.name.startswith("nvidia-")]


def read_needs(owner: str, lines: Iterable[str], *, extras: Iterable[str] = ()) -> list[Need]:
    """Return what the lines of a package's metadata ask for on this machine."""
    found: dict[Need, None] = {}
    for line in lines:
        with suppress(InvalidRequirement):
            need = Requirement(line)
            environments = [{"extra": extra} for extra in ("", *extras)]
            if need.specifier and (need.marker is None or any(map(need.marker.evaluate, environments))):
                found[Need(owner=owner, name=canonicalize_name(need.name), wanted=str(need.specifier))] = None
    return list(found)


def _ask_torch() -> dict[str, Any]:
    """Return what torch says of itself in a process of its own, as far as it came."""
    # -P: a file called torch.py in this folder is not what is asked about.
    words = [sys.executable, "-P", "-c", _ASK_TORCH]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=_TORCH_PATIENCE_S, errors="replace"
        )
    except subprocess.TimeoutExpired as late:
        said = (late.stdout or b"").decode(errors="replace")
        return read_answer(said, f"no answer within {_TORCH_PATIENCE_S:.0f} s")
    trouble = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
    if done.returncode < 0:
        trouble = f"the process was killed by signal {-done.returncode}"
    return read_answer(done.stdout, trouble if done.returncode else None)


def read_answer(said: str, trouble: str | None) -> dict[str, Any]:
    """Return the facts in what the process has printed; where it broke off is where the trouble is."""
    facts: dict[str, Any] = {}
    for line in said.splitlines():
        if line.startswith("{"):
            facts |= json.loads(line)
    if trouble is not None:
        facts["cuda_error" if "torch" in facts else "torch_error"] = trouble
    return facts


def print_torch() -> None:
    """Print facts about torch, a line for each part. Runs in a separate process."""
    try:
        torch: Any = import_module("torch")
    except Exception as error:  # noqa: BLE001 - it may be broken or missing: whatever it says is the answer
        _print_facts({"torch_error": f"{type(error).__name__}: {error}"})
        return
    for part in (_about_build, _about_cuda, _about_devices):
        _print_facts(part(torch))


def _print_facts(facts: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


def _about_build(torch: Any) -> dict[str, Any]:
    flags = getattr(torch._C, "_cuda_getArchFlags", None)
    return {
        "torch": torch.__version__,
        "build_cuda": torch.version.cuda,
        "build_hip": torch.version.hip,
        "archs": (flags() or "").split() if flags else [],
        "threads": torch.get_num_threads(),
        "variables": read_variables(VARIABLES),
    }


def _about_cuda(torch: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if torch.version.cuda is None and torch.version.hip is None:
        return facts
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        facts["is_cuda_available"] = torch.cuda.is_available()
    if not facts["is_cuda_available"]:
        facts["cuda_error"] = " ".join(str(item.message) for item in caught) or None
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as error:
            facts["cuda_error"] = facts["cuda_error"] or str(error)
    with suppress(RuntimeError):  # torch refuses one of another version
        facts["cudnn"] = torch.backends.cudnn.version()
    return facts


def _about_devices(torch: Any) -> dict[str, Any]:
    devices: list[dict[str, Any]] = []
    kind = torch.accelerator.current_accelerator(check_available=True)
    for number in range(0 if kind is None else torch.accelerator.device_count()):
        name, module = f"{kind.type}:{number}", torch.get_device_module(kind)
        device = {"name": module.get_device_name(number) if hasattr(module, "get_device_name") else name}
        if kind.type == "cuda":
            device["capability"] = ".".join(map(str, torch.cuda.get_device_capability(number)))
        try:
            torch.ones(1, device=name).add(1).item()
        except RuntimeError as error:
            device["error"] = str(error).splitlines()[0]
        devices.append(device)
    return {"devices": devices}
