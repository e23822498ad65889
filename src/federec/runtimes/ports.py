"""Ports of a server: sockets, and applications that answer on them within bounds."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from federec.errors import UserError
from federec.runtimes.bounds import Connection


def listening(host: str, port: int) -> socket.socket:
    """A socket for an address, or a UserError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=512)
    except OSError as error:
        raise UserError(
            f"{host}:{port}: cannot listen there ({error.strerror or error}); choose another port"
        ) from None


def answering(app: ASGIApp, listener: socket.socket, tls: tuple[Path, ...]) -> uvicorn.Server:
    """Answer from a thread that ends with the process, or with the server that is returned. `tls` are the files of a
    certificate and its key; without them TLS is not used."""
    config = uvicorn.Config(
        app,
        http=Connection,
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,
        ssl_certfile=tls[0] if tls else None,
        ssl_keyfile=tls[1] if tls else None,
    )
    try:
        config.load()
    except OSError as error:
        raise UserError(f"{tls[0]}: is not a certificate that fits its key ({error.strerror or error})") from None
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    return server
