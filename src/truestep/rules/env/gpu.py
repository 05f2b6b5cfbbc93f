"""Rules for the machine: whether torch can use the GPUs that are there."""

import re
from collections.abc import Iterator

from truestep.rules import Finding
from truestep.rules.env._machine import Machine, advice, machine_rule, major

_INDEX = "https://download.pytorch.org/whl/"
_INSTALL = f"pip install --force-reinstall torch --index-url {_INDEX}"

_NO_DRIVER = {
    "version mismatch": "Restart the machine: the driver was updated, and its library no longer matches the "
    "loaded kernel module.",
    "couldn't communicate": "Load the driver's kernel module (sudo modprobe nvidia), or reinstall the driver "
    "for the running kernel.",
    "Unknown Error": "Restart the container: it lost access to the GPU devices, which happens "
    "when systemd reloads on the host.",
    "No devices were found": "Check dmesg for messages that start with NVRM: the driver is loaded but "
    "lost the GPU. A restart brings it back.",
    "did not answer": "Check dmesg for messages that start with NVRM: a GPU that does not answer needs a "
    "restart.",
}
_CERTAIN = ("version mismatch", "Unknown Error", "did not answer")
"""What the driver only says where there is a card, though it may not be seen on the bus."""


@machine_rule(
    "ENV02",
    "warning",
    fix="Install NVIDIA's driver; in a container, start it with --gpus all.",
)
def missing_driver(machine: Machine) -> Iterator[Finding]:
    """There is an NVIDIA GPU and a torch for it, but the driver does not answer.

    ## What it finds
    A GPU on the bus and a build of torch for CUDA, while `nvidia-smi` is missing or cannot reach the driver.

    ## Why it matters
    torch falls back to the CPU without an error, and training is ten to a hundred times slower.
    """
    if machine.build_cuda is None or machine.is_cuda_available or machine.gpus:
        return
    error = machine.driver_error or ""
    if not machine.num_pci_gpus and not any(sign in error for sign in _CERTAIN):
        return  # an image with the driver in it may run on a machine without a card
    cards = f"{machine.num_pci_gpus} NVIDIA GPU{'s' if machine.num_pci_gpus != 1 else ''} on the bus"
    yield Finding(
        message="the machine has an NVIDIA GPU, but its driver does not answer"
        if machine.num_pci_gpus
        else "NVIDIA's driver does not answer",
        evidence=f"{cards}; nvidia-smi: {error or 'not installed'}",
        fix=advice(error, _NO_DRIVER),
    )


_LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
"""See https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html."""
_OLDER_BUILD = {12: "cu126"}
"""What torch is still built with, by the driver's major version of CUDA. Nothing for 11 since torch 2.8."""


@machine_rule(
    "ENV03",
    "error",
    fix="Update NVIDIA's driver, or install a build of torch for an older CUDA.",
)
def outdated_driver(machine: Machine) -> Iterator[Finding]:
    """The driver is too old for the CUDA that torch was built with.

    ## What it finds
    CUDA does not start, and the highest CUDA version of the driver (the number in `nvidia-smi`) has a lower
    major version than the build's. Within one major version, older drivers run newer builds.

    ## Why it matters
    torch prints a warning and falls back to the CPU. Another toolkit (`nvcc`) changes nothing: torch brings
    its own CUDA, and only the driver comes from the system.
    """
    has, wants = major(machine.driver_cuda), major(machine.build_cuda)
    if machine.is_cuda_available or not has or has >= wants:
        return
    least = f" to {_LEAST_DRIVER[wants]} or newer" if wants in _LEAST_DRIVER else ""
    fix = f"Update NVIDIA's driver{least}"
    if has in _OLDER_BUILD:
        fix += f", or install a build that it supports: {_INSTALL}{_OLDER_BUILD[has]}"
    yield Finding(
        message=f"the driver supports CUDA up to {machine.driver_cuda}, but torch was built with "
        f"{machine.build_cuda}",
        evidence=f"driver {machine.driver}, torch {machine.torch}; starting CUDA: "
        f"{machine.cuda_error or 'failed'}",
        fix=f"{fix}. The toolkit's version (nvcc) does not matter.",
    )


_NO_START = {
    "not yet initialized": "Start NVIDIA's fabric manager, which GPUs on an NVSwitch need: "
    "sudo systemctl start nvidia-fabricmanager.",
    "unsupported display driver": "Restart the machine: the driver's library and the loaded kernel module "
    "have different versions.",
    "forward compatibility": "Remove the cuda-compat package from LD_LIBRARY_PATH, or restart the machine "
    "after the driver update: this GPU does not support it.",
    "unknown error": "Reload the driver's module (sudo modprobe -r nvidia_uvm && sudo modprobe "
    "nvidia_uvm), which is lost when a machine sleeps. In a container, check /dev/nvidia-uvm. Set "
    "CUDA_VISIBLE_DEVICES before Python starts.",
    "out of memory": "Free the GPU's memory: nvidia-smi shows which processes use it.",
    "no answer": "Restart the machine: a GPU that hangs at start does not recover without a restart.",
}


