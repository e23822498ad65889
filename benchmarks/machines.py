"""Two machines in one: network namespaces with a line between them. Needs Linux, iproute2 and the rights of root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """A namespace with the interface `eth0`."""

    name: str
    address: str

    def command(self, *command: str) -> list[str]:
        """A command that runs on this machine."""
        return ["ip", "netns", "exec", self.name, *command]

    def sent(self) -> int:
        """Bytes that have left it so far, with the headers of the network."""
        path = "/sys/class/net/eth0/statistics/tx_bytes"
        return int(subprocess.run(self.command("cat", path), check=True, capture_output=True, text=True).stdout)

    def processes(self) -> list[int]:
        found = subprocess.run(["ip", "netns", "pids", self.name], check=True, capture_output=True, text=True)
        return [int(word) for word in found.stdout.split()]


@contextmanager
def two_machines(mbit: int | None = None) -> Iterator[list[Machine]]:
    """10.0.0.1 and 10.0.0.2; `mbit`: how many Mbit/s the line takes in each direction. `OSError` or
    `CalledProcessError` where they cannot be made."""
    machines = [Machine(f"federec-{os.getpid()}-{number}", f"10.0.0.{number}") for number in (1, 2)]
    try:
        for machine in machines:
            _ip("netns", "add", machine.name)
        first, second = (machine.name for machine in machines)
        _ip("link", "add", "eth0", "netns", first, "type", "veth", "peer", "name", "eth0", "netns", second)
        for machine in machines:
            _ip("-n", machine.name, "addr", "add", f"{machine.address}/24", "dev", "eth0")
            for link in ("eth0", "lo"):
                _ip("-n", machine.name, "link", "set", link, "up")
            if mbit is not None:
                limit = ("rate", f"{mbit}mbit", "burst", "256kb", "latency", "50ms")
                _run(*machine.command("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", *limit))
        yield machines
    finally:
        for machine in machines:
            subprocess.run(["ip", "netns", "del", machine.name], capture_output=True, check=False)


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
