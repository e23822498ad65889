"""Messages between server and nodes, as bytes: a header, metadata as JSON, tensors as safetensors.

    magic       8 bytes   b"federec\\0"
    protocol    u16       version of all that follows the header
    metadata    u32       length of the JSON part
    JSON, then safetensors to the end; numbers are little-endian

The header never changes, so that every version can tell which version the other side speaks. Whatever else changes in a
message raises `PROTOCOL`.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import torch
from safetensors.torch import load, save
from torch import Tensor

from federec.cohort.layers import Params
from federec.network.parameters import Payload

PROTOCOL = 2
"""The version that this package speaks."""
MAGIC = b"federec\0"
HEADER = struct.Struct("<8sHI")

Kind = Literal["query", "train", "evaluate"]
_WANTED = "wanted"


class OtherVersion(ValueError):
    """The other side speaks another version of the protocol."""

    def __init__(self, version: int) -> None:
        super().__init__(f"protocol {version}, not {PROTOCOL}")
        self.version = version

    def told(self, peer: str, here: str, role: str) -> str:
        """One line that says who has to update; `role` is what the peer is: a device or a server."""
        older = role if self.version < PROTOCOL else here
        return f"{peer} speaks protocol {self.version}, this {here} {PROTOCOL}: update federec on the {older}"


@dataclass(frozen=True)
class Order:
    """What a node needs to know to take part in a round, or to evaluate one."""

    kind: Kind
    """`query`: say what you need in the round; `train`: play it; `evaluate`: rank after it."""
    run: str
    """Which run. A server that continues it after a crash uses the same name."""
    round: int
    config: dict[str, Any]
    """The run's settings, the channel among them: what is to be done with all that leaves the node."""
    sizes: list[int]
    """How many items the catalogue had, from the beginning to now: tables grew in these steps."""
    labels: list[str] = field(default_factory=list)
    """New items that the node has not heard of."""
    keep: int = 0
    """The best round so far can be recomputed from the state after this one: keep it."""
    full: bool = False
    """Rank against all items, too."""
    shared: Payload = field(default_factory=Payload.nothing)
    """The shared parameters."""

    def pack(self) -> bytes:
        return _pack(self, self.shared.packed())

    @staticmethod
    def parse(content: bytes) -> Order:
        """A ValueError for everything that is not an order; an OtherVersion for an order of another version."""
        metadata, tensors = _unpack(content)
        order = Order(**_typed(metadata, _ORDER), shared=_payload(tensors))
        if order.kind not in get_args(Kind) or not all(type(size) is int and size >= 0 for size in order.sizes):
            raise ValueError("not an order (kind or sizes)")
        if not order.sizes or not all(type(label) is str for label in order.labels):
            raise ValueError("not an order (sizes or labels)")
        return order


@dataclass(frozen=True)
class Reply:
    """What leaves a node: these fields, and nothing else."""

    run: str
    round: int
    catalogue: str
    """Version of the node's catalogue."""
    devices: int
    """Users that the node hosts, whose messages its update is the sum of."""
    sums: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Losses and metrics by name: their sum, and over how many."""
    failed: str = ""
    """Why the reply holds nothing else; empty means that all went well."""
    update: Payload = field(default_factory=Payload.nothing)
    """The sum of the users' messages."""
    wanted: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int32))
    """Codes of the rows that the node will need in the next round; empty means all."""

    def pack(self) -> bytes:
        return _pack(self, self.update.packed() | {_WANTED: self.wanted.int()})

    @staticmethod
    def parse(content: bytes) -> Reply:
        """A ValueError for everything that is not a reply; an OtherVersion for a reply of another version. The values
        of its update may still be anything."""
        metadata, tensors = _unpack(content)
        wanted = tensors.pop(_WANTED, None)
        if wanted is None or wanted.dtype != torch.int32 or wanted.dim() != 1:
            raise ValueError("not a reply (no list of wanted rows)")
        reply = Reply(**_typed(metadata, _REPLY), update=_payload(tensors), wanted=wanted.long())
        return replace(reply, sums={name: _pair(pair) for name, pair in reply.sums.items()})


_ORDER = {"kind": str, "run": str, "round": int, "config": dict}
_ORDER |= {"sizes": list, "labels": list, "keep": int, "full": bool}
_REPLY = {"run": str, "round": int, "catalogue": str, "devices": int, "sums": dict, "failed": str}


def parts(content: bytes) -> tuple[bytes, bytes]:
    """The JSON and the safetensors of a message of this version, unread."""
    if len(content) < HEADER.size:
        raise ValueError("not a message of a federation: it is shorter than a header")
    magic, version, length = HEADER.unpack_from(content)
    if magic != MAGIC:
        raise ValueError("not a message of a federation: it begins otherwise")
    if version != PROTOCOL:
        raise OtherVersion(version)
    begin = HEADER.size + length
    if begin > len(content):
        raise ValueError("a message that is cut off")
    return content[HEADER.size : begin], content[begin:]


def _pack(message: Order | Reply, tensors: Params) -> bytes:
    metadata = {name: value for name, value in vars(message).items() if not isinstance(value, Tensor | Payload)}
    text = json.dumps(metadata).encode()
    return b"".join((HEADER.pack(MAGIC, PROTOCOL, len(text)), text, save(tensors)))


def _unpack(content: bytes) -> tuple[object, Params]:
    text, tensors = parts(content)
    try:
        return json.loads(text), load(tensors)
    except Exception as error:  # deep JSON, huge numbers, unknown types: libraries raise many kinds
        raise ValueError(f"a message that cannot be read ({type(error).__name__})") from None


def _typed(metadata: object, types: dict[str, type]) -> dict[str, Any]:
    """The metadata, which must have these fields, of these types."""
    if not isinstance(metadata, dict) or metadata.keys() != types.keys():
        raise ValueError("a message with other fields")
    for name, kind in types.items():
        if type(metadata[name]) is not kind:
            raise ValueError(f"a message whose '{name}' is not {kind.__name__}")
    return metadata


def _pair(pair: object) -> tuple[float, int]:
    if not isinstance(pair, list) or [type(number) for number in pair] != [float, int]:
        raise ValueError("a message with sums that are not pairs of sum and count")
    return pair[0], pair[1]


def _payload(tensors: Params) -> Payload:
    if "ids" not in tensors:
        raise ValueError("a message without row codes")
    try:
        return Payload.unpacked(tensors)
    except Exception as error:  # shapes that do not fit
        raise ValueError(f"a message whose values cannot be read ({type(error).__name__})") from None
