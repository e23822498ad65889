"""What a federation costs beyond Flower itself: `python benchmarks/federation.py [--page]`.

Rounds of five devices on loopback with TLS and registered keys: ours (PFedRec on `tastes`, a fifth of the users each),
and those of an app that only passes messages (`trivial.py`: as many bytes to each device and back, nothing learned,
nothing kept). Both run on the same SuperLink and SuperNodes, in turns; the first round of each turn is left out, and a
round lasts from the end of the one before it to its own. The overhead is what federec adds to the messages: learning
and ranking, encryption, the device's file, guards, aggregation and checkpoints.

Two more figures: the app that only passes messages on Flower as it is installed, where every message to a device starts
a new interpreter (otherwise they are forked, `runtimes/flower/warm.py`); and what a device spends on its part of a
round, and on learning and ranking in it. CPU seconds are those of all processes in a round, Flower's among them; where
fewer cores are idle than a round keeps busy, seconds say more about the machine. What other devices spend is in
`device.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ["PYTHONPATH"] = os.pathsep.join([sys.path[0], os.environ.get("PYTHONPATH", "")])

import torch
from page import bars, put, table

from federec.network import device
from federec.network.catalogue import Catalogue
from federec.network.device_folder import DeviceFolder, share_out
from federec.network.keys import Key
from federec.network.messages import Order
from federec.network.parameters import Payload
from federec.network.settings import EVENTS, FederationSettings
from federec.runs.config import RunConfig
from federec.runtimes.flower.app import prepare
from federec.runtimes.flower.up import Federation

DEVICES, ROUNDS, TURNS = 5, 6, 3
APP = """[project]
name = "trivial"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "federec"
[tool.flwr.app.components]
serverapp = "benchmarks.trivial:server"
clientapp = "benchmarks.trivial:client"
[tool.flwr.app.config]
"""


class Rounds:
    """Seconds of rounds, and CPU seconds of all processes in them."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.cpu: list[float] = []

    def play(self, federation: Federation, folder: Path) -> None:
        """Run a prepared app to the end of its last round."""
        federation.run(folder)
        federation.wait(lambda: len(ends(folder)) > 0, 300, "superlink")
        before = spent(federation)
        federation.wait(lambda: len(ends(folder)) > ROUNDS, 300, "superlink")
        self.cpu.append((spent(federation) - before) / ROUNDS)
        self.seconds += [end - begin for begin, end in pairwise(ends(folder))]

    def row(self, name: str) -> list[str]:
        return [name, f"{median(self.seconds):.2f}", f"{min(self.seconds):.2f}", f"{median(self.cpu):.2f}"]


def ends(folder: Path) -> list[float]:
    """When the rounds of a run ended."""
    file = folder / EVENTS
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return [line["time"] for line in lines if line["event"] == "round"]


def spent(federation: Federation) -> float:
    """CPU seconds of a federation's processes so far, those that have ended included."""
    ticks, mark = 0, f"FLWR_HOME={federation.environment['FLWR_HOME']}\0".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes():
                ticks += sum(map(int, (process / "stat").read_text().rpartition(")")[2].split()[11:15]))
        except OSError:  # it is not ours, or gone
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def only_messages(folder: Path) -> Path:
    """The folder of the trivial app."""
    (folder / "app").mkdir(parents=True)
    values = {"devices": DEVICES, "rows": 1682, "rounds": ROUNDS + 1, "out": str(folder / EVENTS)}
    lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())
    (folder / "app" / "pyproject.toml").write_text(APP + lines)
    return folder


def together(home: Path) -> tuple[Rounds, Rounds]:
    """The app that only passes messages and federec, in turns."""
    config = RunConfig.checked(method="pfedrec", data="tastes", rounds=ROUNDS + 1)
    data = config.load()
    share_out(home, data, DEVICES)
    flower, ours = Rounds(), Rounds()
    with Federation(home, tls=True, auth=True) as federation:
        federation.warm_up()
        start(federation)
        for turn in range(TURNS):
            flower.play(federation, only_messages(home / f"trivial-{turn}"))
            folder = home / f"ours-{turn}"
            prepare(folder, config, FederationSettings.checked(expected=DEVICES), Catalogue.of(data))
            ours.play(federation, folder)
            federation.wait((folder / "result.json").exists, 300, "superlink")
    return flower, ours


def as_installed(home: Path) -> Rounds:
    """The app that only passes messages, on Flower as it is installed."""
    rounds = Rounds()
    with Federation(home, tls=True, auth=True) as federation:
        del federation.environment["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"]
        start(federation)
        rounds.play(federation, only_messages(home / "trivial"))
    return rounds


def start(federation: Federation) -> None:
    federation.superlink()
    for number in range(DEVICES):
        name = f"device-{number}"
        federation.register(name)
        federation.node(name, federation.home / "devices" / name, federation.home / "secrets" / name)


def alone(home: Path) -> tuple[float, float]:
    """CPU seconds of a device's part of a round, from the message that came to the one that leaves; and of these, of
    learning and ranking."""
    config = RunConfig.checked(method="pfedrec", data="tastes").model_dump(mode="json")
    folder, key = home / "devices" / "device-0", Key.file(home / "secrets" / "device-0")
    whole, learning = [], []
    torch.set_num_threads(1)
    learn = device.learn

    def timed(*given: Any, **named: Any) -> Any:
        began = time.process_time()
        learned = learn(*given, **named)
        learning.append(time.process_time() - began)
        return learned

    with closing(DeviceFolder.open(folder, key)) as store:
        items = torch.randn(len(store.catalogue), 32)
    shared = Payload(torch.arange(len(items)), {"items": items})
    with patch.object(device, "learn", timed):
        for round_ in range(1, ROUNDS + 1):
            order = Order("train", "alone", round_, config, {}, [len(items)], shared=shared).pack()
            began = time.process_time()
            device.answer(lambda: closing(DeviceFolder.open(folder, key)), order)
            whole.append(time.process_time() - began)
    return median(whole), median(learning)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        flower, ours = together(Path(scratch) / "together")
        installed = as_installed(Path(scratch) / "installed")
        whole, learning = alone(Path(scratch) / "together")
    head = ["a round of five devices", "s, median", "s, least", "CPU s, all processes"]
    rows = [
        installed.row("only messages, Flower as installed"),
        flower.row("only messages, processes forked"),
        ours.row("pfedrec on tastes, processes forked"),
    ]
    more = [median(ours.seconds) / median(each.seconds) - 1 for each in (flower, installed)]
    text = table(head, rows) + (
        f"\n\nA federec round takes {more[0]:+.0%} time compared to a Flower app that only passes messages, in the "
        f"same processes; {more[1]:+.0%} compared to that app on Flower as installed. A device's part of a round is "
        f"{whole:.2f} s of CPU time, {learning:.2f} s of it learning and ranking."
    )
    print(text)
    if asked.page:
        drawn = {row[0]: {"seconds": float(row[1]), "CPU seconds": float(row[3])} for row in rows}
        text += f"\n\n{bars('federation', 'a round of five devices', drawn)}"
        put("federation", "A federation beyond Flower's own", text)


if __name__ == "__main__":
    main()
