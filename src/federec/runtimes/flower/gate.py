"""What the world can reach: five calls of Flower's Fleet API, for the holders of admitted keys.

A request is refused before its body is read, unless its path is one of the five, its sender was admitted and has signed
it, and it is neither too large nor one of too many. Nothing else listens: no Control API, no Runtime API, no page.
"""

from __future__ import annotations

import asyncio
import datetime
import time
from base64 import b64decode
from contextlib import suppress
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request
from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.error import http_error_translator
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from flwr.superlink.routers.fleet.router import router
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from federec.runtimes.flower.admission import Admission
from federec.runtimes.flower.link import Link

_FLEET = "/v1/fleet/"
_PULL, _PUSH = f"{_FLEET}pull-messages", f"{_FLEET}push-messages"
_PATHS = {_PULL, _PUSH, *(f"{_FLEET}{name}" for name in ("activate-node", "deactivate-node", "send-node-heartbeat"))}

_SMALL = 1 << 14  # bytes of all requests but those with a reply
_BODY = 60.0  # seconds for a request's body to arrive
_DRAIN = 2.0  # seconds for which the rest of a body that is too large is taken in, and dropped
_SILENCE = 10.0  # seconds after which a connection that has asked for nothing is closed
_CONNECTIONS = 4096  # at once
_AT_ONCE = 4  # requests of one node
_RATE, _BURST = 20.0, 60.0  # requests of one node in a second, in the long run and in a burst
HOLD = 20.0
"""Seconds for which a node that asks for orders is kept waiting for one."""


class Refused(Exception):
    """A request that is not answered: its status, and why."""

    def __init__(self, status: int, why: str) -> None:
        self.status, self.why = status, why


def fleet_app(link: Link, admission: Admission, most: int) -> ASGIApp:
    """The application that nodes reach; `most` are the bytes of the largest reply."""
    app = FastAPI(
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        middleware=[
            Middleware(BaseHTTPMiddleware, dispatch=http_error_translator),
            Middleware(ProtobufTranslationMiddleware),
            Middleware(NodeAuthMiddleware),
        ],
    )
    app.state.linkstate_factory = _Factory(link)
    app.state.enable_supernode_auth = True
    app.include_router(router, dependencies=[Depends(_honest)])
    return Gate(app, link, admission, most)


class _Factory:
    """How Flower's routes find the LinkState."""

    def __init__(self, link: Link) -> None:
        self.link = link

    def state(self) -> Link:
        return self.link


def _honest(request: Request) -> None:
    """Refuse what Flower lets a node say, though only another may: a reply is the sender's own, to an order that it was
    sent and has not answered yet."""
    asked = request.state.protobuf_request
    if not isinstance(asked, PushMessagesRequest):
        return
    link: Link = request.app.state.linkstate_factory.state()
    if len(asked.messages_list) != 1 or len(asked.message_object_trees) != 1:
        raise HTTPException(403, "a reply is one message")
    metadata, node = asked.messages_list[0].metadata, asked.node.node_id
    if metadata.src_node_id != node or metadata.run_id != link.run:
        raise HTTPException(403, "this message is not the sender's")
    if not link.awaits(node, metadata.reply_to_message_id):
        raise HTTPException(403, "nobody waits for this message")


class Gate:
    """Lets requests of admitted nodes through, with their body read; nodes that ask for orders wait here."""

    def __init__(self, app: ASGIApp, link: Link, admission: Admission, most: int) -> None:
        self.app, self.link, self.admission, self.most = app, link, admission, most
        self.nodes: dict[bytes, _Traffic] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        self.link.loop = asyncio.get_running_loop()
        try:
            public = self._sender(scope)
            traffic = self.nodes.setdefault(public, _Traffic())
            traffic.begin()
        except Refused as refused:
            if refused.status == 401:
                self.admission.refuse(refused.why, (scope.get("client") or ("?",))[0])
            await _answer(refused, scope, receive, send)
            return
        try:
            body = await self._body(scope, receive)
            if scope["path"] == _PULL and await self._gone(public, receive):
                return
            await self.app(scope, _replayed(body, receive), send)
        except Refused as refused:
            await _answer(refused, scope, receive, send)
        finally:
            traffic.end()

    def _sender(self, scope: Scope) -> bytes:
        """The admitted key that a request is signed with."""
        if scope["path"] not in _PATHS or scope["method"] != "POST":
            raise Refused(404, "Not Found")
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            public = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER.lower()], validate=True)
            signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER.lower()], validate=True)
            timestamp = headers[TIMESTAMP_HEADER.lower()]
            age = (datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(timestamp)).total_seconds()
        except (KeyError, ValueError, TypeError):
            raise Refused(401, "it is not signed by a device") from None
        why = self.admission.why_not(public)
        if why:
            raise Refused(401, why)
        if not -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE:
            raise Refused(401, "the device's clock is wrong")
        if not verify_signature(bytes_to_public_key(public), timestamp.encode(), signature):
            raise Refused(401, "the signature does not fit")
        return public

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        """All of a request's body, which is neither too large nor too slow."""
        most = self.most if scope["path"] == _PUSH else _SMALL
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

    async def _gone(self, public: bytes, receive: Receive) -> bool:
        """Wait for an order, as long as the node does; whether it has gone away meanwhile."""
        order = asyncio.ensure_future(self.link.order_for(self.link.node_public_key_to_node_id.get(public, 0)))
        gone = asyncio.ensure_future(receive())  # the next that comes after the body is that the connection is closed
        await asyncio.wait({order, gone}, timeout=HOLD, return_when=asyncio.FIRST_COMPLETED)
        lost = gone.done()
        order.cancel()
        gone.cancel()
        return lost


class _Traffic:
    """How much one node asks."""

    def __init__(self) -> None:
        self.running, self.left, self.at = 0, _BURST, time.monotonic()

    def begin(self) -> None:
        now = time.monotonic()
        self.left, self.at = min(_BURST, self.left + (now - self.at) * _RATE), now
        if self.running >= _AT_ONCE or self.left < 1:
            raise Refused(429, "too many requests")
        self.running, self.left = self.running + 1, self.left - 1

    def end(self) -> None:
        self.running -= 1


async def _drained(receive: Receive) -> None:
    """Take in what a node sends too much, for a moment: one that is hung up on while it sends does not hear why."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN):
            while (await receive()).get("more_body", False):
                pass


async def _answer(refused: Refused, scope: Scope, receive: Receive, send: Send) -> None:
    """Say why, and hang up: what is left of the request is not read."""
    response = JSONResponse({"detail": refused.why}, refused.status, {"connection": "close"})
    await response(scope, receive, send)


def _replayed(body: bytes, receive: Receive) -> Receive:
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
