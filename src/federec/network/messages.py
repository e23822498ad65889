"""Messages between server and nodes, as bytes: a header, metadata as JSON, arrays as safetensors.

    magic       8 bytes   b"federec\\0"
    protocol    u16       version of all that follows the header
    metadata    u32       length of the JSON part
    JSON, then safetensors to the end; numbers are little-endian

The header never changes, so that every version can tell which version the other side speaks. Whatever else changes in a
message raises `PROTOCOL`.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from safetensors.numpy import load, save

from federec.network.catalogue import is_text
from federec.network.parameters import Array, Arrays, Payload

PROTOCOL = 3
"""The version that this package speaks."""
MAGIC = b"federec\0"
HEADER = struct.Struct("<8sHI")

Kind = Literal["query", "train", "evaluate", "share", "agree", "unmask"]
MOST_BYTES = 512 * 2**20
"""Longer messages are not read."""
_MOST_METADATA = 64 * 2**10  # bytes of a reply's JSON
_MOST_SUMS, _MOST_NAME = 500, 100  # figures in a reply, and characters of their names
_WANTED, _ADVERT, _SEALED = "wanted", "advert", "sealed"
_VERSION = re.compile(r"[0-9]{1,9}-[0-9a-f]{12}")  # of a catalogue


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
    """`query`: say what you need in the round; `train`: play it; `evaluate`: rank after it. `share`, `agree`, `unmask`:
    a leg of a secure sum."""
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
    next: str = ""
    """Name of the secure sum that may follow, for which the reply brings keys; empty: none."""
    shared: Payload = field(default_factory=Payload.nothing)
    """The shared parameters."""
    sealed: bytes = b""
    """What belongs to a secure sum, see `secure_sum`."""

    def pack(self) -> bytes:
        return _pack(self, self.shared.packed() | {_SEALED: _bytes(self.sealed)})

    @cached_property
    def digest(self) -> str:
        """Of all that is asked for, but not of how replies are summed: equal for nodes that are asked the same."""
        asked = [self.kind, self.run, self.round, self.config, self.sizes, self.keep, self.full]
        digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode())
        for name, value in sorted(self.shared.packed().items()):
            digest.update(f"{name} {value.shape} torch.{value.dtype}".encode())  # all devices must write the same
            digest.update(value.tobytes())
        return digest.hexdigest()

    @staticmethod
    def parse(content: bytes) -> Order:
        """A ValueError for everything that is not an order; an OtherVersion for an order of another version."""
        metadata, arrays = _unpack(content)
        sealed = _taken(arrays, _SEALED)
        order = Order(**_typed(metadata, _ORDER), shared=_payload(arrays), sealed=sealed)
        if order.kind not in get_args(Kind) or order.round < 0 or order.keep < 0:
            raise ValueError("not an order (kind or round)")
        if not order.sizes or not all(type(size) is int and 0 <= size < 2**31 for size in order.sizes):
            raise ValueError("not an order (sizes)")
        if not all(is_text(label) for label in order.labels):
            raise ValueError("not an order (labels)")
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
    wanted: Array = field(default_factory=lambda: np.zeros(0, np.int64))
    """Codes of the rows that the node will need in the next round, ascending; empty means all."""
    advert: bytes = b""
    """Keys for its next secure sum."""
    sealed: bytes = b""
    """What belongs to a secure sum, see `secure_sum`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "wanted", np.asarray(self.wanted))  # a tensor is taken as an array

    def pack(self) -> bytes:
        more = {_WANTED: self.wanted.astype(np.int32), _ADVERT: _bytes(self.advert), _SEALED: _bytes(self.sealed)}
        return _pack(self, self.update.packed() | more)

    @staticmethod
    def parse(content: bytes) -> Reply:
        """A ValueError for everything that is not a reply; an OtherVersion for a reply of another version. The values
        of its update may still be anything."""
        metadata, arrays = _unpack(content, _MOST_METADATA)
        advert, sealed = _taken(arrays, _ADVERT), _taken(arrays, _SEALED)
        wanted = arrays.pop(_WANTED, None)
        if wanted is None or wanted.dtype != np.int32 or wanted.ndim != 1 or bool((np.diff(wanted) <= 0).any()):
            raise ValueError("not a reply (no list of wanted rows)")
        values = _typed(metadata, _REPLY)
        if not 0 <= values["devices"] < 2**31 or (values["catalogue"] and not _VERSION.fullmatch(values["catalogue"])):
            raise ValueError("not a reply (number of users, or version of the catalogue)")
        if len(values["sums"]) > _MOST_SUMS or any(len(name) > _MOST_NAME for name in values["sums"]):
            raise ValueError("not a reply (sums)")
        values |= {"sums": {name: _pair(pair) for name, pair in values["sums"].items()}}
        update = _payload(arrays)
        return Reply(**values, update=update, wanted=wanted.astype(np.int64), advert=advert, sealed=sealed)


_ORDER = {"kind": str, "run": str, "round": int, "config": dict}
_ORDER |= {"sizes": list, "labels": list, "keep": int, "full": bool, "next": str}
_REPLY = {"run": str, "round": int, "catalogue": str, "devices": int, "sums": dict, "failed": str}


def parts(content: bytes) -> tuple[bytes, bytes]:
    """The JSON and the safetensors of a message of this version, unread."""
    if len(content) > MOST_BYTES:
        raise ValueError(f"a message of {len(content):,} bytes, which is too long")
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


def _pack(message: Order | Reply, arrays: Arrays) -> bytes:
    metadata = {
        name: value for name, value in vars(message).items() if not isinstance(value, np.ndarray | Payload | bytes)
    }
    text = json.dumps(metadata).encode()
    return b"".join((HEADER.pack(MAGIC, PROTOCOL, len(text)), text, save(arrays)))


def _unpack(content: bytes, most: int = MOST_BYTES) -> tuple[object, Arrays]:
    text, arrays = parts(content)
    if len(text) > most:
        raise ValueError(f"a message with {len(text):,} bytes of metadata, which is too long")
    try:
        return json.loads(text, parse_int=_int, parse_float=_float, parse_constant=_constant), load(arrays)
    except Exception as error:  # deep JSON, unknown types: libraries raise many kinds
        raise ValueError(f"a message that cannot be read ({type(error).__name__})") from None


def _int(text: str) -> int:
    if len(text) > 19:
        raise ValueError("a number that is too long")
    return int(text)


def _float(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError("a number that is too large")
    return value


def _constant(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def _bytes(content: bytes) -> Array:
    return np.frombuffer(content, np.uint8)


def _taken(arrays: Arrays, name: str) -> bytes:
    """Bytes that travel as an array, taken out."""
    value = arrays.pop(name, None)
    if value is None or value.dtype != np.uint8 or value.ndim != 1:
        raise ValueError(f"a message without '{name}'")
    return value.tobytes()


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


def _payload(arrays: Arrays) -> Payload:
    if "ids" not in arrays:
        raise ValueError("a message without row codes")
    try:
        return Payload.unpacked(arrays)
    except Exception as error:  # shapes that do not fit
        raise ValueError(f"a message whose values cannot be read ({type(error).__name__})") from None
