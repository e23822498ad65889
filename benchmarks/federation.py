"""What a federation costs beyond its messages: `python benchmarks/federation.py [--page]`.

Rounds of five devices on loopback, with TLS and admitted keys: ours (PFedRec on `tastes`, a fifth of the users each),
in the clear and under secure-sum; and those of processes that only pass messages over the same Fleet API (`trivial.py`:
as many bytes to each device and back as a round in the clear, nothing learned, nothing kept). A round lasts from the
end of the one before it to its own; the first is left out. What is more than messages is learning and ranking,
encryption, the device's file, guards, aggregation and checkpoints.

One more figure: what a device spends on its part of a round, and on learning and ranking in it. CPU seconds are those
of all processes in a round; where fewer cores are idle than a round keeps busy, seconds say more about the machine.
What other devices spend is in `device.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from page import bars, put, table

from federec.network.catalogue import Catalogue
from federec.network.device import answer
from federec.network.device_folder import DeviceFolder, share_out, shares
from federec.network.hiding import Sums
from federec.network.keys import Key
from federec.network.messages import Order, Reply
from federec.network.parameters import Payload
from federec.network.settings import EVENTS, FederationSettings, prepare
from federec.network.torch_engine import TorchEngine
from federec.runs.config import RunConfig
from federec.runs.folder import RunFolder
from federec.runtimes.flower.up import Federation, follow, free_port

DEVICES, ROUNDS = 5, 8
TRIVIAL = str(Path(__file__).with_name("trivial.py"))


class Rounds:
    """Seconds of rounds, and CPU seconds of all processes in one."""

    def __init__(self, home: Path, cpu: float) -> None:
        lines = map(json.loads, (home / EVENTS).read_text().splitlines())
        ends = [line["time"] for line in lines if line["event"] == "round"]
        self.seconds, self.cpu = [end - begin for begin, end in pairwise(ends)], cpu

    def row(self, name: str) -> list[str]:
        return [name, f"{median(self.seconds):.2f}", f"{min(self.seconds):.2f}", f"{self.cpu:.2f}"]


def spent(pids: list[int]) -> float:
    """CPU seconds of processes so far."""
    words = (Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids)
    return sum(int(word) for line in words for word in line[11:13]) / os.sysconf("SC_CLK_TCK")


def prepared(home: Path, *channel: str) -> Path:
    """The folder of a federation, with its devices."""
    stages = tuple({"stage": name} for name in channel)
    config = RunConfig.checked(method="pfedrec", data="tastes", rounds=ROUNDS + 1, channel=stages)
    data = config.load()
    prepare(home, config, FederationSettings.checked(expected=DEVICES), Catalogue.of(data))
    share_out(home, data, DEVICES)
    return home


def ours(home: Path) -> Rounds:
    """A federation."""
    marks = []
    with Federation(home) as federation:
        federation.serve()
        for folder, key in shares(home):
            federation.node(folder.name, folder, key)
        assert federation.server is not None
        pids = [federation.server.pid, *(node.pid or 0 for node in federation.nodes.values())]
        for event in follow(home, federation):
            marks += [spent(pids)] if event["event"] == "round" else []
    return Rounds(home, (marks[-1] - marks[0]) / ROUNDS)


def only_messages(home: Path, size: int) -> Rounds:
    """Processes that pass as many bytes."""
    with Federation(home):  # which makes the server's certificate
        port = free_port()
    words = ["serve", home, port, ROUNDS + 1, DEVICES, size]
    started = [subprocess.Popen([sys.executable, TRIVIAL, *map(str, words)])]
    for folder, _ in shares(home):
        command = [sys.executable, TRIVIAL, "node", str(home), str(port), folder.name]
        started.append(subprocess.Popen(command, stderr=subprocess.DEVNULL))
    events, marks = home / EVENTS, [0.0]
    while started[0].poll() is None:
        if events.exists() and events.read_text().count('"event": "round"') > len(marks) - 1:
            marks.append(spent([process.pid for process in started]))
        time.sleep(0.02)
    for process in started[1:]:
        process.terminate()
        process.wait()
    return Rounds(home, (marks[-1] - marks[1]) / (len(marks) - 2))


def alone(home: Path) -> tuple[float, float]:
    """CPU seconds of a device's part of a round, from the message that came to the one that leaves; and of these, of
    learning and ranking."""
    config = RunFolder(home).config().model_dump(mode="json")
    folder, key = home / "devices" / "device-0", Key.file(home / "secrets" / "device-0")
    whole, learning = [], []
    torch.set_num_threads(1)
    train = TorchEngine.train

    def timed(*given: Any) -> Any:
        began = time.process_time()
        learned = train(*given)
        learning.append(time.process_time() - began)
        return learned

    with closing(DeviceFolder.open(folder, key)) as store:
        store.pin(store.policy.model_copy(update={"runs": 2}))  # it has played in the federation before
        items = np.random.default_rng(0).standard_normal((len(store.catalogue), 32), np.float32)
    shared = Payload(np.arange(len(items)), {"items": items})
    with patch.object(TorchEngine, "train", timed):
        for round_ in range(1, ROUNDS + 1):
            order = Order("train", "alone", round_, config, [len(items)], shared=shared).pack()
            began = time.process_time()
            reply = answer(lambda: closing(DeviceFolder.open(folder, key)), order, Sums())
            whole.append(time.process_time() - began)
            assert not Reply.parse(reply).failed
    return median(whole), median(learning)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        clear = ours(prepared(place / "clear"))
        secure = ours(prepared(place / "secure", "secure-sum"))
        result = json.loads((place / "clear" / "result.json").read_text())["communication"]
        size = int(sum(result[f"{way}_bytes_per_node_round"] for way in ("up", "down")) / 2)
        messages = only_messages(prepared(place / "trivial"), size)
        whole, learning = alone(place / "clear")
    head = ["a round of five devices", "s, median", "s, least", "CPU s, all processes"]
    rows = [
        messages.row("only messages"),
        clear.row("pfedrec on tastes, in the clear"),
        secure.row("pfedrec on tastes, secure-sum"),
    ]
    more = median(clear.seconds) / median(messages.seconds)
    text = table(head, rows) + (
        f"\n\nA federec round takes {more:.1f} times as long as its messages alone, and "
        f"{median(secure.seconds) / median(clear.seconds):.1f} times as long under secure-sum as in the clear. A "
        f"device's part of a round in the clear is {whole:.2f} s of CPU time, {learning:.2f} s of it learning and "
        "ranking."
    )
    print(text)
    if asked.page:
        drawn = {row[0]: {"seconds": float(row[1]), "CPU seconds": float(row[3])} for row in rows}
        text += f"\n\n{bars('federation', 'a round of five devices', drawn)}"
        put("federation", "A federation beyond its messages", text)


if __name__ == "__main__":
    main()
