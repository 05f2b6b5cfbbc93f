"""A process that has imported what the script will import, and forks one process for each run of it.

Owns what a forked process has that a cold start would not have: modules are hidden until the script imports
them, generators are seeded anew, variables are as they were. Where the script does something before an import
that the import would have noticed, the process ends and says why: then the run is started cold.
"""

import array
import atexit
import contextlib
import json
import os
import re
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Sequence
from importlib import import_module, invalidate_caches
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

from truestep.base.variables import all_variables, replace_variables, set_defaults
from truestep.watch.launch.leading import COLD_FILE, HEAD, PACKAGES
from truestep.watch.script.exec_script import exec_script
from truestep.watch.script.import_hooks import OBSERVED

_COMPILER = ("torch._dynamo", "torch._inductor")
_LAST = ("truestep.watch.hooks.engine", _COMPILER[0])
"""What is imported besides: our observers, and what torch imports at the first step of an optimizer."""
_READ_AT_START = re.compile(
    "PYTHON|LD_|MALLOC_|GLIBC_|TORCH|ATEN_|CUDA_|NCCL_|NPY_|OMP_|MKL_|KMP_|GOMP_|OPENBLAS_|ONEDNN"
)
"""Variables that torch, NumPy and their libraries read as they are imported."""
_LIBRARY = re.compile(rb"gomp|iomp|libomp|openblas|libmkl")


def serve(settings: dict[str, Any]) -> NoReturn:
    """Import, then fork whenever a request comes. A fork ends as the script does."""
    stash = _Stash()
    # No loop around the script: those on the stack are taken for loops of the training.
    request = _wait_for_request(stash.fill(settings["imports"]))
    stash.hide(request["folder"], request["script"], is_module=request["module"])
    try:
        exec_script(request)
    except SystemExit as ended:
        if ended.code not in (None, 0):
            raise
    _leave()


def _wait_for_request(reason: str) -> dict[str, Any]:
    """Fork for each request that comes; return it in the forked process."""
    channel = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is meant for the script
    _send(channel, {"reason": reason})
    while True:
        request = _receive(channel)
        if request is None:
            os._exit(0)
        descriptors = request.pop("descriptors")
        with warnings.catch_warnings(action="ignore"):  # threads of OpenBLAS: it ends them before a fork
            pid = os.fork()
        if pid == 0:
            channel.close()
            signal.signal(signal.SIGINT, interrupt)
            _take_place(request, descriptors)
            return request
        for descriptor in descriptors:
            os.close(descriptor)
        _send(channel, {"pid": pid})
        _send(channel, {"status": os.waitpid(pid, 0)[1]})


