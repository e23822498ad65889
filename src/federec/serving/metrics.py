"""What a server counts. All of its processes write into one piece of memory, each into a row of its own, so that any of
them can tell the sums. Nothing here says who asked for what."""

from __future__ import annotations

import mmap
import time
from bisect import bisect_left

import numpy as np

from federec.network.events import exposition, labels_text

KINDS = ("user", "users", "items", "refused")
STATUSES = (200, 400, 404, 405, 408, 413, 422, 500)
BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0)
"""Seconds."""
FIGURES = {
    "federec_serve_requests_total": ("counter", "Requests for recommendations, by what was asked for and by status."),
    "federec_serve_request_seconds": ("histogram", "Seconds from a request's last byte to its answer."),
    "federec_serve_items": ("gauge", "Items of the model."),
    "federec_serve_users": ("gauge", "Users whose lists are served."),
    "federec_serve_up_seconds": ("gauge", "Seconds since the server started."),
}


class Metrics:
    """Counts of one server. `worker` is the row of this process."""

    def __init__(self, workers: int = 1) -> None:
        counts = len(KINDS) * len(STATUSES)
        self.width = counts + len(BUCKETS) + 2  # each bucket, those above the last one, and the sum of seconds
        memory = mmap.mmap(-1, 8 * workers * self.width)  # shared with processes that are forked later
        self.rows = np.frombuffer(memory, np.float64).reshape(workers, self.width)
        self.counts, self.worker, self.began = counts, 0, time.time()

    def add(self, kind: str, status: int, seconds: float) -> None:
        """Count a request."""
        row = self.rows[self.worker]
        row[KINDS.index(kind) * len(STATUSES) + STATUSES.index(status)] += 1
        row[self.counts + bisect_left(BUCKETS, seconds)] += 1
        row[-1] += seconds

    def text(self, items: int, users: int) -> str:
        """All figures in Prometheus' text format."""
        total = self.rows.sum(0)
        figures: dict[tuple[str, str], float] = {}
        for at, value in enumerate(total[: self.counts]):
            if value:
                kind, status = KINDS[at // len(STATUSES)], STATUSES[at % len(STATUSES)]
                labels = labels_text({"kind": kind, "status": str(status)})
                figures["federec_serve_requests_total", labels] = value
        upto = total[self.counts : -1].cumsum()
        for bound, value in zip((*map(str, BUCKETS), "+Inf"), upto, strict=True):
            figures["federec_serve_request_seconds_bucket", labels_text({"le": bound})] = value
        figures["federec_serve_request_seconds_sum", ""] = total[-1]
        figures["federec_serve_request_seconds_count", ""] = upto[-1]
        figures["federec_serve_items", ""] = items
        figures["federec_serve_users", ""] = users
        figures["federec_serve_up_seconds", ""] = time.time() - self.began
        return exposition(FIGURES, figures)
