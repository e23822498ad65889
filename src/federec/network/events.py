"""What a federation's server did: one JSON object a line, and the same as figures for Prometheus."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

FIGURES = {
    "federec_rounds_total": ("counter", "Rounds that were finished."),
    "federec_round": ("gauge", "The round that is being played."),
    "federec_devices": ("gauge", "Nodes that are there, and have said what they need."),
    "federec_updates_total": ("counter", "Updates that were taken in."),
    "federec_rejects_total": ("counter", "Replies that were refused, by reason."),
    "federec_missing_total": ("counter", "Replies that did not come by the deadline."),
    "federec_bytes_total": ("counter", "Bytes of messages, by direction."),
    "federec_round_seconds": ("gauge", "Seconds that the last round took."),
    "federec_metric": ("gauge", "Metrics of the last round, against 99 items, by name."),
}


def exposition(known: Mapping[str, tuple[str, str]], figures: Mapping[tuple[str, str], float]) -> str:
    """Figures in Prometheus' text format. `known` has the kind and the meaning of each name, `figures` the values by
    name and labels."""
    lines = []
    for name, (kind, text) in known.items():
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        parts = {name, f"{name}_bucket", f"{name}_sum", f"{name}_count"} if kind == "histogram" else {name}
        lines += [f"{part}{labels} {value:g}" for (part, labels), value in figures.items() if part in parts]
    return "\n".join(lines) + "\n"


class Events:
    """The log of a server process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.figures: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def say(self, event: str, **fields: Any) -> None:
        """Write a line. A reader may follow the file: lines are never changed."""
        line = {"time": round(time.time(), 3), "event": event, **fields}
        with self._lock, self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def add(self, name: str, value: float = 1, **labels: str) -> None:
        """Count."""
        with self._lock:
            self.figures[name, labels_text(labels)] += value  # type: ignore[assignment]

    def set(self, name: str, value: float, **labels: str) -> None:
        """Tell the newest value."""
        with self._lock:
            self.figures[name, labels_text(labels)] = value  # type: ignore[assignment]

    def text(self) -> str:
        """All figures in Prometheus' text format."""
        with self._lock:
            figures = dict(self.figures)
        return exposition(FIGURES, figures)

    def serve(self, host: str, port: int) -> int:
        """Answer GET /metrics, from a thread that ends with the process; the port, which may have been 0 for any."""
        text = self.text

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = self.path == "/metrics"
                body = text().encode() if found else b"see /metrics\n"
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """No line for every request."""

        server = ThreadingHTTPServer((host, port), Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return int(server.server_address[1])


def labels_text(labels: dict[str, str]) -> str:
    """Labels as the text format has them."""
    inside = ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items())
    return f"{{{inside}}}" if inside else ""
