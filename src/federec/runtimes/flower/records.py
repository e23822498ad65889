"""A federation's message in Flower's: one record with one value.

Each record, array and chunk of an array is a request of its own on every leg of a message's way, and requests are what
most of a message's time goes into.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flwr.app import ConfigRecord, RecordDict

RECORD, CONTENT = "federec", "content"


def packed(content: bytes) -> RecordDict:
    """Bytes as Flower carries them."""
    return RecordDict({RECORD: ConfigRecord({CONTENT: content})})


def unpacked(record: RecordDict) -> bytes:
    """The bytes of a message; none where it holds something else, which no version of the protocol can read."""
    return content_of(record.config_records.get(RECORD) or {})


def content_of(values: Mapping[str, object]) -> bytes:
    """The bytes under their name among other values."""
    content = values.get(CONTENT)
    return content if isinstance(content, bytes) else b""


def size(part: Any) -> int:
    """Bytes of a Flower message, or of a part of it, as it travels inside HTTP."""
    return len(part.deflate()) + sum(map(size, (part.children or {}).values()))
