"""A machine on which nothing is wrong."""

from truestep.rules.env._machine import GIB, Device, Machine, Need

SOUND = Machine(
    torch="2.9.1+cu128",
    build_cuda="12.8",
    archs=("sm_70", "sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120"),
    is_cuda_available=True,
    cudnn=91002,
    devices=(Device(name="NVIDIA A100-SXM4-40GB", capability="8.0"),),
    driver="570.86.15",
    driver_cuda="12.8",
    gpus=("NVIDIA A100-SXM4-40GB",),
    num_pci_gpus=1,
    toolkit="12.8",
    packages={"numpy": "2.3.4", "torchvision": "0.24.1+cu128", "accelerate": "1.11.0", "triton": "3.5.1"},
    needs=(
        Need(owner="torchvision", name="torch", wanted="==2.9.1"),
        Need(owner="accelerate", name="torch", wanted=">=2.0.0"),
    ),
    num_cores=32,
    num_usable_cores=32,
    memory_bytes=256 * GIB,
    threads=16,
    shm_bytes=128 * GIB,
    shm_free_bytes=127 * GIB,
)
"""A machine with a GPU on which nothing is wrong."""
