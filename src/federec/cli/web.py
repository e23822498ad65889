"""`federec web`: a run as a page that learns in the browser."""

from __future__ import annotations

from pathlib import Path

import typer
from typer import Argument, Option


def web(
    run: Path = Argument(..., readable=False, help="A run folder."),
    host: str = Option("127.0.0.1", help="The address to listen on; by default only this machine can reach it."),
    port: int = Option(8000, help="The port to listen on; 0 takes a free one."),
) -> None:
    """Serve a run as a page that learns in the browser.

    A person picks what she likes and gets recommendations at once. Her device learns in the page: nothing that she
    picks is sent to this server, which only hands out the page's files. Ctrl-C stops it. `federec export RUN --format
    web --out DIR` writes the same files for any file host.
    """
    from federec.web.folder import page_files
    from federec.web.server import page_server

    files = page_files(run)
    with page_server(files, host, port) as server:
        size = sum(map(len, files.values())) / 1e6
        typer.echo(f"page of {run}: http://{host}:{server.server_port}/ ({len(files)} files, {size:.1f} MB)")
        typer.echo("press Ctrl-C to stop")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("stopped")
