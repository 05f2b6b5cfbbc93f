"""Claim: a run over three hosts of which one is slow, cut off or killed ends in the bits of one process.

Hosts are network namespaces (root, Linux), started by torchrun with the c10d rendezvous on the first. Seven
scenes take about 6 minutes, most of it the 30 s after which silence counts as loss. `--log` keeps every line.
"""

import argparse
import datetime
import os
import re
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO, TypeVar

import hosts
import measure

T = TypeVar("T")
NUM_HOSTS, NUM_LANES, NUM_STEPS, EVERY_STEPS = 3, 6, 60, 5
DISTURBED_AT = 12
"""The step from which on a scene disturbs the run."""
PACE_S = 0.05
"""Each step takes at least this long, unless a scene says otherwise: there has to be a run to disturb."""
PORT = 29400
_NOTICED = re.compile(r"truestep: .*(no sign of life|no answer from the store|is gone)")


def train(folder: Path, *, silence_s: float) -> None:
    """Be one process of the run, alone or under torchrun; leave the digest of its end state."""
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    import truestep as ts
    from truestep.dist import pulse

    pulse.SILENCE_S = silence_s
    snapshots = ts.Snapshots(every_s=None, every_steps=EVERY_STEPS)
    run = ts.Run(folder, seed=7, lanes=NUM_LANES, threads=1, snapshots=snapshots, progress=False)
    layers = [nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 4)]
    model = run.place(nn.Sequential(*layers))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    run.track(model=model, optimizer=optimizer)
    made = torch.Generator().manual_seed(1)
    inputs = torch.randn(512, 16, generator=made)
    data = TensorDataset(inputs, inputs[:, :4].argmax(dim=1))
    steps, pace = run.steps(ts.Loader(data, batch_size=48), steps=NUM_STEPS), folder / "pace"
    size = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    print(f"one of {size} begins after step {run.cursor}", flush=True)
    for step in steps:
        for x, y in step:
            step.backward(nn.functional.cross_entropy(model(x), y))
        step.update(optimizer, clip_norm=1.0)
        if run.is_first:
            print(f"step {run.cursor}", flush=True)
        time.sleep(float(pace.read_text()) if pace.exists() else PACE_S)
    digest = ts.digest_state({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    print(f"digest {digest}", flush=True)


class Log:
    """What all hosts said, and when; kept in a file."""

    def __init__(self, file: TextIO) -> None:
        self.lines: list[tuple[float, str, str]] = []
        self._file, self._started_s = file, time.monotonic()
        self._lock = threading.Lock()

    def start(self, title: str) -> None:
        """Begin a scene: count time from now on."""
        self.lines, self._started_s = [], time.monotonic()
        self.write("scene", title)

    @property
    def now_s(self) -> float:
        """How long the scene has taken."""
        return time.monotonic() - self._started_s

    def write(self, who: str, text: str) -> None:
        """Add a line."""
        with self._lock:
            at_s = self.now_s
            self.lines.append((at_s, who, text))
            clock = datetime.datetime.now(tz=datetime.UTC).strftime("%H:%M:%S.%f")[:-3]
            print(f"{clock} {at_s:7.2f} s  {who:6} {text}", file=self._file, flush=True)

    def find(self, fits: Callable[[str, str], bool]) -> float | None:
        """Return when a line first fitted."""
        return next((at_s for at_s, who, text in [*self.lines] if fits(who, text)), None)

    @property
    def last_step(self) -> int:
        """The last step that any host told."""
        steps = [text for _, _, text in [*self.lines] if text.startswith("step ")]
        return int(steps[-1].split()[1]) if steps else 0

    @property
    def digests(self) -> list[str]:
        """The digests that processes left at their end."""
        return [text.split()[1] for _, _, text in [*self.lines] if text.startswith("digest ")]


class Host:
    """One host's launcher, started again when it fails, as a job manager does."""

    def __init__(self, network: hosts.Network, index: int, *, arguments: Sequence[str], log: Log) -> None:
        self._command, self._name, self._log = network.command(index, arguments), network.name(index), log
        self._is_over = threading.Event()
        self.code: int | None = None
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()

    def _live(self) -> None:
        while not self._is_over.is_set():
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
            )
            assert self._process.stdout is not None
            for line in self._process.stdout:
                self._log.write(self._name, line.rstrip())
            code = self._process.wait()
            self._log.write(self._name, f"torchrun ended with exit code {code}")
            if code == 0:
                self.code = 0
                return
            self._is_over.wait(1.0)

    def end(self) -> None:
        """End it if it has not ended."""
        self._is_over.set()
        if self._process is not None and self._process.poll() is None:
            self._process.kill()


@dataclass(kw_only=True)
class Stage:
    """What a scene has to play with."""

    network: hosts.Network
    log: Log
    folder: Path
    deadline_s: float
    notes: list[str] = field(default_factory=list)
    _lost_s: float = 0.0

    def note(self, text: str) -> None:
        """Write down what the scene did or saw, for the log and for the table."""
        self.log.write("scene", text)
        self.notes.append(text)

    def wait(self, what: str, look: Callable[[], T]) -> T:
        """Wait until there is something to see and return it; give up when the scene's time is up."""
        while not (seen := look()):
            if time.monotonic() > self.deadline_s:
                raise TimeoutError(f"{what}: not within the scene's time")
            time.sleep(0.05)
        return seen

    def wait_step(self, step: int) -> None:
        """Wait until training has got somewhere."""
        self.wait(f"step {step}", lambda: self.log.last_step >= step)

    def set_pace(self, pace_s: float) -> None:
        """Let each step take at least so long from now on."""
        temporary = self.folder / "pace.new"
        temporary.write_text(str(pace_s))
        temporary.replace(self.folder / "pace")

    def wait_size(self, size: int) -> None:
        """Wait until the run goes on with so many hosts."""
        num = len(self.log.lines)

        def look() -> bool:
            begun = [text for _, _, text in self.log.lines[num:] if text.startswith(f"one of {size} ")]
            return len(begun) >= size

        self.wait(f"{size} hosts", look)
        self.note(f"{size} hosts go on after {self.log.now_s - self._lost_s:.0f} s")

    def cut(self, index: int) -> None:
        """Cut a host off and wait until the others have noticed by themselves."""
        self.network.cut(index)
        self._lose(f"{self.network.name(index)} cut off")
        self.wait_noticed("others", lambda who: who != self.network.name(index))

    def kill(self, index: int) -> None:
        """Kill all that runs on a host; its launcher is started again a second later."""
        self.network.kill_all(index)
        self._lose(f"all of {self.network.name(index)} killed")
        self.wait_size(NUM_HOSTS)

    def _lose(self, text: str) -> None:
        self._lost_s = self.log.now_s
        self.note(f"{text} at step {self.log.last_step}")

    def wait_noticed(self, name: str, is_one: Callable[[str], bool]) -> None:
        """Wait until one of some hosts says that something is lost."""

        def look() -> float | None:
            return self.log.find(lambda who, text: is_one(who) and bool(_NOTICED.match(text)))

        found_s = self.wait(f"{name} notice", look)
        self.note(f"{name} noticed after {(found_s or 0.0) - self._lost_s:.0f} s")

    def heal(self, index: int) -> None:
        """Connect a host that was cut off."""
        self.network.heal(index)
        self.note(f"{self.network.name(index)} back after {self.log.now_s - self._lost_s:.0f} s")


def undisturbed(stage: Stage) -> None:
    """Let it run."""


def slow(stage: Stage) -> None:
    """The third host answers late and loses packets for some steps."""
    stage.network.slow_down(2, delay_s=0.05, loss=0.01)
    first = stage.log.last_step
    stage.note(f"host3 slowed down at step {first}: 50 ms each way, 1 % lost")
    begun_s = time.monotonic()
    stage.wait_step(first + 10)
    seconds = time.monotonic() - begun_s
    stage.network.heal(2)
    stage.note(f"healed at step {stage.log.last_step}; {seconds / 10:.2f} s per step meanwhile")


def cut(stage: Stage) -> None:
    """The third host is cut off; the others wait for it."""
    stage.cut(2)
    stage.wait_noticed("host3", lambda who: who == "host3")
    stage.heal(2)
    stage.wait_size(3)


def cut_store(stage: Stage) -> None:
    """The first host is cut off, which holds the rendezvous and the store."""
    stage.cut(0)
    stage.wait_noticed("host1", lambda who: who == "host1")
    stage.heal(0)
    stage.wait_size(3)


def go_on(stage: Stage) -> None:
    """The third host is cut off; the two others go on without it, and take it in again."""
    stage.cut(2)
    stage.set_pace(1.5)  # the third is to be back before the two have finished
    stage.wait_size(2)
    stage.heal(2)
    stage.wait_size(3)
    stage.set_pace(PACE_S)


def kill(stage: Stage) -> None:
    """Every process of the third host is killed; its launcher is started again."""
    stage.kill(2)


def kill_store(stage: Stage) -> None:
    """Every process of the first host is killed, which holds the rendezvous and the store."""
    stage.kill(0)


SCENES: dict[str, tuple[Callable[[Stage], None], str]] = {
    "undisturbed": (undisturbed, "3"),
    "slow": (slow, "3"),
    "cut": (cut, "3"),
    "cut-store": (cut_store, "3"),
    "go-on": (go_on, "2:3"),
    "kill": (kill, "3"),
    "kill-store": (kill_store, "3"),
}
"""What is done to the run, and how many hosts it may have."""


def launcher(index: int, network: hosts.Network, *, num_nodes: str, script: Sequence[str]) -> list[str]:
    """Return the command of one host: torchrun, and nothing that does not need to be said.

    With torchrun's own `read_timeout` of 60 s, a host that was cut off for longer gives up when it is back,
    and closes the rendezvous for all.
    """
    return [
        *("env", "OMP_NUM_THREADS=1", "GLOO_SOCKET_IFNAME=eth0", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"),
        str(Path(sysconfig.get_path("scripts")) / "torchrun"),
        *("--nnodes", num_nodes, "--nproc-per-node", "1", "--max-restarts", "5", "--rdzv-id", "scene"),
        *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{network.address(0)}:{PORT}"),
        *("--rdzv-conf", f"is_host={int(index == 0)},read_timeout=3600,last_call_timeout=5"),
        *("--local-addr", network.address(index)),
        *script,
    ]


@contextmanager
def start_hosts(
    network: hosts.Network, *, num_nodes: str, script: Sequence[str], log: Log
) -> Iterator[list[Host]]:
    """Start the launchers of all hosts, and end what is left of them."""
    started: list[Host] = []
    try:
        for index in range(NUM_HOSTS):
            arguments = launcher(index, network, num_nodes=num_nodes, script=script)
            started.append(Host(network, index, arguments=arguments, log=log))
        yield started
    finally:
        for host in started:
            host.end()


def play(name: str, *, silence_s: float, limit_s: float, log: Log) -> measure.Row:
    """Play one scene and return its row."""
    disturb, num_nodes = SCENES[name]
    log.start(name)
    problem = ""
    with tempfile.TemporaryDirectory() as folder, hosts.Network(NUM_HOSTS) as network:
        run = Path(folder) / "run"
        script = [__file__, "--train", str(run), "--silence", str(silence_s)]
        stage = Stage(network=network, log=log, folder=run, deadline_s=time.monotonic() + limit_s)
        with start_hosts(network, num_nodes=num_nodes, script=script, log=log) as started:
            try:
                stage.wait_step(DISTURBED_AT)
                disturb(stage)
                stage.wait("the end", lambda: all(host.code == 0 for host in started))
            except TimeoutError as error:
                problem = str(error)
                stage.note(problem)
    log.write("scene", f"over; digests {log.digests}")
    return {
        "scene": name,
        "seconds": log.lines[-1][0],
        "what happened": "; ".join(stage.notes) or "nothing",
        "digests": " ".join(sorted(set(log.digests))) if len(log.digests) >= NUM_HOSTS else "",
        "problem": problem,
    }


def play_alone() -> measure.Row:
    """Train in one process without hosts: what all must equal."""
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--train", str(Path(folder) / "run")]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    digest = done.stdout.split("digest ")[1].strip()
    seconds = time.monotonic() - begun_s
    return {"scene": "one process", "seconds": seconds, "what happened": "", "digests": digest, "problem": ""}


def main() -> int:
    """Play the scenes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenes", default=",".join(SCENES), help="comma-separated names")
    parser.add_argument("--silence", type=float, default=30.0, help="seconds after which silence is loss")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds that a scene may take")
    parser.add_argument("--log", type=Path, help="keep every line of every host in this file")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train(arguments.train, silence_s=arguments.silence)
        return 0
    if (reason := hosts.why_not()) is not None:
        print(reason, file=sys.stderr)
        return measure.EXIT_CANNOT_TELL
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the hosts go too
    rows = [play_alone()]
    with (arguments.log or Path(os.devnull)).open("w") as file:
        log, names = Log(file), arguments.scenes.split(",")
        rows += [play(name, silence_s=arguments.silence, limit_s=arguments.limit, log=log) for name in names]
    claims = [
        measure.fact(f"{row['scene']}: the digest of one process", row["digests"] == rows[0]["digests"])
        for row in rows[1:]
    ]
    sheet = measure.Sheet(title="Three hosts", rows=rows)
    return measure.report("three_hosts", sheets=[sheet], claims=claims, as_json=arguments.json)


if __name__ == "__main__":
    raise SystemExit(main())