@machine_rule(
    "ENV04",
    "error",
    fix="Restart the machine or the container. If that does not help, search dmesg for lines that start "
    "with NVRM.",
    caused_by=("ENV06",),
)
def failed_start(machine: Machine) -> Iterator[Finding]:
    """CUDA does not start, although driver and build match.

    ## What it finds
    CUDA is not available, or adding two numbers on a device fails, while the driver sees GPUs, is new enough,
    and no environment variable excludes them.

    ## Why it matters
    torch falls back to the CPU with a warning that is easy to miss.
    """
    broken = [device for device in machine.devices if device.error]
    if broken:
        text = f"{broken[0].name}: {broken[0].error}"
        yield _not_started(f"{len(broken)} of {len(machine.devices)} GPUs cannot be used", text)
    elif machine.cuda_error and machine.build_cuda and machine.gpus and not machine.is_cuda_available:
        is_new_enough = major(machine.driver_cuda) >= major(machine.build_cuda) or machine.driver_cuda is None
        if is_new_enough and machine.num_visible_gpus:
            yield _not_started("CUDA does not start, although driver and build match", machine.cuda_error)


def _not_started(message: str, text: str) -> Finding:
    return Finding(message=message, evidence=text, fix=advice(text, _NO_START))


_BUILD_FOR_DRIVER = {12: "cu126", 13: "cu130"}


@machine_rule(
    "ENV05",
    "warning",
    fix="Install a build of torch with CUDA. Find the command on https://pytorch.org/get-started/locally.",
)
def cpu_build(machine: Machine) -> Iterator[Finding]:
    """A CPU-only build of torch is installed on a machine with a GPU.

    ## What it finds
    A driver that sees NVIDIA GPUs, and a build of torch without CUDA.

    ## Why it matters
    CUDA is not available and nothing shows why. The cause is the wrong index (`.../whl/cpu`), an environment
    copied from another machine, or a package that replaced the build.

    ## How to fix
    Install a build with CUDA. If you want the CPU, suppress this rule: `ignore = ["cpu-build"]` under
    `[tool.truestep.check]` in `pyproject.toml`.
    """
    if machine.torch is None or machine.build_cuda or machine.build_hip or not machine.gpus:
        return
    build = _BUILD_FOR_DRIVER.get(major(machine.driver_cuda))
    yield Finding(
        message="this build of torch cannot use the machine's GPU",
        evidence=f"torch {machine.torch} is a CPU-only build; driver {machine.driver} sees {machine.gpus[0]}",
        fix=f"Install a build that the driver supports: {_INSTALL}{build}." if build else None,
    )


_ARCH = re.compile(r"(sm|compute)_(\d+)(\d)([af]?)")
_LAST_OF_12_6, _FIRST_OF_12_8 = (7, 0), (10, 0)
Capability = tuple[int, int]


@machine_rule(
    "ENV06",
    "error",
    fix="Install a build of torch that has kernels for it: https://pytorch.org/get-started/locally.",
)
def unsupported_card(machine: Machine) -> Iterator[Finding]:
    """This build of torch has no kernels for this GPU.

    ## What it finds
    A GPU whose compute capability the build was not compiled for. Kernels for 8.0 also run on 8.6 and 8.9,
    but not on 7.5 or 9.0.

    ## Why it matters
    The first operation fails with "no kernel image is available for execution on the device", although
    `torch.cuda.is_available()` is true.
    """
    if machine.build_cuda is None or not machine.archs:
        return
    for device in machine.devices:
        if device.capability is None:
            continue
        one, two = (int(part) for part in device.capability.split("."))
        if not any(_runs_on(arch, (one, two)) for arch in machine.archs):
            yield Finding(
                message=f"torch {machine.torch} has no kernels for {device.name}",
                evidence=f"its compute capability is {device.capability}; the build has "
                f"{', '.join(machine.archs)}",
                fix=_build_for((one, two), machine),
            )
            return


def _runs_on(arch: str, capability: Capability) -> bool:
    found = _ARCH.fullmatch(arch)
    if found is None:
        return True  # a name that is not known yet proves nothing
    target = (int(found[2]), int(found[3]))
    if found[4] == "a":
        return target == capability
    return target <= capability and (found[1] == "compute" or target[0] == capability[0])


def _build_for(capability: Capability, machine: Machine) -> str | None:
    if capability >= _FIRST_OF_12_8:
        build = "cu130" if major(machine.driver_cuda) >= 13 else "cu129"
        return f"Install a build with CUDA 12.8 or newer, the first for this GPU: {_INSTALL}{build}."
    if capability <= _LAST_OF_12_6 and not (machine.build_cuda or "").startswith("12.6"):
        return f"Install the build with CUDA 12.6, the last for GPUs this old: {_INSTALL}cu126."
    return None


@machine_rule(
    "ENV07",
    "warning",
    fix="Unset CUDA_VISIBLE_DEVICES, or set it to numbers that nvidia-smi -L lists, before Python starts.",
)
def hidden_devices(machine: Machine) -> Iterator[Finding]:
    """CUDA_VISIBLE_DEVICES excludes the machine's GPUs.

    ## What it finds
    A value that excludes every GPU (`-1`, or empty), or that names one that does not exist: CUDA then ignores
    that number and all that follow it.

    ## Why it matters
    Training falls back to the CPU, or runs on fewer GPUs than you asked for, without an error.
    """
    text = machine.variables.get("CUDA_VISIBLE_DEVICES")
    if text is None or not machine.gpus or machine.build_cuda is None:
        return
    num_visible, num_gpus = machine.num_visible_gpus, len(machine.gpus)
    if num_visible == len(text.split(",")):
        return
    excluded = "GPUs that were asked for" if num_visible else "every GPU"
    yield Finding(
        message=f"CUDA_VISIBLE_DEVICES excludes {excluded}",
        evidence=f"it is {text!r}, which leaves {num_visible} visible; "
        f"the machine has {num_gpus}, numbered from 0",
    )