def _leave() -> NoReturn:
    """Leave as Python does, but do not take apart the modules that no cold start would have had to."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.modules["__main__"].__dict__.clear()  # files that the script has left open are written
    code = 0
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = 120  # as Python's own
    os._exit(code)


def _send(channel: socket.socket, message: dict[str, Any]) -> None:
    try:
        channel.sendall(json.dumps(message).encode() + b"\n")
    except OSError:  # whoever asked is gone
        os._exit(0)


def _receive(channel: socket.socket) -> dict[str, Any] | None:
    """Read a request and its three descriptors; None at the end."""
    head, ancillary, _, _ = channel.recvmsg(HEAD.size, socket.CMSG_SPACE(3 * array.array("i").itemsize))
    if len(head) < HEAD.size:
        return None
    numbers = array.array("i")
    for _, _, data in ancillary:
        numbers.frombytes(data)
    with channel.makefile("rb") as file:
        request: dict[str, Any] = json.loads(file.read(HEAD.unpack(head)[0]))
    return {**request, "descriptors": list(numbers)}


def _take_place(request: dict[str, Any], descriptors: Sequence[int]) -> None:
    """Be the process that was asked for: streams, folder, arguments, and generators without a seed."""
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
    os.chdir(request["cwd"])
    place = sys.orig_argv.index("-c") + 2
    sys.orig_argv[place:] = request["arguments"]
    sys.argv[1:] = request["arguments"]
    invalidate_caches()  # the working folder is a new one
    # As at a start; Python's own generator does so at every fork.
    sys.modules["torch"].default_generator.seed()
    sys.modules["numpy"].random.seed()


class _Group:
    """What one import has brought: modules, and variables of the environment."""

    def __init__(self, name: str) -> None:
        self.name = name.partition(".")[0]
        self.modules: dict[str, ModuleType] = {}
        self.variables: dict[str, str] = {}
        self.is_restored = False

    def show(self) -> None:
        """Let the script find the modules."""
        set_defaults(self.variables)
        for name, module in self.modules.items():
            if name not in OBSERVED:
                sys.modules[name] = module
            parent, _, last = name.rpartition(".")
            if parent in sys.modules and parent not in self.modules:
                setattr(sys.modules[parent], last, module)
        for name in self.modules:
            if name not in sys.modules:
                import_module(name)  # by the finder of `import_hooks`, which puts observers in place
        if _COMPILER[0] in self.modules:
            import_module("truestep.watch.hooks.forward").allow_in_compiled_code()


class _Stash:
    """Modules that are imported, and hidden until the script imports them."""

    def __init__(self) -> None:
        self._variables = all_variables()
        self._groups: list[_Group] = []
        self._top_names: set[str] = set()
        self._cores: set[int] = os.sched_getaffinity(0)
        self._libraries: set[str] = set()
        self._visible: dict[str, ModuleType] = {}
        self._pid = 0
        self._folder = ""

    def fill(self, imports: Sequence[Sequence[str]]) -> str:
        """Import NumPy and all that is asked for; return why this process cannot be forked, if so."""
        at_start = set(sys.modules)
        wanted = [["numpy"], *imports, ["torch"], *([name] for name in _LAST)]
        num_own: int | None = None
        for name, *attributes in wanted:
            group, known, variables = _Group(name), set(sys.modules), all_variables()
            try:
                module = import_module(name)
                for attribute in attributes:
                    hasattr(module, attribute) or import_module(f"{name}.{attribute}")
            except Exception as error:  # noqa: BLE001 - a package of somebody's
                return f"{name} cannot be imported ahead of the script ({type(error).__name__}: {error})"
            brought = [key for key in sys.modules if key not in known]
            self._groups.append(group)
            for key in brought:
                if key.partition(".")[0] in PACKAGES:
                    self._group_of(key, brought_by=group).modules[key] = sys.modules[key]
            group.variables = {
                key: value for key, value in all_variables().items() if variables.get(key) != value
            }
            tasks = len(os.listdir("/proc/self/task"))  # noqa: PTH208
            num_own = (
                tasks - 1 if num_own is None else num_own
            )  # those of NumPy's OpenBLAS, which ends them before a fork
            num_algebra = sum("openblas" in path for path in _mapped_libraries())
            if threading.active_count() > 1 or tasks > 1 + num_algebra * num_own:
                return f"importing {name} starts threads"
        if sys.modules["torch"].cuda.is_initialized():
            return "importing what the script imports starts CUDA"
        self._top_names = {key.partition(".")[0] for key in sys.modules if key not in at_start}
        self._libraries = _mapped_libraries()
        return ""

    def _group_of(self, module: str, *, brought_by: _Group) -> _Group:
        """Return the first group of a module's package, which may be an older one than has brought it."""
        package = module.partition(".")[0]
        own = [group for group in self._groups if group.name == package]
        return brought_by if not own or module.startswith(_COMPILER) else own[0]

    def hide(self, folder: str, script: str, *, is_module: bool) -> None:
        """Hide what was imported, in a forked process."""
        self._pid, self._folder = os.getpid(), folder
        self._refuse_shadows(os.getcwd() if is_module else os.path.dirname(os.path.realpath(script)))  # noqa: PTH109, PTH120
        replace_variables(self._variables)
        for group in self._groups:
            for name in group.modules:
                del sys.modules[name]
        for parent, name, _ in self._joints():
            delattr(parent, name)
        self._visible = dict(sys.modules)
        sys.meta_path.insert(0, self)

    def _joints(self) -> list[tuple[ModuleType, str, ModuleType]]:
        """Return the modules that are an attribute of a module of an earlier group."""
        found: list[tuple[ModuleType, str, ModuleType]] = []
        earlier: dict[str, ModuleType] = {}
        for group in self._groups:
            for name, module in group.modules.items():
                parent, _, last = name.rpartition(".")
                if parent in earlier and getattr(earlier[parent], last, None) is module:
                    found.append((earlier[parent], last, module))
            earlier.update(group.modules)
        return found

    def _refuse_shadows(self, folder: str) -> None:
        if sys.flags.safe_path:
            return
        with contextlib.suppress(OSError):
            for entry in os.scandir(folder):
                name, _, ending = entry.name.partition(".")
                is_module = ending.endswith(("py", "so")) or os.path.exists(f"{entry.path}/__init__.py")  # noqa: PTH110
                if name in self._top_names and is_module:
                    self._end(
                        f"{entry.name} in the script's folder stands in for a module that torch imports"
                    )

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Find a hidden module."""
        for group in self._groups:
            if name in group.modules:
                return ModuleSpec(name, _Loader(self, group, name))  # type: ignore[arg-type]
        return None

    def restore(self, wanted: _Group) -> None:
        """Show again what an import has brought, and the imports before it."""
        if os.getpid() == self._pid and not wanted.is_restored:
            self._check(wanted.name)
        for group in self._groups[: self._groups.index(wanted) + 1]:
            if not group.is_restored:
                group.is_restored = True
                group.show()

    def _check(self, name: str) -> None:
        """End this process if the import of a package would have gone another way than it did ahead."""
        variables = all_variables()
        for group in self._groups:
            if group.is_restored:
                variables = {
                    key: value for key, value in variables.items() if group.variables.get(key) != value
                }
        is_ours = name in ("numpy", "torch", "truestep")
        changed = [
            key
            for key in sorted(variables.keys() | self._variables.keys())
            if variables.get(key) != self._variables.get(key)
            if not is_ours or _READ_AT_START.match(key)
        ]
        if changed:
            self._end(f"the script sets {', '.join(changed[:3])} before it imports {name}")
        if os.sched_getaffinity(0) != self._cores:
            self._end(f"the script chooses its cores before it imports {name}")
        if any(sys.modules.get(key) is not module for key, module in self._visible.items()):
            self._end(f"the script replaces modules before it imports {name}")
        if loaded := _mapped_libraries() - self._libraries:
            self._end(f"the script loads {os.path.basename(min(loaded))} before it imports {name}")  # noqa: PTH119

    def _end(self, reason: str) -> None:
        with open(f"{self._folder}/{COLD_FILE}", "w", encoding="utf-8") as file:  # noqa: PTH123
            file.write(reason)
        os._exit(0)


class _Loader:
    """Gives a module that is there already, with all that came with it."""

    def __init__(self, stash: _Stash, group: _Group, name: str) -> None:
        self._stash = stash
        self._group = group
        self._module = group.modules[name]
        self._spec = self._module.__spec__

    def create_module(self, _spec: ModuleSpec) -> ModuleType:
        """Return the module."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Show what came with it."""
        module.__spec__ = self._spec
        self._stash.restore(self._group)


def _mapped_libraries() -> set[str]:
    """Return the libraries for threads and algebra that are loaded: which comes first can matter."""
    with open("/proc/self/maps", "rb") as file:  # noqa: PTH123
        lines = file.read().split(b"\n")
    return {path.decode() for line in lines if _LIBRARY.search(path := line[73:])}
