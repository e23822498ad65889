"""The processes of `federec serve`. The model is loaded once; workers are forked from it, so they share its memory and
one socket."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import uvicorn

from federec.errors import UserError
from federec.runtimes.bounds import Connection
from federec.serving.app import make_app
from federec.serving.metrics import Metrics
from federec.serving.model import Served


def serve(run: Path, host: str, port: int, workers: int = 1, say: Callable[[str], object] = lambda line: None) -> None:
    """Serve the model of a run until the process is told to end. `say` is told what is served, and where."""
    torch.set_num_threads(1)  # requests are small, and a process that has started threads cannot be forked
    model, metrics = Served.load(run), Metrics(workers)
    with _listening(host, port) as listener:
        users = f"{len(model.rows):,} users" if model.rows else "no users, only anonymous lists of items"
        where = f"http://{_address(host)}:{listener.getsockname()[1]}"
        served = f"{model.name} with {len(model.catalogue):,} items for {users}"
        say(f"serving {served} at {where} (see {where}/openapi.json)")
        if workers == 1:
            _work(model, metrics, listener)
            return
        sys.exit(_supervise(model, metrics, listener, workers))


def _supervise(model: Served, metrics: Metrics, listener: socket.socket, workers: int) -> int:
    """Fork the workers and wait for them; when one ends, so do all."""
    children: set[int] = set()
    for worker in range(workers):
        child = os.fork()
        if child == 0:
            metrics.worker = worker
            _work(model, metrics, listener)
            os._exit(0)
        children.add(child)

    def end(number: int, _: object) -> None:
        for child in children:
            os.kill(child, number)

    asked = False

    def told(number: int, frame: object) -> None:
        nonlocal asked
        asked = True
        end(number, frame)

    signal.signal(signal.SIGTERM, told)
    signal.signal(signal.SIGINT, told)
    while children:
        child, _ = os.wait()
        children.discard(child)
        if not asked:  # it crashed: a service manager starts all anew
            end(signal.SIGTERM, None)
    return 0 if asked else 1


def _work(model: Served, metrics: Metrics, listener: socket.socket) -> None:
    """Answer requests until the process is told to end."""
    config = uvicorn.Config(
        make_app(model, metrics),
        http=Connection,
        ws="none",
        lifespan="off",
        log_level="error",
        access_log=False,
        proxy_headers=False,  # nothing asks where a request comes from
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=5,
    )
    uvicorn.Server(config).run(sockets=[listener])


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=512)
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"{host}:{port}: cannot listen there ({why}); choose another port") from None


def _address(host: str) -> str:
    return f"[{host}]" if ":" in host else host
