"""Figures for Prometheus."""

import urllib.error
import urllib.request

import pytest

from federec.network.events import Events


def test_figures_in_prometheus_format(tmp_path):
    events = Events(tmp_path / "events.jsonl")
    events.add("federec_rejects_total", reason="norm")
    events.add("federec_rejects_total", reason="norm")
    events.set("federec_devices", 7)
    port = events.serve("127.0.0.1", 0)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert '\nfederec_rejects_total{reason="norm"} 2\n' in text
    assert "# TYPE federec_devices gauge\nfederec_devices 7\n" in text
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10)
