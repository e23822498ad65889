"""Certificates, commands that are forks, and figures for Prometheus."""

import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

pytest.importorskip("flwr", reason="pip install federec[flower]")

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from federec.errors import UserError
from federec.network.events import Events
from federec.network.settings import FederationSettings
from federec.runtimes.flower.certificates import certificates, node_key
from federec.runtimes.flower.warm import stand_ins


def test_a_certificate_is_for_its_hosts_and_of_its_root(tmp_path):
    certificates(tmp_path, ["federec.example.org", "127.0.0.1"])
    root, server = (x509.load_pem_x509_certificate((tmp_path / name).read_bytes()) for name in ("ca.crt", "server.pem"))
    server.verify_directly_issued_by(root)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["federec.example.org"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    assert (tmp_path / "server.key").stat().st_mode & 0o077 == 0
    with pytest.raises(UserError, match="exists"):
        certificates(tmp_path, ["localhost"])


def test_a_node_key_is_a_pair(tmp_path):
    node_key(tmp_path / "node")
    private = load_ssh_private_key((tmp_path / "node").read_bytes(), None)
    public = load_ssh_public_key((tmp_path / "node.pub").read_bytes())
    assert private.public_key() == public
    assert (tmp_path / "node").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"deadlin": 3}, "no setting 'deadlin' - did you mean 'deadline'"),
        ({"deadline": -1}, "deadline=-1: input should be greater than 0"),
        ({"rows": "few"}, "rows='few'"),
        ({"sizes": [3]}, "no setting 'sizes'"),
    ],
)
def test_settings_are_refused_in_one_line(values, text):
    with pytest.raises(UserError, match=text):
        FederationSettings.checked(**values)


@pytest.fixture
def warm(tmp_path):
    """A process that becomes commands."""
    address = tmp_path / "warm"
    process = subprocess.Popen([sys.executable, "-m", "federec.runtimes.flower.warm", str(address), "flwr.cli.app"])
    stand_ins(tmp_path / "bin", address)
    limit = time.monotonic() + 60
    while not address.exists() and time.monotonic() < limit:
        time.sleep(0.05)
    yield tmp_path / "bin"
    process.kill()
    process.wait()


def test_a_stand_in_is_the_command(warm):
    said = subprocess.run([warm / "flwr", "--version"], capture_output=True, text=True, timeout=30)
    assert said.returncode == 0
    assert said.stdout.startswith("Flower version: 1.")
    said = subprocess.run([warm / "flwr", "nothing"], capture_output=True, text=True, timeout=30)
    assert said.returncode == 2
    assert "No such command" in said.stderr


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
