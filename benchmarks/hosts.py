"""Hosts on one machine: network namespaces with an address and a name each, joined by a switch of their own.

Owns the wires: cutting one, slowing it down, healing it. Needs root on Linux. What runs is left to others.
"""

import heapq
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

SUBNET = "10.77.0"
_SET_NAME = 'hostname "$1" && shift && exec "$@"'
_ETH_P_ALL = 3
_SOL_PACKET, _PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING = 263, 15, 23


def why_not() -> str | None:
    """Return why no hosts can be made here, or None when they can."""
    if sys.platform != "linux" or shutil.which("ip") is None or shutil.which("unshare") is None:
        return "network namespaces need Linux with the commands ip and unshare"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with Network(1) as network:
            done = subprocess.run(network.command(0, ["true"]), capture_output=True, text=True, check=False)
    except subprocess.CalledProcessError as error:
        return f"network namespaces cannot be made: {error.stderr.strip()}"
    return f"network namespaces cannot be entered: {done.stderr.strip()}" if done.returncode else None


class Network:
    """Some hosts and the switch between them; gone, with all that runs on them, at the end of `with`.

    The switch is a namespace too, so that nothing of this machine's own network is touched.
    """

    def __init__(self, num_hosts: int) -> None:
        self._names = [f"truestep-{os.getpid()}-host{index}" for index in range(num_hosts)]
        self._switch = f"truestep-{os.getpid()}-switch"
        self._relays: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Network":
        _remove_left_over()
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._remove()

    def _build(self) -> None:
        for name in (self._switch, *self._names):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", self._switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "bridge", "up")
        for index, name in enumerate(self._names):
            port = ["link", "add", f"port{index}", "type", "veth", "peer", "name", "eth0", "netns", name]
            _ip("-n", self._switch, *port)
            _ip("-n", self._switch, "link", "set", f"port{index}", "master", "bridge", "up")
            _ip("-n", name, "address", "add", f"{self.address(index)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")

    def _remove(self) -> None:
        for index in [*self._relays]:
            self._end_relay(index)
        for name in (*self._names, self._switch):
            _delete(name)

    def address(self, index: int) -> str:
        """Return the address of a host."""
        return f"{SUBNET}.{index + 1}"

    def name(self, index: int) -> str:
        """Return the name that a host has for itself."""
        return f"host{index + 1}"

    def command(self, index: int, arguments: Sequence[str]) -> list[str]:
        """Return the command that runs another one on a host."""
        enter = ["ip", "netns", "exec", self._names[index], "unshare", "--uts"]
        return [*enter, "sh", "-c", _SET_NAME, "sh", self.name(index), *arguments]

    def kill_all(self, index: int) -> None:
        """Kill every process on a host at once, as when its power fails and comes back."""
        _kill_all(self._names[index])

    def cut(self, index: int) -> None:
        """Pull a host's cable: nothing gets through and nobody is told."""
        _ip("-n", self._switch, "link", "set", f"port{index}", "down")

    def slow_down(self, index: int, *, delay_s: float, loss: float) -> None:
        """Let every packet of a host take longer, in both directions, and lose some.

        By a process that passes on the packets: many kernels are built without netem.
        """
        wires = [f"port{index}", f"slow{index}"]
        _ip("-n", self._switch, "link", "add", wires[1], "type", "veth", "peer", "name", f"far{index}")
        _ip("-n", self._switch, "link", "set", wires[1], "up")
        _ip("-n", self._switch, "link", "set", f"far{index}", "master", "bridge", "up")
        command = ["ip", "netns", "exec", self._switch, sys.executable, str(Path(__file__)), *wires]
        self._relays[index] = subprocess.Popen([*command, str(delay_s), str(loss)], stdout=subprocess.PIPE)
        stdout = self._relays[index].stdout
        assert stdout is not None
        stdout.readline()
        _ip("-n", self._switch, "link", "set", wires[0], "nomaster")

    def heal(self, index: int) -> None:
        """Make a host's wire as it was."""
        self._end_relay(index)
        _ip("-n", self._switch, "link", "set", f"port{index}", "master", "bridge", "up")

    def _end_relay(self, index: int) -> None:
        relay = self._relays.pop(index, None)
        if relay is not None:
            relay.kill()
            relay.communicate()
            _ip("-n", self._switch, "link", "delete", f"slow{index}")


def _ip(*arguments: str) -> str:
    return subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True).stdout


def _kill_all(name: str) -> None:
    for pid in _ip("netns", "pids", name).split():
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            continue


def _delete(name: str) -> None:
    if Path("/run/netns", name).exists():
        _kill_all(name)
        _ip("netns", "delete", name)


def _remove_left_over() -> None:
    """Remove what processes that were killed could not remove themselves."""
    for path in Path("/run/netns").glob("truestep-*"):
        if not Path("/proc", path.name.split("-")[1]).exists():
            _delete(path.name)


def relay(names: Sequence[str], *, delay_s: float, loss: float) -> None:
    """Pass packets between two interfaces, each some time after it came, but for those that are lost."""
    sockets = [_open(name) for name in names]
    other = dict(zip(sockets, reversed(sockets), strict=True))
    dice, num_seen = random.Random(0), 0
    waiting: list[tuple[float, int, socket.socket, bytes]] = []
    print("ready", flush=True)
    while True:
        pause_s = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for source in select.select(sockets, [], [], pause_s)[0]:
            packet = source.recv(1 << 17)
            num_seen += 1
            if dice.random() >= loss:
                heapq.heappush(waiting, (time.monotonic() + delay_s, num_seen, other[source], packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, target, packet = heapq.heappop(waiting)
            target.send(packet)


def _open(name: str) -> socket.socket:
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
    # Packets come larger than the wire takes and without checksums, as cards would finish them: the header
    # that says so is kept with each.
    opened.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    opened.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    opened.bind((name, 0))
    return opened


if __name__ == "__main__":
    relay(sys.argv[1:3], delay_s=float(sys.argv[3]), loss=float(sys.argv[4]))
