"""The server of `tests.preloaded`: imports torch once, then forks a process for each client that connects.

Usage: python server.py FOLDER OWNER KIND, with the folder of the clients, the process whose end ends this
one, and what is imported besides torch.
"""

import atexit
import contextlib
import io
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import types
from importlib import import_module
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, NoReturn

from client import surroundings

PRELOADED = (
    "torch._dynamo",
    "torch.utils.data",
    "torch.distributed.run",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "truestep.run.train",
    "truestep.watch.inspect",
    "truestep.watch.hooks.engine",
    "truestep.verify",
    "truestep.cli",
)
BESIDES = {
    "torch": (),
    "frameworks": (
        "lightning",
        "transformers.trainer",
        "transformers.models.bert.modeling_bert",
        "accelerate",
    ),
}
"""By kind: what is imported besides."""


class Server:
    """Clients, and the processes that were forked for them."""

    def __init__(self, folder: Path, owner: int, *, kind: str, environment: dict[str, str]) -> None:
        self.client = str(folder / "python")
        self.environment = environment
        self.path = sys.path[1:]  # the first is this script's folder
        self.connections: dict[int, tuple[socket.socket, bool]] = {}
        self.owner = os.pidfd_open(owner)
        self.waker, written = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(written)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(folder / f"{kind} new socket"))
        self.listener.listen(64)
        (folder / f"{kind} new socket").rename(
            folder / f"{kind} socket"
        )  # when it can be connected to, not before
        self.selector = selectors.DefaultSelector()
        for source in (self.listener, self.owner, self.waker):
            self.selector.register(source, selectors.EVENT_READ)

    def serve(self) -> None:
        """Answer clients until the owner has ended."""
        while True:
            # Clients that were killed come first: what is started after them finds their processes gone.
            ready = sorted(self.selector.select(), key=lambda item: item[0].data is None)
            for key, _ in ready:
                if key.fileobj is self.listener:
                    self.answer(self.listener.accept()[0])
                elif key.fileobj == self.waker:
                    os.read(self.waker, 4096)
                    self.reap()
                elif key.fileobj == self.owner:
                    return
                else:
                    self.pass_on(key.data)

    def answer(self, client: socket.socket) -> None:
        """Fork what a client asks for. A client that starts cold hangs up instead."""
        client.sendall(json.dumps([self.environment, dict(os.environ), surroundings()]).encode() + b"\n")
        head, descriptors, _, _ = socket.recv_fds(client, 8, 3)
        if len(head) < 8:
            client.close()
            return
        with client.makefile("rb") as file:
            request = json.loads(file.read(int.from_bytes(head, "little")))
        pid = os.fork()
        if pid == 0:
            try:
                self.become(request, descriptors)
            finally:
                os._exit(70)
        for descriptor in descriptors:
            os.close(descriptor)
        self.connections[pid] = client, request["is_leader"]
        self.selector.register(client, selectors.EVENT_READ, pid)

    def pass_on(self, pid: int) -> None:
        """Send a signal that the client got; a client that is gone was killed."""
        client, is_leader = self.connections[pid]
        try:
            numbers = [int(line) for line in client.recv(4096).split()]
        except OSError:
            numbers = []
        if not numbers:
            self.selector.unregister(client)
            numbers = [signal.SIGKILL]
        send = os.killpg if is_leader else os.kill
        for number in numbers:
            with contextlib.suppress(ProcessLookupError):
                send(pid, number)
        if signal.SIGKILL in numbers:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

    def reap(self) -> None:
        """Report to each client how its process ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            client, _ = self.connections.pop(pid)
            with contextlib.suppress(OSError):  # the client was killed
                client.sendall(b"%d\n" % status)
            with contextlib.suppress(KeyError):
                self.selector.unregister(client)
            client.close()

    def become(self, request: dict[str, Any], descriptors: list[int]) -> NoReturn:
        """Be the process that the client asked for."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in request["ignored"]:
            signal.signal(number, signal.SIG_IGN)
        if request["is_leader"]:
            os.setsid()
        else:
            with contextlib.suppress(OSError):  # a group of another session
                os.setpgid(0, request["group"])
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
        os.closerange(3, 256)
        os.chdir(request["folder"])
        os.umask(request["mask"])
        for name in self.environment.keys() - request["environment"].keys():
            os.environ.pop(name, None)
        os.environ.update(request["environment"])
        run(request["words"], client=self.client, path=self.new_path(request["environment"]))

    def new_path(self, environment: dict[str, str]) -> list[str]:
        """Return where modules are looked for: PYTHONPATH may differ from the server's."""
        own, theirs = (
            [word for word in variables.get("PYTHONPATH", "").split(os.pathsep) if word]
            for variables in (self.environment, environment)
        )
        return [*(str(Path(word).absolute()) for word in theirs), *self.path[len(own) :]]


