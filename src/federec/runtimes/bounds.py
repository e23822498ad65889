"""What strangers and devices can ask of a port at most: sizes, rates, slow bodies, connections."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

SMALL = 1 << 14
"""Bytes of all requests but those with a reply."""
HOLD = 20.0
"""Seconds for which a node that asks for orders is kept waiting for one."""
_BODY = 60.0  # seconds for a request's body to arrive
_DRAIN = 2.0  # seconds for which the rest of a body that is too large is taken in, and dropped
_SILENCE = 10.0  # seconds after which a connection that has asked for nothing is closed
_CONNECTIONS = 4096  # at once
_AT_ONCE = 4  # requests of one node
_RATE, _BURST = 20.0, 60.0  # requests of one node in a second, in the long run and in a burst


class Refused(Exception):
    """A request that is not answered: its status, and why."""

    def __init__(self, status: int, why: str) -> None:
        self.status, self.why = status, why


class Traffic:
    """How much one node asks; or a place with many, which may ask so many `times` as much."""

    def __init__(self, times: int = 1) -> None:
        self.times, self.running, self.left, self.at = times, 0, times * _BURST, time.monotonic()

    def begin(self) -> None:
        """A Refused where this request is one too many."""
        now = time.monotonic()
        self.left, self.at = min(self.times * _BURST, self.left + (now - self.at) * self.times * _RATE), now
        if self.running >= self.times * _AT_ONCE or self.left < 1:
            raise Refused(429, "too many requests")
        self.running, self.left = self.running + 1, self.left - 1

    def end(self) -> None:
        self.running -= 1


async def read_body(scope: Scope, receive: Receive, most: int) -> bytes:
    """All of a request's body, which is neither too large nor too slow."""
    length = dict(scope["headers"]).get(b"content-length", b"0")
    if not length.isdigit() or int(length) > most:
        await _drained(receive)
        raise Refused(413, f"a message may have {most} bytes")
    parts, size, more = [], 0, True
    try:
        async with asyncio.timeout(_BODY):
            while more:
                part = await receive()
                if part["type"] == "http.disconnect":
                    raise Refused(400, "the message is cut off")
                parts.append(part.get("body", b""))
                size, more = size + len(parts[-1]), part.get("more_body", False)
                if size > most:
                    await _drained(receive)
                    raise Refused(413, f"a message may have {most} bytes")
    except TimeoutError:
        raise Refused(408, "the message is too slow") from None
    return b"".join(parts)


async def gone(order: Coroutine[Any, Any, None], receive: Receive) -> bool:
    """Wait for an order, as long as the node does; whether it has gone away meanwhile."""
    waiting = asyncio.ensure_future(order)
    left = asyncio.ensure_future(receive())  # the next that comes after the body is that the connection is closed
    await asyncio.wait({waiting, left}, timeout=HOLD, return_when=asyncio.FIRST_COMPLETED)
    lost = left.done()
    waiting.cancel()
    left.cancel()
    return lost


async def _drained(receive: Receive) -> None:
    """Take in what a node sends too much, for a moment: one that is hung up on while it sends does not hear why."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN):
            while (await receive()).get("more_body", False):
                pass


async def refuse(refused: Refused, scope: Scope, receive: Receive, send: Send) -> None:
    """Say why, and hang up: what is left of the request is not read."""
    response = JSONResponse({"detail": refused.why}, refused.status, {"connection": "close"})
    await response(scope, receive, send)


def replayed(body: bytes, receive: Receive) -> Receive:
    """Gives the body that was read already, and then what comes."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_() -> Message:
        return first.pop() if first else await receive()

    return next_


class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """A connection that is closed where it says nothing, or where there are too many."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > _CONNECTIONS:
            transport.abort()
            return
        self.loop.call_later(_SILENCE, self.close_if_silent)

    def close_if_silent(self) -> None:
        if self.cycle is None:  # no request was begun
            self.transport.abort()
