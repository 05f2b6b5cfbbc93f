"""What stands in the place of Python in tests: asks the server of `tests.preloaded` to fork, and waits.

Runs without site-packages and imports only what it needs, so that it starts in 15 ms.
"""

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from typing import NoReturn

# Read by Python, torch or the C library as they start. Another value than the server's needs a cold start.
READ_AT_START = (
    *("PYTHON", "LD_", "MALLOC_", "GLIBC_", "TORCH", "ATEN_", "CUDA_", "NCCL_"),
    *("OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_"),
)
# The last two are set by scikit-learn when it is imported, for another OpenMP than torch's.
SET_LATER = (
    *("PYTHONPATH", "PYTHONUNBUFFERED", "TORCHELASTIC_", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
    *("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK"),
)
PASSED_ON = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP),
    *(signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2),
)
PATIENCE_S = 120.0


class Client:
    """One start of Python: its words, the real Python, the server's folder and the server's owner."""

    def __init__(self, words: list[str], *, real: str, folder: str, owner: int) -> None:
        self.words = words
        self.real = real
        self.folder = folder
        self.owner = owner
        self.kind = os.environ.pop("TRUESTEP_TESTS_SERVER", "torch")
        """Which server is asked: what it has imported."""

    def run(self, *, is_cold: bool) -> NoReturn:
        """Do what Python would do with these words, and end as it would."""
        if is_cold:
            self.start_cold("asked for")
        if (numbers := [*inherited_descriptors()]) != [0, 1, 2]:
            self.start_cold(f"descriptors {numbers}")
        server = self.connect()
        answers = server.makefile("rb")
        if reason := self.find_reason(*json.loads(answers.readline())):
            server.close()
            self.start_cold(reason)
        request = self.request()
        for number in PASSED_ON:
            if number not in request["ignored"]:
                signal.signal(number, lambda number, _: server.send(b"%d\n" % number))
        text = json.dumps(request).encode()
        socket.send_fds(server, [len(text).to_bytes(8, "little")], [0, 1, 2])
        server.sendall(text)
        end(int(answers.readline() or signal.SIGKILL))

    def start_cold(self, reason: str) -> NoReturn:
        """Become the real Python, and note why."""
        log = os.open(f"{self.folder}/cold.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        os.write(log, f"{reason}: {os.environ.get('PYTEST_CURRENT_TEST')}\n".encode())
        os.close(log)
        os.execv(self.real, [self.real, *self.words])

    def find_reason(self, before: dict[str, str], after: dict[str, str], around: list[str]) -> str:
        """Return why a fork is not enough, if so, by the server's variables before and after its imports."""
        if (own := surroundings()) != around:
            return f"surroundings {set(own) - set(around)}"
        words = self.words[1:] if self.words[:1] == ["-u"] else self.words
        if not words or (words[0].startswith("-") and words[0] not in {"-c", "-m"}):
            return "options"
        differing = [
            name
            for name in os.environ.keys() | before.keys()
            if name.startswith(READ_AT_START) and not name.startswith(SET_LATER)
            if os.environ.get(name) not in (before.get(name), after.get(name))
        ]
        path = os.environ.get("PYTHONPATH", "")
        if path != before.get("PYTHONPATH", "") and any(
            os.path.exists(f"{folder}/sitecustomize.py")  # noqa: PTH110
            for folder in path.split(os.pathsep)
        ):
            differing.append("PYTHONPATH")
        return f"variables {differing}" if differing else ""

    def connect(self) -> socket.socket:
        """Connect to the server; start it if it is not there."""
        server = socket.socket(socket.AF_UNIX)
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            try:
                server.connect(f"{self.folder}/{self.kind} socket")
                return server
            except (FileNotFoundError, ConnectionRefusedError):
                self.start_server()
            time.sleep(0.05)
        sys.exit(f"the preloaded Python did not start within {PATIENCE_S} s: {self.folder}/server.log")

    def start_server(self) -> None:
        """Start the server, apart from this process. Of several clients, one does."""
        try:
            os.close(os.open(f"{self.folder}/{self.kind} started", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        if os.fork():
            return
        os.setsid()
        nothing = os.open(os.devnull, os.O_RDONLY)
        log = os.open(f"{self.folder}/server.log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        for number, stream in enumerate((nothing, log, log)):
            os.dup2(stream, number)
        with open(f"{self.folder}/environment.json", encoding="utf-8") as file:  # noqa: PTH123 - pathlib: 10 ms
            environment = json.load(file)
        script = os.path.join(os.path.dirname(__file__), "server.py")  # noqa: PTH118, PTH120
        os.execve(self.real, [self.real, script, self.folder, str(self.owner), self.kind], environment)

    def request(self) -> dict[str, object]:
        """Return what the forked process needs to know."""
        mask = os.umask(0)
        os.umask(mask)
        return {
            "words": self.words,
            "folder": os.getcwd(),  # noqa: PTH109
            "environment": dict(os.environ),
            "mask": mask,
            "is_leader": os.getsid(0) == os.getpid(),
            "group": os.getpgid(0),
            "ignored": [number for number in PASSED_ON if signal.getsignal(number) == signal.SIG_IGN],
        }


def surroundings() -> list[str]:
    """Return what a process has from the one that started it, besides variables and descriptors."""
    spaces = [os.readlink(f"/proc/self/ns/{name}") for name in ("mnt", "net", "pid", "user")]  # noqa: PTH115
    files = []
    for name in ("limits", "personality"):
        with open(f"/proc/self/{name}") as file:  # noqa: PTH123
            files.append(file.read())
    return [*spaces, *files, str(os.getresuid()), str(os.sched_getaffinity(0)), str(os.nice(0))]


def inherited_descriptors() -> Iterator[int]:
    """Yield the descriptors that another program would get from this one."""
    for number in range(256):
        try:
            if os.get_inheritable(number):
                yield number
        except OSError:
            pass


def end(status: int) -> NoReturn:
    """End as the forked process did."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))
