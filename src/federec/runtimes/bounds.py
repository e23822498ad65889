"""What strangers and devices can ask of a port at most: sizes, rates, slow bodies, connections."""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import time
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from types import MappingProxyType
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
_SILENCE = 10.0  # seconds in which a connection must ask for something, and each later request must have its head
_HEAD = 1 << 16  # bytes of a request's head, and of whatever else is neither head nor body, such as trailers
_PARSER_KEEPS_ALL = hasattr(AutoHTTPProtocol, "on_header")  # httptools keeps a head that never ends, h11 has a bound
_SOFT = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
_CONNECTIONS = 4096 if _SOFT == resource.RLIM_INFINITY else min(4096, _SOFT // 2)  # of this process, at once
_NEIGHBOURS = max(1, _CONNECTIONS // 8)  # of one address, so that one cannot keep all others away
_AT_ONCE = 4  # requests of one node
_RATE, _BURST = 20.0, 60.0  # requests of one node in a second, in the long run and in a burst


class Refused(Exception):
    """A request that is not answered: its status, and why."""

    def __init__(self, status: int, why: str) -> None:
        self.status, self.why = status, why


def neighbourhood(address: str) -> str:
    """Whom an address is counted with: an IPv4 address stands for itself, an IPv6 address for its /64 network, which is
    what one household or machine is given."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(ipaddress.IPv6Network((found, 64), strict=False))


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


async def read_body(scope: Scope, receive: Receive, most: int, seconds: float | None = None) -> bytes:
    """All of a request's body, which has at most `most` bytes and arrives within `seconds`, or within a minute."""
    length = dict(scope["headers"]).get(b"content-length", b"0")
    if not length.isdigit() or int(length) > most:
        await drained(receive)
        raise Refused(413, f"a message may have {most} bytes")
    parts, size, more = [], 0, True
    try:
        async with asyncio.timeout(_BODY if seconds is None else seconds):
            while more:
                part = await receive()
                if part["type"] == "http.disconnect":
                    raise Refused(400, "the message is cut off")
                parts.append(part.get("body", b""))
                size, more = size + len(parts[-1]), part.get("more_body", False)
                if size > most:
                    await drained(receive)
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


async def drained(receive: Receive) -> None:
    """Take in what a node sends too much, for a moment: one that is hung up on while it sends does not hear why."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN):
            while (await receive()).get("more_body", False):
                pass


async def refuse(
    refused: Refused, scope: Scope, receive: Receive, send: Send, headers: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Say why, with these headers, and hang up: what is left of the request is not read."""
    response = JSONResponse({"detail": refused.why}, refused.status, {**headers, "connection": "close"})
    await response(scope, receive, send)


def replayed(body: bytes, receive: Receive) -> Receive:
    """Gives the body that was read already, and then what comes."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_() -> Message:
        return first.pop() if first else await receive()

    return next_


class Connection(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """A connection that is closed where it does not say what it asks for, where it says so without end, or where there
    are too many."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.unread, self.silence = 0, None
        address = (self.client or ("?",))[0]
        self.place = None if _is_loopback(address) else neighbourhood(address)
        _OPEN.add(self)
        if len(_OPEN) > _CONNECTIONS or self._neighbours() > _NEIGHBOURS:
            transport.abort()
            return
        self._listen()

    def connection_lost(self, exc: Exception | None) -> None:
        _OPEN.discard(self)
        self._listen_no_more()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.unread += len(data)
        super().data_received(data)
        if _PARSER_KEEPS_ALL and self.unread > _HEAD:
            self.transport.abort()
        elif self.cycle is None or self.cycle.response_complete:
            self._listen()
        else:
            self._listen_no_more()

    # What the parser has made of the data

    def on_headers_complete(self) -> None:
        self.unread = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self.unread = 0  # `read_body` bounds bodies
        super().on_body(body)

    def _neighbours(self) -> int:
        """Connections of the same place, with this one; 0 on loopback, where a proxy may bring everybody."""
        others = tuple(_OPEN)  # a copy: ports in other threads change it
        return 0 if self.place is None else sum(other.place == self.place for other in others)

    def _listen(self) -> None:
        """Close the connection unless a request begins soon. More data does not put this off."""
        if self.silence is None:
            self.silence = self.loop.call_later(_SILENCE, self.transport.abort)

    def _listen_no_more(self) -> None:
        if self.silence is not None:
            self.silence.cancel()
            self.silence = None


_OPEN: set[Connection] = set()
"""All connections of this process, which may have several ports."""


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
