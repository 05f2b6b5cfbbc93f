"""Nothing goes out by itself: commands work without a network, and none tries to reach one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

WATCHING = """
import os, socket, sys

LOCAL = {None, "", "localhost", "127.0.0.1", "::1", "0.0.0.0", "::", socket.gethostname()}

def look(event, args):
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
        address = args[1]
        host = address[0] if isinstance(address, tuple) else None
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = args[0]
    else:
        return
    host = host.decode() if isinstance(host, bytes) else host
    if host not in LOCAL:
        with open(os.environ["TRUESTEP_TEST_LOG"], "a") as log:
            log.write(f"{event} {host} {sys.argv}\\n")

sys.addaudithook(look)
"""
ALONE = """
import fcntl, os, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x1))  # SIOCSIFFLAGS: lo is up
os.execv(sys.argv[1], sys.argv[1:])
"""
SCRIPT = """
import torch
import truestep as ts

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with ts.Run("runs/one", seed=1, lanes=2) as run:
    model = run.place(model)
    run.track(model=model, optimizer=optimizer)
    loader = ts.Loader([torch.ones(4)] * 160, batch_size=4)
    for step in run.steps(loader, epochs=1):
        for x in step:
            step.backward(model(x).mean())
        step.update(optimizer)
"""
COMMANDS = [
    ("run", "-n", "2", "train.py"),
    ("check", "train.py"),
    ("verify", "--steps", "3", "train.py"),
    ("tune", "--profile-only", "--steps", "8", "train.py"),
    ("report", "runs/one"),
    ("doctor",),
]
NO_NAMESPACE = "no network namespace can be made here"


def can_be_alone() -> bool:
    words = ["unshare", "--user", "--map-root-user", "--net", "true"]
    return shutil.which("unshare") is not None and subprocess.run(words, check=False).returncode == 0


def run_alone(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the loopback as its only network, and with an ear at every socket."""
    ear = folder / "ear"
    ear.mkdir(exist_ok=True)
    (ear / "sitecustomize.py").write_text(WATCHING)
    path = os.pathsep.join([str(ear), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"PYTHONPATH": path, "TRUESTEP_TEST_LOG": str(folder / "log")}
    words = ["unshare", "--user", "--map-root-user", "--net", sys.executable, "-I", "-c", ALONE]
    return subprocess.run(
        [*words, sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )


@pytest.mark.skipif(not can_be_alone(), reason=NO_NAMESPACE)
def test_what_tries_to_reach_out_is_heard_and_gets_nowhere(tmp_path: Path) -> None:
    code = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=5)"
    done = run_alone(tmp_path, "-c", code)
    assert "Network is unreachable" in done.stderr
    assert "socket.connect 192.0.2.1" in (tmp_path / "log").read_text()


@pytest.mark.slow
@pytest.mark.skipif(not can_be_alone(), reason=NO_NAMESPACE)
def test_commands_neither_need_nor_try_a_network(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    for arguments in COMMANDS:
        done = run_alone(tmp_path, "-m", "truestep", *arguments)
        assert done.returncode in (0, 1), (arguments, done.stdout, done.stderr)
        assert "Traceback" not in done.stderr, (arguments, done.stderr)
    assert not (tmp_path / "log").exists(), (tmp_path / "log").read_text()
