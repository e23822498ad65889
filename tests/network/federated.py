"""A federation for tests: a prepared folder whose nodes share the users of a data set."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from federec.network import vault
from federec.network.catalogue import Catalogue
from federec.network.device_folder import DeviceFolder, share_out, shares
from federec.network.exchange import Exchange
from federec.network.keys import Key
from federec.network.server import serve
from federec.network.settings import EVENTS, FederationSettings, prepare
from federec.runs.config import RunConfig
from federec.runs.folder import RunFolder
from federec.stages.registry import parse


@dataclass
class Federated:
    """Node n hosts users n, n + N, ... of N nodes."""

    config: RunConfig
    run: Path
    data: Any
    transport: Any = None

    def serve(self):
        """Play it to the end; its result."""
        serve(self.transport, self.run)
        return json.loads((self.run / "result.json").read_text())

    def events(self, kind):
        lines = map(json.loads, (self.run / EVENTS).read_text().splitlines())
        return [line for line in lines if line["event"] == kind]

    def folder(self, node):
        path, key = shares(self.run)[node]
        return DeviceFolder.open(path, Key.file(key))


def hurry(monkeypatch):
    """Do not wait for disks, which only matters to what survives a loss of power, nor long for replies."""
    monkeypatch.setattr(vault, "PRAGMAS", ("secure_delete = ON", "synchronous = OFF"))
    monkeypatch.setattr(os, "fsync", lambda file: None)
    monkeypatch.setattr(Exchange, "poll", 0.01)


def federated(
    run,
    data,
    method="pfedrec",
    nodes=3,
    rounds=3,
    seed=5,
    settings=None,
    plugins=(),
    **how,
):
    """A prepared federation that has no transport yet."""
    channel, aggregator, attack = how.pop("channel", ()), how.pop("aggregator", None), how.pop("attack", None)
    values = {"method": method, "plugins": plugins, "settings": settings or {}, "rounds": rounds, "seed": seed}
    values |= {"channel": parse(channel), "aggregator": aggregator, "attack": attack}
    values |= {"max_epsilon": how.pop("epsilon", None), "protocol": how.pop("protocol", "clean")}
    config = RunConfig.checked(**values, data="small", participation=1.0)
    how = {"expected": nodes, "deadline": 5.0, "patience": 5.0, "grace": 0.2, "counted": 1} | how
    prepare(run, config, FederationSettings.checked(**how), Catalogue.of(data))
    share_out(run, data, nodes)
    return Federated(RunFolder(run).config(), run, data)
