"""What the world can reach: five calls of Flower's Fleet API, for the holders of admitted keys.

A request is refused before its body is read, unless its path is one of the five, its sender was admitted and has signed
it, and it is neither too large nor one of too many. Nothing else listens: no Control API, no Runtime API, no page.
"""

from __future__ import annotations

import datetime
from base64 import b64decode

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
from starlette.types import ASGIApp, Receive, Scope, Send

from federec.runtimes import bounds
from federec.runtimes.bounds import Refused, Traffic
from federec.runtimes.flower.admission import Admission
from federec.runtimes.flower.link import Link

_FLEET = "/v1/fleet/"
_PULL, _PUSH = f"{_FLEET}pull-messages", f"{_FLEET}push-messages"
_PATHS = {_PULL, _PUSH, *(f"{_FLEET}{name}" for name in ("activate-node", "deactivate-node", "send-node-heartbeat"))}


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
        self.nodes: dict[bytes, Traffic] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            public = self._sender(scope)
            traffic = self.nodes.setdefault(public, Traffic())
            traffic.begin()
        except Refused as refused:
            if refused.status == 401:
                self.admission.refuse(refused.why, (scope.get("client") or ("?",))[0])
            await bounds.refuse(refused, scope, receive, send)
            return
        try:
            body = await bounds.read_body(scope, receive, self.most if scope["path"] == _PUSH else bounds.SMALL)
            if scope["path"] == _PULL:
                node = self.link.node_public_key_to_node_id.get(public, 0)
                if await bounds.gone(self.link.order_for(node), receive):
                    return
            await self.app(scope, bounds.replayed(body, receive), send)
        except Refused as refused:
            await bounds.refuse(refused, scope, receive, send)
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
