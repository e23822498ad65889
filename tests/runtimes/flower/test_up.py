"""Certificates, keys, and commands that are forks."""

import ssl
import subprocess
import sys
import time

import pytest

pytest.importorskip("flwr", reason="pip install federec[flower]")

from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from federec.errors import UserError
from federec.network.certificates import certificates, node_key
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
