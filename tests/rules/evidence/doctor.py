"""Evidence for the rules about machines: the changes of a sound one, for each rule and for its twin."""

from typing import Any

from truestep.rules.env._machine import GIB, MIB, Device, Need

_LOST = {"is_cuda_available": False, "devices": ()}
_SYMBOL = (
    "ImportError: libcusparse.so.12: undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12"
)
_NO_DRIVER = {**_LOST, "driver": None, "driver_cuda": None, "gpus": ()}
_UNKNOWN = "CUDA unknown error - this may be due to an incorrectly set up environment"
_BUSY = Device(name="NVIDIA A100-SXM4-40GB", capability="8.0")
_PLAIN = {**_LOST, "torch": "2.9.1+cpu", "build_cuda": None, "archs": ()}
_ARCHS = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
_OLDER = {"archs": _ARCHS, "torch": "2.9.1+cu126", "build_cuda": "12.6"}
_OLD = Need(owner="torchvision", name="torch", wanted="==2.8.0")
_WIDE = Need(owner="lightning", name="torch", wanted="<4.0,>=2.1.0")

CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ENV01": ({**_LOST, "torch": None, "torch_error": _SYMBOL}, {}),
    "ENV02": (_NO_DRIVER, {**_NO_DRIVER, "num_pci_gpus": 0}),
    "ENV03": (
        {**_LOST, "driver": "470.256.02", "driver_cuda": "11.4"},
        {"driver": "550.54.14", "driver_cuda": "12.4"},
    ),
    "ENV04": (
        {**_LOST, "cuda_error": _UNKNOWN},
        {"devices": (_BUSY, _BUSY), "gpus": (_BUSY.name, _BUSY.name)},
    ),
    "ENV05": (_PLAIN, {**_PLAIN, "gpus": (), "num_pci_gpus": 0, "driver": None, "driver_cuda": None}),
    "ENV06": (
        {**_OLDER, "devices": (Device(name="NVIDIA GeForce RTX 5090", capability="12.0"),)},
        {**_OLDER, "devices": (Device(name="NVIDIA GeForce RTX 4090", capability="8.9"),)},
    ),
    "ENV07": (
        {**_LOST, "variables": {"CUDA_VISIBLE_DEVICES": "2"}},
        {"variables": {"CUDA_VISIBLE_DEVICES": "0"}},
    ),
    "ENV10": (
        {"packages": {"torchvision": "0.23.0"}, "needs": (_OLD,)},
        {"packages": {"lightning": "2.5.6"}, "needs": (_WIDE,)},
    ),
    "ENV14": ({"cpu_quota": 2.0, "threads": 16}, {"cpu_quota": 15.5, "threads": 16}),
    "ENV16": (
        {"shm_bytes": 64 * MIB, "shm_free_bytes": 64 * MIB},
        {"shm_bytes": 2 * GIB, "shm_free_bytes": 2 * GIB},
    ),
}
