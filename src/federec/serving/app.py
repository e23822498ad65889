"""The HTTP interface of `federec serve`. A request is bounded before it is read, and what is wrong with it is one line;
no request is logged.

FastAPI describes the interface and answers all requests but those for recommendations: its layers and Starlette's would
take more time than all else that such a request needs.
"""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import BaseModel, ConfigDict, Field, StrictInt, StrictStr, ValidationError, model_validator
from starlette.types import Receive, Scope, Send

import federec
from federec.errors import first_fault
from federec.runtimes.bounds import Refused, read_body
from federec.serving.metrics import Metrics
from federec.serving.model import LONGEST, MOST, Served, Unknown
from federec.serving.written import quoted

PATH = "/recommend"
BODY = 1 << 16
"""Bytes of a request, at most."""
SECONDS = 5.0
"""In which a request's body must arrive."""
_USERS = 100

Label = Annotated[StrictInt | StrictStr, Field(description='An id, as in the data: `42` and `"42"` are the same.')]


class Asked(BaseModel):
    """One of `user`, `users` and `items`."""

    model_config = ConfigDict(extra="forbid")

    user: Label | None = Field(None, description="A user of the run.")
    users: list[Label] | None = Field(None, min_length=1, max_length=_USERS, description="Several users of the run.")
    items: list[Label] | None = Field(
        None,
        max_length=LONGEST,
        description="The items of somebody who is not named, oldest first; an empty list for somebody who has none. "
        "They are neither kept nor logged.",
    )
    k: int = Field(10, ge=1, le=MOST, description="How many items.")

    @model_validator(mode="after")
    def _one(self) -> Asked:
        if sum(value is not None for value in (self.user, self.users, self.items)) != 1:
            raise ValueError("give one of user, users and items")
        return self

    @property
    def kind(self) -> str:
        return "user" if self.user is not None else "users" if self.users is not None else "items"


class Item(BaseModel):
    """A recommended item."""

    item: str
    title: str
    score: float = Field(description="Higher is better; scores of different users are not on one scale.")


class Recommended(BaseModel):
    """Items, best first, without those that are known."""

    items: list[Item]


class RecommendedToMany(BaseModel):
    """Items of each user, in the order of the request."""

    users: list[dict[str, Any]]


class Problem(BaseModel):
    """What is wrong with a request, in one line."""

    detail: str


EXAMPLES = {
    "one user": {"value": {"user": 42, "k": 3}},
    "many users": {"value": {"users": [42, 7], "k": 3}},
    "an anonymous list": {"value": {"items": [50, 181, 174], "k": 3}},
}
_REFUSALS = {
    400: "The body is not JSON.",
    404: "A user or an item is not known.",
    408: f"The body took more than {SECONDS:g} seconds.",
    413: f"The body has more than {BODY} bytes.",
    422: "A field is missing, unknown or out of bounds.",
}


class Wrong(Exception):
    """A request that is refused: its status and the reason."""

    def __init__(self, status: int, why: str) -> None:
        self.status, self.why = status, why


class Api(FastAPI):
    """FastAPI, with a shorter way to `recommend`."""

    def __init__(self, model: Served, metrics: Metrics) -> None:
        self.model, self.metrics = model, metrics
        super().__init__(
            title="federec serve",
            docs_url=None,  # these pages load their code from elsewhere
            redoc_url=None,
            version=federec.__version__,
            description=f"Recommendations of a `{model.name}` model with {len(model.catalogue):,} items.",
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == PATH and scope["method"] == "POST":
            response = await self.recommend(scope, receive)
            await response(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    async def recommend(self, scope: Scope, receive: Receive) -> Response:
        """The response to a request for recommendations, which is counted."""
        began = time.perf_counter()
        try:
            asked = parsed(await _body(scope, receive))
            kind, status = asked.kind, 200
            if kind == "items" and not self.model.quick:
                found = await asyncio.to_thread(answered, self.model, asked)
            else:
                found = answered(self.model, asked)
            response = Response(found, media_type="application/json")
        except Wrong as wrong:
            kind, status = "refused", wrong.status
            hang_up = {"connection": "close"} if status in (408, 413) else None  # the rest of the body is not read
            response = JSONResponse({"detail": wrong.why}, status, hang_up)
        self.metrics.add(kind, status, time.perf_counter() - began)
        return response


def make_app(model: Served, metrics: Metrics) -> Api:
    """The application that serves a model."""
    app = Api(model, metrics)

    @app.post(
        PATH,
        summary="Recommend items",
        response_model=None,
        responses={
            200: {"description": "Items, best first.", "model": Recommended | RecommendedToMany},
            **{status: {"description": text, "model": Problem} for status, text in _REFUSALS.items()},
        },
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": Asked.model_json_schema(), "examples": EXAMPLES}},
            }
        },
    )
    async def recommend(request: Request) -> Response:
        """For one user, for many, or for an anonymous list of items: give one of `user`, `users` and `items`."""
        # The body is not a parameter: FastAPI would read it whole before anything bounds it.
        return await app.recommend(request.scope, request.receive)

    @app.get("/health", summary="Whether it answers, and from which model")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "method": model.name, "items": len(model.catalogue), "users": len(model.rows)}

    @app.get("/metrics", summary="Figures for Prometheus", response_class=PlainTextResponse)
    async def figures() -> PlainTextResponse:
        text = metrics.text(len(model.catalogue), len(model.rows))
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    return app


async def _body(scope: Scope, receive: Receive) -> bytes:
    try:
        return await read_body(scope, receive, BODY, SECONDS)
    except Refused as refused:
        raise Wrong(refused.status, refused.why.replace("a message", "a body").replace("message", "body")) from None


def parsed(body: bytes) -> Asked:
    """What a body asks for."""
    try:
        return Asked.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            raise Wrong(400, f"the body is not JSON ({first['ctx']['error']})") from None
        if first["type"] == "value_error" and not first["loc"]:
            raise Wrong(422, str(first["ctx"]["error"])) from None
        fault, why = first_fault(error)
        raise Wrong(422, f"{fault:.120}: {why}") from None


def answered(model: Served, asked: Asked) -> bytes:
    """The answer to a request, in JSON."""
    try:
        if asked.items is not None:
            if model.newcomers is None:
                raise Wrong(422, f"'{model.name}' has no scores for somebody new; ask for a user of the run")
            return b'{"items": [%b]}' % model.text_of_items([str(item) for item in asked.items], asked.k)
        if not model.rows:
            raise Wrong(404, "a federation's server knows no users; send their items as an anonymous list")
        if asked.users is None:
            return b'{"items": [%b]}' % model.text_of_user(str(asked.user), asked.k)
        labels = [str(user) for user in asked.users]
        lists = [
            b'{"user": %b, "items": [%b]}' % (quoted(user).encode(), model.text_of_user(user, asked.k))
            for user in labels
        ]
        return b'{"users": [%b]}' % b", ".join(lists)
    except Unknown as unknown:
        raise Wrong(404, str(unknown)) from None
