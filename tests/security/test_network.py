"""Nothing goes out by itself: commands work without a network, and none tries to reach one."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests import preloaded

ROOT = Path(__file__).parents[2]

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
import fcntl, json, socket, struct, subprocess, sys
from pathlib import Path

with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x1))  # SIOCSIFFLAGS: lo is up
from tests import preloaded

preloaded.install(Path.cwd())
ended = []
for words in json.loads(sys.argv[1]):
    done = subprocess.run(["./python", *words], capture_output=True, text=True)
    ended.append((done.returncode, done.stdout, done.stderr))
print(json.dumps(ended))
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
QUICK = [("check", "train.py"), ("run", "-n", "2", "train.py"), ("report", "runs/one"), ("doctor",)]
LONG = [("verify", "--steps", "3", "train.py"), ("tune", "--knobs", "threads", "--budget", "30", "train.py")]
NO_NAMESPACE = "no network namespace can be made here"


def can_be_alone() -> bool:
    words = ["unshare", "--user", "--map-root-user", "--net", "true"]
    return shutil.which("unshare") is not None and subprocess.run(words, check=False).returncode == 0


def run_alone(folder: Path, *commands: tuple[str, ...]) -> list[tuple[int, str, str]]:
    """Run Python with the loopback as its only network, and with an ear at every socket."""
    ear = folder / "ear"
    ear.mkdir()
    (ear / "sitecustomize.py").write_text(WATCHING)
    path = os.pathsep.join([str(ear), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    words = ["unshare", "--user", "--map-root-user", "--net", preloaded.REAL, "-c", ALONE]
    done = subprocess.run(
        [*words, json.dumps(commands)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path, "TRUESTEP_TEST_LOG": str(folder / "log")},
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(not can_be_alone(), reason=NO_NAMESPACE)
@pytest.mark.parametrize("given", [QUICK, pytest.param(LONG, marks=pytest.mark.slow)], ids=["quick", "long"])
def test_commands_neither_need_nor_try_a_network_and_what_tries_is_heard(
    tmp_path: Path, given: list[tuple[str, ...]]
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    log = tmp_path / "log"
    (tmp_path / "listen.py").write_text(f"import os; print(os.path.exists({str(log)!r}))")
    reach_out = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=5)"
    commands = [("-m", "truestep", *words) for words in given]
    *ended, before, reached = run_alone(tmp_path, *commands, ("listen.py",), ("-c", reach_out))
    for words, (code, out, err) in zip(given, ended, strict=True):
        assert code in (0, 1), (words, out, err)
        assert "Traceback" not in err, (words, err)
    assert before[1] == "False\n", log.read_text()
    assert "Network is unreachable" in reached[2]
    assert "socket.connect 192.0.2.1" in log.read_text()