def run(words: list[str], *, client: str, path: list[str]) -> NoReturn:
    """Do what `python WORDS` does, and end as it ends."""
    sys.orig_argv[:] = [client, *words]
    is_unbuffered = words[0] == "-u" or bool(os.environ.get("PYTHONUNBUFFERED"))
    words = words[1:] if words[0] == "-u" else words
    sys.executable = client
    sys.path[:] = path
    open_streams(is_unbuffered)
    if "TOY_AUTOLOAD" in os.environ:  # importing torch would do it: tests.accelerator
        import_module("toy")
    # As at a start. Python's own generator does so at every fork.
    sys.modules["torch"].seed()
    sys.modules["numpy"].random.seed()
    code = 0
    try:
        start(words)
    except SystemExit as ended:
        if isinstance(ended.code, int):
            code = ended.code & 0xFF
        elif ended.code is not None:
            print(ended.code, file=sys.stderr)
            code = 1
    except BaseException as error:  # noqa: BLE001 - shown as Python would
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        error.__traceback__ = trace
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        sys.excepthook(type(error), error, trace)
        code = -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    end(code)


def open_streams(is_unbuffered: bool) -> None:
    """Open the three streams as Python does at its start."""
    sys.stdin = sys.__stdin__ = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    for number, name, errors in ((1, "stdout", "strict"), (2, "stderr", "backslashreplace")):
        bytes_to = open(number, "wb", buffering=0 if is_unbuffered else -1, closefd=False)  # noqa: SIM115
        stream = io.TextIOWrapper(
            bytes_to,
            encoding="utf-8",
            errors=errors,
            line_buffering=number == 2 or os.isatty(number),
            write_through=is_unbuffered,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def start(words: list[str]) -> None:
    """Run a command, a module or a file as `__main__`."""
    main = types.ModuleType("__main__")
    names = vars(main)
    names.update({"__builtins__": __builtins__, "__annotations__": {}})
    sys.modules["__main__"] = main
    first, *rest = words
    if first == "-m":
        sys.argv[:] = ["-m", *rest[1:]]
        sys.path.insert(0, str(Path.cwd()))
        sys.modules.pop(rest[0], None)  # it may be preloaded, and would be there twice
        runpy._run_module_as_main(rest[0])
        return
    if first == "-c":
        sys.argv[:] = ["-c", *rest[1:]]
        sys.path.insert(0, "")
        code = compile(rest[0], "<string>", "exec", dont_inherit=True)
    else:
        sys.argv[:] = words
        path = Path(first).absolute()
        sys.path.insert(0, str(path.resolve().parent))
        try:
            source = path.read_bytes()
        except OSError as error:
            reason = f"[Errno {error.errno}] {error.strerror}"
            print(f"{sys.executable}: can't open file {str(path)!r}: {reason}", file=sys.stderr)
            raise SystemExit(2) from None
        code = compile(source, path, "exec", dont_inherit=True)
        names.update(__file__=str(path), __cached__=None, __loader__=SourceFileLoader("__main__", str(path)))
    exec(code, names)


def end(code: int) -> NoReturn:
    """Leave as Python does: wait for threads, call what was registered, flush."""
    try:
        threading._shutdown()
        atexit._run_exitfuncs()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                code = code or 120
        if code == -signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(code)


def main() -> None:
    """Import what scripts and commands import, then serve."""
    environment = dict(os.environ)  # torch sets variables as it is imported
    kind = sys.argv[3]
    for name in (*PRELOADED, *BESIDES[kind]):
        import_module(name)
    import_module("truestep.rules").find_rules()
    Server(Path(sys.argv[1]), int(sys.argv[2]), kind=kind, environment=environment).serve()
    os._exit(0)


if __name__ == "__main__":
    main()
