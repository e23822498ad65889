"""What server and node agree on: bytes in Flower's messages, their size, and where TLS is not needed."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a node needs no Flower
    from flwr.app import Message, RecordDict

MEGABYTES = 64
"""Largest message, unless said otherwise."""

NODES = "nodes"
"""Folder in that of a run: the certificates of the nodes that take part."""

RECORD, CONTENT = "federec", "content"
"""Names of the record that a message holds, and of the bytes in it."""


def packed(content: bytes) -> RecordDict:
    """Bytes as Flower carries them."""
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({RECORD: ConfigRecord({CONTENT: content})})


def unpacked(message: Message) -> bytes:
    """The bytes of a message; none where it holds something else, which no version of the protocol can read."""
    if not message.has_content():
        return b""
    record = message.content.config_records.get(RECORD)
    content = None if record is None else record.get(CONTENT)
    return content if isinstance(content, bytes) else b""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
