"""The calls of Flower's Fleet API that a node makes, without Flower, which takes more memory and time to load than all
else that a node needs: protobuf messages over HTTPS. The numbers of fields are those of Flower's `fleet.proto`,
`message.proto` and `recorddict.proto`; a test reads and writes the same messages with Flower's own classes.
"""

from __future__ import annotations

import json
import secrets
import ssl
import struct
import time
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import NamedTuple, TypeVar

from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from federec.runtimes.flower.records import CONTENT, RECORD

HEARTBEAT = 10.0
"""Seconds for which the server takes a node to be there after a sign of life; no fewer are allowed."""

_WAIT = 30.0  # seconds for an answer; the server keeps a node that asks for orders waiting for less
_QUICK = 5.0  # the same for an answer to a sign of life
_MOST_ERROR = 1 << 16  # bytes of an answer that is an error

Value = int | float | bytes | str
T = TypeVar("T", int, float, bytes)


class Lost(Exception):
    """There is no connection, or what comes over it is not what a server sends."""


class Refused(Exception):
    """The server does not do what was asked: the status of its answer, and why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Delivered(NamedTuple):
    """A message to this node, with what a reply has to repeat."""

    run: int
    ticket: str
    source: int
    node: int
    group: str
    lifetime: float
    kind: str
    created: float
    content: bytes


class Fleet:
    """The server, for a node that proves with its key who it is. There is a connection for each call: between two of
    them a node may learn for minutes."""

    def __init__(self, server: str, key: EllipticCurvePrivateKey, root: bytes, most: int) -> None:
        """`root` is the certificate that the server's must be signed by; where there is none, TLS is not used. No
        answer with more than `most` bytes is read."""
        self.server, self.key, self.most = server, key, most
        self.public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        self.tls = None
        if root:
            self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self.tls.load_verify_locations(cadata=root.decode("ascii"))

    def activate(self) -> int:
        """Begin to take part; the number of this node."""
        found = dict(fields(self._call("activate-node", packed((1, self.public), (2, HEARTBEAT)))))
        return _typed(found.get(1, 0), int)

    def deactivate(self, node: int) -> None:
        """Take part no longer."""
        self._call("deactivate-node", packed((1, node)))

    def beat(self, node: int) -> None:
        """A sign of life."""
        self._call("send-node-heartbeat", packed((1, packed((1, node))), (2, HEARTBEAT)), _QUICK)

    def pull(self, node: int) -> list[Delivered]:
        """Messages to this node; the server waits a while until there is one."""
        found = fields(self._call("pull-messages", packed((1, packed((1, node))))))
        return [delivered(_typed(value, bytes)) for number, value in found if number == 2]

    def push(self, node: int, message: Delivered, content: bytes) -> None:
        """Reply to a message. A ValueError where that is too large to be sent."""
        request = reply(node, message, content)
        if len(request) > self.most:
            raise ValueError(f"a reply has {len(request)} bytes, more than --message-mb")
        self._call("push-messages", request)

    def _call(self, name: str, body: bytes, wait: float = _WAIT) -> bytes:
        if self.tls is None:
            connection = HTTPConnection(self.server, timeout=wait)
        else:
            connection = HTTPSConnection(self.server, timeout=wait, context=self.tls)
        try:
            connection.request("POST", f"/v1/fleet/{name}", body, self._headers())
            return self._read(connection.getresponse())
        except (OSError, HTTPException) as error:
            raise Lost(str(error) or type(error).__name__) from None
        finally:
            connection.close()

    def _headers(self) -> dict[str, str]:
        """A signed time: who has the key, now."""
        now = datetime.now(UTC).isoformat()
        return {
            "content-type": "application/protobuf",
            "accept": "application/protobuf",
            "connection": "close",
            "flwr-public-key": b64encode(self.public).decode(),
            "flwr-timestamp": now,
            "flwr-signature": b64encode(self.key.sign(now.encode(), ECDSA(SHA256()))).decode(),
        }

    def _read(self, response: HTTPResponse) -> bytes:
        """The body of an answer, where it is not too large."""
        if response.status != 200:
            raise Refused(response.status, _reason(response))
        length = response.headers.get("content-length", "")
        if not length.isdigit() or int(length) > self.most or "content-encoding" in response.headers:
            raise Lost(f"it sends {length or 'any number of'} bytes, more than {self.most} (--message-mb)")
        return response.read()


def reply(node: int, message: Delivered, content: bytes) -> bytes:
    """A `PushMessagesRequest` with the reply to a message."""
    now, ticket = time.time(), secrets.token_hex(32)
    metadata = packed(
        (1, message.run),
        (2, ticket),
        (3, message.node),
        (4, message.source),
        (5, message.ticket),
        (6, message.group),
        (7, max(1.0, message.created + message.lifetime - now)),
        (8, message.kind),
        (9, now),
    )
    value = packed((1, CONTENT), (2, packed((6, content))))
    record = packed((1, packed((1, RECORD), (4, packed((1, value))))))
    return packed((1, packed((1, node))), (2, packed((1, metadata), (2, record))), (3, packed((1, ticket))))


def delivered(message: bytes) -> Delivered:
    """What a `Message` says. Its content is empty where it holds something else than federec's."""
    found = dict(fields(message))
    metadata = dict(fields(_typed(found.get(1, b""), bytes)))
    whole = [_typed(metadata.get(number, 0), int) for number in (1, 3, 4)]
    texts = [_typed(metadata.get(number, b""), bytes).decode() for number in (2, 6, 8)]
    times = [_typed(metadata.get(number, 0.0), float) for number in (7, 9)]
    return Delivered(
        run=whole[0],
        ticket=texts[0],
        source=whole[1],
        node=whole[2],
        group=texts[1],
        lifetime=times[0],
        kind=texts[2],
        created=times[1],
        content=_content(_typed(found.get(2, b""), bytes)),
    )


