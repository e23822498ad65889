"""The gateway: what browsers can reach of a federation. A tab is a node like any other, on the same link and with the
same admission; only the way there is another one: plain HTTP calls to the origin that the page came from.

    GET  gateway/description    what is trained, how it is protected, where devices start: the same for everybody
    POST gateway/challenge      something to sign
    POST gateway/join           a key, a challenge and its signature -> a token
    POST gateway/orders         the next order, for which a tab is kept waiting, with its ticket; or nothing (204)
    POST gateway/reply          the reply to a ticket
    POST gateway/leave          do not wait for this tab any more

All other GET requests are for the page's own files. Answers carry no CORS headers: other origins cannot read them.
"""

from __future__ import annotations

import json
from collections import Counter, OrderedDict
from collections.abc import Mapping
from pathlib import PurePosixPath

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from federec.runtimes import bounds
from federec.runtimes.bounds import Refused, Traffic
from federec.runtimes.flower.admission import Admission
from federec.runtimes.flower.link import Link, node_number
from federec.web.gateway.tokens import LABEL, Tokens, decoded
from federec.web.server import HEADERS, TYPES

BASE = "gateway/"
TICKET = "federec-ticket"
_JSON = "application/json"
_ALIVE = 30.0  # seconds between signs of life: a tab that learns nothing asks for orders at least that often
_ADDRESSES = 4096  # that are told apart
_MANY = 10  # times what one node may ask, for an address: it may be a proxy's
_FRESH = {"Cache-Control": "no-store"}


class Gateway:
    """The application that browsers reach."""

    def __init__(
        self, link: Link, admission: Admission, description: bytes, files: Mapping[str, bytes], most: int
    ) -> None:
        """`description` is JSON for everybody, `files` are the page's, `most` are the bytes of the largest reply."""
        self.link, self.admission, self.description, self.files, self.most = link, admission, description, files, most
        self.tokens = Tokens()
        self.nodes: dict[int, Traffic] = {}
        self.addresses: OrderedDict[str, Traffic] = OrderedDict()
        self.begun: Counter[int] = Counter()
        """How often a node has joined or asked for orders."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        address = (scope.get("client") or ("?",))[0]
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            node = self._node(scope, headers)
            traffic = self._stranger(address) if node is None else self.nodes.setdefault(node, Traffic())
            traffic.begin()
        except Refused as refused:
            if refused.status == 401:
                self.admission.refuse(refused.why, address)
            await bounds.refuse(refused, scope, receive, send, HEADERS | _FRESH)
            return
        try:
            response = await self._answer(scope, headers, receive, node)
            if response is not None:
                response.headers.update(HEADERS | (_FRESH if scope["path"].startswith(f"/{BASE}") else {}))
                await response(scope, receive, send)
        except Refused as refused:
            if refused.status == 401:
                self.admission.refuse(refused.why, address)
            await bounds.refuse(refused, scope, receive, send, HEADERS | _FRESH)
        finally:
            traffic.end()

    def _node(self, scope: Scope, headers: Mapping[str, str]) -> int | None:
        """The node that a request comes from; None for calls that strangers may make."""
        path, method = scope["path"].removeprefix("/"), scope["method"]
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and path.startswith(BASE):
            raise Refused(403, "this gateway only answers to its own page")
        name = path.removeprefix(BASE)
        if path.startswith(BASE):
            reads = name == "description"
            if name not in ("description", "challenge", "join", "orders", "reply", "leave"):
                raise Refused(404, "Not Found")
            if method != ("GET" if reads else "POST"):
                raise Refused(405, "Method Not Allowed")
        elif method not in ("GET", "HEAD"):
            raise Refused(405, "Method Not Allowed")
        if not path.startswith(BASE) or name in ("description", "challenge", "join"):
            return None
        kind, _, token = headers.get("authorization", "").partition(" ")
        if kind != "Bearer":
            raise Refused(401, "there is no token; join first")
        node = self.tokens.node(token)
        known = self.link.nodes.get(node)
        why = self.admission.why_not(known.public_key if known is not None else b"")
        if why:
            raise Refused(401, why)
        return node

    def _stranger(self, address: str) -> Traffic:
        """What an address and its neighbours ask. Those that were not heard of for longest are forgotten."""
        place = bounds.neighbourhood(address)
        traffic = self.addresses.setdefault(place, Traffic(_MANY))
        self.addresses.move_to_end(place)
        while len(self.addresses) > _ADDRESSES:
            self.addresses.popitem(last=False)
        return traffic

    async def _answer(
        self, scope: Scope, headers: Mapping[str, str], receive: Receive, node: int | None
    ) -> Response | None:
        """The response to a request that may be made; None where nobody waits for it any more."""
        path = scope["path"].removeprefix("/")
        if not path.startswith(BASE):
            return self._file(path, scope["method"] == "GET")
        name = path.removeprefix(BASE)
        ticket = headers.get(TICKET, "")
        if name == "reply" and not (node is not None and self.link.awaits(node, ticket)):
            await bounds.drained(receive)  # nothing of it is kept
            raise Refused(403, "nobody waits for this message")
        body = await bounds.read_body(scope, receive, self.most if name == "reply" else bounds.SMALL)
        if name == "description":
            return Response(self.description, media_type=_JSON)
        if name == "challenge":
            return JSONResponse({"challenge": self.tokens.challenge()})
        if name == "join":
            return self._join(body)
        assert node is not None
        if name == "leave":
            self.link.deactivate_node(node)
            return Response(status_code=204)
        self.link.heard(node, _ALIVE)
        if name == "reply":
            if not self.link.take(node, ticket, body):
                raise Refused(403, "nobody waits for this message")
            return Response(status_code=204)
        self.begun[node] += 1
        begun = self.begun[node]
        if await bounds.gone(self.link.order_for(node), receive):
            if self.begun[node] == begun:  # the tab was closed, and has not come back since
                self.link.deactivate_node(node)
            return None
        order = self.link.fetch(node)
        if order is None:
            return Response(status_code=204)
        self.link.heard(node, _ALIVE)
        ticket, content = order
        return Response(content, headers={TICKET: ticket}, media_type="application/octet-stream")

    def _join(self, body: bytes) -> Response:
        """A token for the holder of an admitted key."""
        try:
            asked = json.loads(body)
            key, challenge, signature = (decoded(asked[name]) for name in ("key", "challenge", "signature"))
            point = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), key)
        except (ValueError, TypeError, KeyError, RecursionError):
            raise Refused(400, "not a request to join") from None
        public = point.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        why = self.admission.why_not(public)
        if why:
            raise Refused(401, why)
        if not self.admission.admitted[public].member.verify(LABEL + challenge, signature):
            raise Refused(401, "the signature does not fit")
        self.tokens.use(challenge)
        node = node_number(public)
        self.begun[node] += 1
        self.link.activate_node(node, _ALIVE)
        return JSONResponse({"token": self.tokens.token(node)})

    def _file(self, path: str, whole: bool) -> Response:
        name = path or "index.html"
        content = self.files.get(name)
        if content is None:
            raise Refused(404, "Not Found")
        size = {"content-length": str(len(content))}
        return Response(content if whole else b"", headers=size, media_type=TYPES[PurePosixPath(name).suffix])
