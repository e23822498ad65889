"""Messages between server and devices: facts as JSON, tensors as safetensors, in one of Flower's records.

In one, because each record, array and chunk of an array is a request of its own on every leg of a message's way, and
requests are what most of a message's time goes into.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from flwr.app import ConfigRecord, RecordDict
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from federec.cohort.layers import Params
from federec.network.parameters import Seen

Kind = Literal["query", "train", "evaluate"]
RECORD = "federec"
"""The record that a message is in."""


@dataclass(frozen=True)
class Order:
    """What a device needs to know to take part in a round, or to evaluate one."""

    kind: Kind
    """Say what you need in the round; play it; rank after it."""
    run: str
    """Which run, whatever process serves it."""
    round: int
    config: dict[str, Any]
    """The run's settings."""
    channel: dict[str, Any]
    """What is to be done with all that leaves the device."""
    sizes: list[int]
    """How many items the catalogue had, from the beginning to now: tables grew in these steps."""
    labels: list[str] = field(default_factory=list)
    """New items that the device has not heard of."""
    keep: int = 0
    """The best round so far can be had again from the state after this one: keep it."""
    full: bool = False
    """Rank against all items, too."""
    seen: Seen = field(default_factory=Seen.nothing)
    """The shared parameters."""

    def values(self) -> dict[str, Any]:
        """Facts and tensors, for a record."""
        return _values(self, seen=self.seen.tensors())

    def pack(self) -> RecordDict:
        return RecordDict({RECORD: ConfigRecord(self.values())})

    @staticmethod
    def read(content: RecordDict) -> Order:
        return Order.of(_open(content))

    @staticmethod
    def of(values: Mapping[str, Any]) -> Order:
        """From its `values`."""
        return Order(**json.loads(values["facts"]), seen=Seen.parse(load(values["seen"])))


@dataclass(frozen=True)
class Reply:
    """What leaves a device: these fields, and nothing else."""

    run: str
    round: int
    catalogue: str
    """Version of the device's catalogue."""
    devices: int
    """Users it hosts, whose messages its update is the sum of."""
    sums: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Losses and metrics by name: their sum, and over how many."""
    failed: str = ""
    """Why there is nothing in it."""
    update: Seen = field(default_factory=Seen.nothing)
    """The sum of the users' messages."""
    wanted: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int32))
    """Codes of the rows that the device will need in the next round; none: all."""

    def pack(self) -> RecordDict:
        values = _values(self, update=self.update.tensors(), wanted={"wanted": self.wanted.int()})
        return RecordDict({RECORD: ConfigRecord(values)})

    @staticmethod
    def read(content: RecordDict) -> Reply:
        """A ValueError for what is no reply. Its update may still be anything."""
        values = _open(content)
        try:
            facts = dict(json.loads(values["facts"]))
            wanted = load(values["wanted"])["wanted"].long().flatten()
            sums = {str(name): (float(total), int(count)) for name, (total, count) in facts.pop("sums").items()}
            known = {name: kind(facts.pop(name)) for name, kind in _KINDS.items()}
            return Reply(**known, sums=sums, update=Seen.parse(load(values["update"])), wanted=wanted)
        except (TypeError, KeyError, ValueError, AttributeError, RuntimeError, SafetensorError) as error:
            raise ValueError(f"no reply ({type(error).__name__})") from None


_KINDS = {"run": str, "round": int, "catalogue": str, "devices": int, "failed": str}


def _values(message: Order | Reply, **tensors: Params) -> dict[str, Any]:
    facts = {name: value for name, value in vars(message).items() if not isinstance(value, Tensor | Seen)}
    return {"facts": json.dumps(facts)} | {name: save(values) for name, values in tensors.items()}


def _open(content: RecordDict) -> Mapping[str, Any]:
    if RECORD not in content.config_records:
        raise ValueError("no message of a federation")
    return content.config_records[RECORD]


def size(record: Any) -> int:
    """Bytes of a message, or of a part of it, as it travels inside HTTP."""
    return len(record.deflate()) + sum(map(size, (record.children or {}).values()))
