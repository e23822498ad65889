"""Processes that only pass messages, over the same Fleet API as a federation's: as many bytes to each node and back.

`python benchmarks/trivial.py serve HOME PORT ROUNDS DEVICES BYTES` and `python benchmarks/trivial.py node HOME PORT
NAME`, with the certificates and device folders that `federec federation up` makes in HOME.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from federec.network import device
from federec.network.certificates import ROOT, SERVER, SERVER_KEY
from federec.network.events import Events
from federec.network.exchange import Exchange
from federec.network.settings import EVENTS


def serve(home: Path, port: int, rounds: int, devices: int, size: int) -> None:
    from federec.runtimes.flower.admission import Admission
    from federec.runtimes.flower.link import Link
    from federec.runtimes.flower.server import FleetTransport, listening, start

    link, tls, events = Link(), home / "tls", Events(home / EVENTS)
    admission = Admission(link, home / "nodes", (tls / ROOT).read_bytes(), Events(home / "audit.jsonl"))
    transport = FleetTransport(link, admission)
    start(link, admission, listening("127.0.0.1", port), (tls / SERVER, tls / SERVER_KEY), 1 << 26)
    while len(nodes := transport.nodes()) < devices:
        time.sleep(Exchange.poll)
    for round_ in range(1, rounds + 1):
        pending = set(transport.send({node: os.urandom(size) for node in nodes}, "train", round_, 60.0))
        while pending:
            pending -= {delivery.ticket for delivery in transport.collect(list(pending))}
            if pending:
                time.sleep(Exchange.poll)
        events.say("round", round=round_)
    time.sleep(0.1)  # let the last round be seen before the process is gone


def node(home: Path, port: int, name: str) -> None:
    from federec.runtimes.flower.node import join

    device.answer = lambda opened, content, sums: content
    join(f"127.0.0.1:{port}", home / "devices" / name, home / "secrets" / name)


if __name__ == "__main__":
    what, folder, *given = sys.argv[1:]
    if what == "serve":
        serve(Path(folder), *map(int, given))
    else:
        node(Path(folder), int(given[0]), given[1])
