"""`federec federation certificates`, `admit` and `remove`."""

import json

import pytest

pytest.importorskip("flwr", reason="pip install federec[flower]")

from cryptography.hazmat.primitives import hashes

from federec.network.certificates import Identity


def fingerprint(path):
    from cryptography import x509

    return x509.load_pem_x509_certificate(path.read_bytes()).fingerprint(hashes.SHA256())


def test_the_servers_certificate_is_renewed_under_a_root_that_is_kept_elsewhere(federec, refused, tmp_path):
    tls, offline, later = tmp_path / "tls", tmp_path / "offline", tmp_path / "later"
    said = federec("federation", "certificates", tls, "--host", "localhost", "--host", "10.0.0.1")
    assert f"keep {tls / 'ca.key'} offline" in said.out
    first = fingerprint(tls / "ca.crt"), fingerprint(tls / "server.pem")
    assert federec("federation", "certificates", tls, "--host", "localhost").code == 0
    assert fingerprint(tls / "ca.crt") == first[0]
    assert fingerprint(tls / "server.pem") != first[1]
    offline.mkdir()
    for name in ("ca.crt", "ca.key"):
        (tls / name).rename(offline / name)
    assert federec("federation", "certificates", later, "--host", "localhost", "--root", offline).code == 0
    assert {path.name for path in later.iterdir()} == {"ca.crt", "server.pem", "server.key"}
    assert fingerprint(later / "ca.crt") == first[0]
    assert all(path.stat().st_mode & 0o077 == 0 for path in later.iterdir())
    (offline / "ca.key").unlink()
    assert "ca.key: cannot be read" in refused(
        "federation", "certificates", later, "--host", "localhost", "--root", offline
    )


def test_a_device_is_admitted_and_removed(federec, refused, tmp_path, catalogue):
    root, run, request, out = tmp_path / "root", tmp_path / "run", tmp_path / "phone.csr", tmp_path / "phone.crt"
    federec("federation", "certificates", root, "--host", "localhost")
    federec("federation", "prepare", run, "--catalogue", catalogue)
    request.write_bytes(Identity.new().request())
    given = ("--root", root, "--users", 3, "--out", out, "--run", run)
    said = federec("federation", "admit", request, *given)
    assert said.out == f"device 'phone' with 3 users is admitted for 365 days: {out}\n"
    assert (run / "nodes" / "phone.crt").read_bytes() == out.read_bytes()
    assert "phone.crt: exists" in refused("federation", "admit", request, *given)
    other = ("--root", root, "--out", tmp_path / "other.crt")
    assert "is not a certificate request" in refused("federation", "admit", catalogue, *other)
    assert "name it NAME.crt" in refused("federation", "admit", request, "--root", root, "--out", tmp_path / "x")
    assert "did you mean 'phone'" in refused("federation", "remove", run, "phne")
    lines = [json.loads(line) for line in (run / "audit.jsonl").read_text().splitlines()]
    assert [(line["event"], line["name"], line["users"]) for line in lines] == [("certificate", "phone", 3)]
    assert federec("federation", "remove", run, lines[0]["device"]).out == "device 'phone' is removed\n"
    assert not (run / "nodes" / "phone.crt").exists()
    assert [json.loads(line)["event"] for line in (run / "audit.jsonl").read_text().splitlines()][1:] == ["withdrawn"]
