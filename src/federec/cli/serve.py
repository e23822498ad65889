"""`federec serve`: recommendations of a run over HTTP."""

from __future__ import annotations

from pathlib import Path

import typer
from typer import Argument, Option


def serve(
    run: Path = Argument(..., readable=False, help="A run folder."),
    host: str = Option("127.0.0.1", help="The address to listen on."),
    port: int = Option(8080, min=0, max=65535, help="The port; 0 for any that is free."),
    workers: int = Option(1, min=1, max=64, help="Processes that answer; they share one copy of the model."),
) -> None:
    """Serve the recommendations of a run.

    POST /recommend answers for a user, for many users, or for an anonymous list of items; GET /health and GET /metrics
    tell how it is, /openapi.json describes all. Of a federation's run, whose users' parameters are on their devices,
    only anonymous lists are served. Whoever reaches the port may ask for any user: it listens on this machine only,
    unless --host says otherwise.
    """
    from federec.errors import needs

    needs("fastapi", "serve")
    needs("uvicorn", "serve")
    from federec.serving.server import serve as served

    if host not in ("127.0.0.1", "::1", "localhost"):
        line = f"{host}: whoever reaches this port can ask for any user; put TLS and a login before it"
        typer.echo(f"warning: {line}", err=True)
    served(run, host, port, workers, typer.echo)
