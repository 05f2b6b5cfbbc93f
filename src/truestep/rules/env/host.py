"""Rules for the machine: whether torch starts, matches its packages, and gets cores and memory."""

from collections.abc import Iterator

from truestep.rules import Finding
from truestep.rules.env._machine import MIB, Machine, Need, advice, does_satisfy, machine_rule, major

_NO_TORCH = {
    "No module named 'torch'": "Install it: pip install torch. The command for your machine is on "
    "https://pytorch.org/get-started/locally.",
    "undefined symbol": "Unset LD_LIBRARY_PATH and retry: torch must find the libraries that it brings, "
    "not those of another CUDA. If that does not help, reinstall torch with its nvidia-* packages.",
    "cannot open shared object file": "Reinstall torch together with the library: pip install "
    "--force-reinstall torch.",
    "GLIBC": "Install a build of torch for this system's C library, or use a newer system image.",
    "did not answer": "Check the disk with Python's packages: importing torch reads 1 GB.",
    "no answer": "Check the disk with Python's packages: importing torch reads 1 GB.",
}


@machine_rule(
    "ENV01",
    "error",
    fix="Install torch into a new environment: pip install torch.",
)
def broken_torch(machine: Machine) -> Iterator[Finding]:
    """The package torch is not installed, or cannot be imported.

    ## What it finds
    An `import torch` that fails: torch is not installed, a library that it needs is missing, or a wrong
    version of one is found first.

    ## Why it matters
    You cannot train. Most often a path in `LD_LIBRARY_PATH` leads to another CUDA, or a package replaced one
    of torch's `nvidia-*` packages.
    """
    if machine.torch_error is None:
        return
    is_missing = "No module named 'torch'" in machine.torch_error
    yield Finding(
        message="torch is not installed" if is_missing else "torch cannot be imported",
        evidence=machine.torch_error,
        fix=advice(machine.torch_error, _NO_TORCH),
    )


@machine_rule(
    "ENV10",
    "warning",
    fix="Install both in one command, so that pip finds versions that match.",
)
def unmet_requirement(machine: Machine) -> Iterator[Finding]:
    """A package requires another version of torch, or of a related package, than the installed one.

    ## What it finds
    torchvision, lightning, accelerate, transformers and others whose metadata requires a different version
    than the installed one, and CUDA libraries for which torch requires another version.

    ## Why it matters
    `pip install` of one package replaces torch and mentions the rest in a line that scrolls by. The results
    are missing operators, failing imports, or a trainer that disables itself.
    """
    installed = {**machine.packages, **({"torch": machine.torch} if machine.torch else {})}
    unmet = [need for need in machine.needs if need.name in installed and not _is_met(need, installed)]
    if not unmet:
        return
    owners = ", ".join(dict.fromkeys(need.owner for need in unmet))
    names = ", ".join(dict.fromkeys(need.name for need in unmet))
    needs = [f"{_called(need.owner, installed)} needs {need.name}{need.wanted}" for need in unmet]
    there = ", ".join(f"{name} {installed[name]}" for name in dict.fromkeys(need.name for need in unmet))
    yield Finding(
        message=f"{owners} {'does' if ',' not in owners else 'do'} not match the installed {names}",
        evidence=f"{'; '.join(needs)}; installed: {there}",
        fix=_install(unmet, machine),
        count=len(unmet),
    )


def _is_met(need: Need, installed: dict[str, str]) -> bool:
    version = installed[need.name]
    if need.owner == "torch" and need.name.startswith("nvidia-"):
        # It asks for one version, and runs with later ones of the same major version.
        is_later = does_satisfy(version, need.wanted.replace("==", ">="))
        return is_later and major(version) == major(need.wanted.lstrip("="))
    return does_satisfy(version, need.wanted)


def _called(owner: str, installed: dict[str, str]) -> str:
    return f"{owner} {installed[owner]}" if owner in installed else owner


def _install(unmet: list[Need], machine: Machine) -> str:
    """Return the command: what depends on torch follows it, what torch or truestep ask for is put back."""
    words: dict[str, None] = {}
    for need in unmet:
        if need.name == "torch" and need.owner != "truestep":
            words.setdefault(f"torch=={(machine.torch or '').partition('+')[0]}")
            words.setdefault(need.owner)
        else:
            words.setdefault(f"{need.name}{need.wanted}".replace(" ", ""))
    return f"Install matching versions in one command: pip install -U {' '.join(map(repr, words))}."


_TOO_MANY = 1.5


@machine_rule(
    "ENV14",
    "warning",
    fix="Set OMP_NUM_THREADS to the number of available cores.",
)
def crowded_cores(machine: Machine) -> Iterator[Finding]:
    """There are more threads for torch than cores.

    ## What it finds
    A number of threads at least one and a half times the cores that the container's quota or the process's
    affinity allows.

    ## Why it matters
    torch counts the cores of the machine, not those of the container. With 64 threads on 2 cores the threads
    wait for each other, and CPU operations are many times slower than with 2 threads.
    """
    granted = machine.num_granted_cores
    if machine.threads is None or machine.threads < _TOO_MANY * granted:
        return
    quota = f", a quota of {machine.cpu_quota:g}" if machine.cpu_quota is not None else ""
    yield Finding(
        message=f"torch uses {machine.threads} threads on {granted} core{'s' if granted != 1 else ''}",
        evidence=f"the machine has {machine.num_cores} cores, {machine.num_usable_cores} usable{quota}; "
        f"OMP_NUM_THREADS is {machine.variables.get('OMP_NUM_THREADS', 'not set')}",
        fix=f"export OMP_NUM_THREADS={granted}, or call torch.set_num_threads({granted}).",
    )


_LEAST_SHARED = 512 * MIB


@machine_rule(
    "ENV16",
    "warning",
    fix="Start the container with --shm-size=8g or --ipc=host; in Kubernetes mount an emptyDir with "
    "medium: Memory at /dev/shm.",
)
def cramped_shared_memory(machine: Machine) -> Iterator[Finding]:
    """Shared memory is too small for the workers of a DataLoader.

    ## What it finds
    Less than 512 MiB free in `/dev/shm`. By default, Docker and Kubernetes give a container 64 MiB.

    ## Why it matters
    Workers pass batches through shared memory. When it is full they are killed: "DataLoader worker is killed
    by signal: Bus error".
    """
    if machine.shm_bytes is None or machine.shm_free_bytes is None or machine.shm_free_bytes >= _LEAST_SHARED:
        return
    is_full = machine.shm_bytes >= 2 * _LEAST_SHARED
    yield Finding(
        message="shared memory is almost full: workers of a DataLoader need it"
        if is_full
        else "shared memory is too small for the workers of a DataLoader",
        evidence=f"{machine.shm_free_bytes // MIB} of {machine.shm_bytes // MIB} MiB are free in /dev/shm",
        fix="Remove files of ended processes from /dev/shm (ls -la /dev/shm)." if is_full else None,
    )
