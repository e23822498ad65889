"""Messages between server and devices: facts as JSON, tensors as safetensors, in Flower's records."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from federec.cohort.layers import Params
from federec.runtimes.flower.parameters import Seen

Kind = Literal["query", "train", "evaluate"]


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

    def pack(self) -> RecordDict:
        return _pack(self, seen=self.seen.tensors())

    @staticmethod
    def read(content: RecordDict) -> Order:
        facts, tensors = _unpack(content)
        return Order.load(facts, tensors["seen"])

    def dump(self) -> tuple[str, bytes]:
        """Facts and tensors, for records of another make."""
        return json.dumps(_facts(self)), save(self.seen.tensors())

    @staticmethod
    def load(facts: dict[str, Any], seen: bytes) -> Order:
        return Order(**facts, seen=Seen.parse(load(seen)))


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
        return _pack(self, update=self.update.tensors(), wanted={"wanted": self.wanted.int()})

    @staticmethod
    def read(content: RecordDict) -> Reply:
        """A ValueError for what is no reply. Its update may still be anything."""
        facts, tensors = _unpack(content)
        try:
            wanted = load(tensors["wanted"])["wanted"].long().flatten()
            sums = {str(name): (float(total), int(count)) for name, (total, count) in facts.pop("sums").items()}
            known = {name: kind(facts.pop(name)) for name, kind in _KINDS.items()}
            return Reply(**known, sums=sums, update=Seen.parse(load(tensors["update"])), wanted=wanted)
        except (TypeError, KeyError, ValueError, AttributeError, RuntimeError, SafetensorError) as error:
            raise ValueError(f"no reply ({type(error).__name__})") from None


_KINDS = {"run": str, "round": int, "catalogue": str, "devices": int, "failed": str}


def _pack(message: Order | Reply, **tensors: Params) -> RecordDict:
    arrays = {}
    for name, values in tensors.items():
        data = save(values)
        arrays[name] = Array(dtype="uint8", shape=(len(data),), stype="safetensors", data=data)
    return RecordDict({"tensors": ArrayRecord(arrays), "facts": ConfigRecord({"json": json.dumps(_facts(message))})})


def _facts(message: Order | Reply) -> dict[str, Any]:
    return {name: value for name, value in vars(message).items() if not isinstance(value, Tensor | Seen)}


def _unpack(content: RecordDict) -> tuple[dict[str, Any], dict[str, bytes]]:
    try:
        facts = json.loads(str(content.config_records["facts"]["json"]))
        return dict(facts), {name: array.data for name, array in content.array_records["tensors"].items()}
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(f"no message of a federation ({type(error).__name__})") from None


def size(record: Any) -> int:
    """Bytes of a message, or of a part of it, as it travels inside HTTP."""
    return len(record.deflate()) + sum(map(size, (record.children or {}).values()))
