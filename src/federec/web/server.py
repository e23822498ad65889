"""Serving a page on this machine: its own files and nothing else, with headers that keep it to itself."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

from federec.errors import UserError

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json; charset=utf-8",
    ".webmanifest": "application/manifest+json; charset=utf-8",
    ".svg": "image/svg+xml",
    ".safetensors": "application/octet-stream",
}
"""What browsers need to be told of the page's files."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; worker-src 'self'; "
    "manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",  # the service worker keeps the files; the browser asks for a newer page first
}


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD for the files of a page."""

    protocol_version = "HTTP/1.1"
    server_version = "federec"
    sys_version = ""
    timeout = 30

    def __init__(self, files: Mapping[str, bytes], seen: Callable[[str, str], None], *args: object) -> None:
        self.files, self.seen = files, seen
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        self._answer(True)

    def do_HEAD(self) -> None:
        self._answer(False)

    def _answer(self, whole: bool) -> None:
        self.seen(self.command, self.path)
        try:
            name = unquote(urlsplit(self.path).path).removeprefix("/") or "index.html"
        except ValueError:  # such as http://[
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        content = self.files.get(name)
        if content is None:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", TYPES[PurePosixPath(name).suffix])
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if whole:
            self.wfile.write(content)

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet: which files a browser asks for is nobody's business."""


def page_server(
    files: Mapping[str, bytes], host: str, port: int, seen: Callable[[str, str], None] = lambda method, path: None
) -> ThreadingHTTPServer:
    """A server of these files, to be started with `serve_forever`. `seen` is told of every request: method and path."""
    try:
        return ThreadingHTTPServer((host, port), partial(_Handler, files, seen))
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        remedy = "another program has this port; choose another with --port" if taken else "check --host and --port"
        raise UserError(f"{host}:{port}: cannot be served ({error.strerror or error}); {remedy}") from None
    except OverflowError:
        raise UserError(f"--port {port}: give a number from 0 to 65535") from None