def _content(records: bytes) -> bytes:
    """The bytes in a `RecordDict`."""
    value = _entry(_entry(records, RECORD, 4), CONTENT, 2)
    return _typed(dict(fields(value)).get(6, b""), bytes)


def _entry(message: bytes, name: str, place: int) -> bytes:
    """What a message with named entries has under a name, in this field of the entry; empty where there is none."""
    for number, value in fields(message):
        entry = dict(fields(_typed(value, bytes))) if number == 1 else {}
        if entry.get(1) == name.encode():
            return _typed(entry.get(place, b""), bytes)
    return b""


def packed(*values: tuple[int, Value]) -> bytes:
    """A message with these fields; one that is 0 or empty is left out, as protobuf does."""
    parts = []
    for number, value in values:
        if not value:
            continue
        if isinstance(value, int):
            parts += [_varint(number << 3), _varint(value)]
        elif isinstance(value, float):
            parts += [_varint(number << 3 | 1), struct.pack("<d", value)]
        else:
            content = value.encode() if isinstance(value, str) else value
            parts += [_varint(number << 3 | 2), _varint(len(content)), content]
    return b"".join(parts)


def fields(message: bytes) -> Iterator[tuple[int, Value]]:
    """The number and the value of each field of a message; a ValueError for what is no message."""
    at = 0
    while at < len(message):
        key, at = _number(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _number(message, at)
            yield key >> 3, value
            continue
        if kind not in (1, 2, 5):
            raise ValueError("a field of an unknown kind")
        size, at = (8 if kind == 1 else 4, at) if kind != 2 else _number(message, at)
        content, at = message[at : at + size], at + size
        if len(content) < size:
            raise ValueError("a message that is cut off")
        yield key >> 3, content if kind == 2 else struct.unpack("<d" if kind == 1 else "<f", content)[0]


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def _number(message: bytes, at: int) -> tuple[int, int]:
    """A varint, and where the next field begins."""
    number = 0
    for place in range(10):
        if at + place >= len(message):
            raise ValueError("a message that is cut off")
        number |= (message[at + place] & 0x7F) << 7 * place
        if message[at + place] < 0x80:
            return number, at + place + 1
    raise ValueError("a number that is too long")


def _typed(value: Value, kind: type[T]) -> T:
    if not isinstance(value, kind):
        raise ValueError("a field of another kind than Flower's")
    return value


def _reason(response: HTTPResponse) -> str:
    """What the server says."""
    try:
        return str(json.loads(response.read(_MOST_ERROR))["detail"])[:200]
    except (ValueError, KeyError, TypeError, RecursionError):
        return f"status {response.status}"
