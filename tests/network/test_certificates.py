"""Nodes are who the root says they are."""

import stat

import pytest

pytest.importorskip("cryptography", reason="pip install federec[flower]")

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from federec.errors import UserError
from federec.network.certificates import ROOT, ROOT_KEY, SERVER, SERVER_KEY, Authority, Identity, member


@pytest.fixture
def authority(tmp_path):
    return Authority.create(tmp_path / "root")


def test_an_admitted_node_is_a_member_with_its_users(authority):
    identity = Identity.parse(Identity.new().secret())
    admitted = identity.admitted(authority.admit(identity.request(), users=7), authority.pem)
    found = member(admitted.certificate, authority.pem)
    assert (found.public, found.users) == (identity.public, 7)
    assert found.verify(b"message", identity.sign(b"message"))
    assert not found.verify(b"other", identity.sign(b"message"))
    assert not found.verify(b"message", b"signature")
    assert not found.verify(b"message", Identity.new().sign(b"message"))


def test_nobody_else_is(authority, tmp_path):
    identity, other = Identity.new(), Authority.create(tmp_path / "other")
    certificate = other.admit(identity.request())
    with pytest.raises(UserError, match="not a certificate of this federation"):
        identity.admitted(certificate, authority.pem)
    with pytest.raises(UserError, match="another device"):
        Identity.new().admitted(authority.admit(identity.request()), authority.pem)
    authority.serve(tmp_path / "root", ["localhost"])
    server = x509.load_pem_x509_certificate((tmp_path / "root" / SERVER).read_bytes())
    for der in (b"", b"x" * 5000, server.public_bytes(Encoding.DER)):
        with pytest.raises(UserError, match="certificate"):
            member(der, authority.pem)


def test_a_request_that_was_tampered_with_is_refused(authority):
    request = Identity.new().request()
    lines = request.splitlines()
    for bad in (b"", b"anything", b"\n".join([*lines[:2], lines[2][::-1], *lines[3:]])):
        with pytest.raises(UserError, match="request"):
            authority.admit(bad)


def test_the_servers_certificate_renews_under_the_same_root(authority, tmp_path):
    folder = tmp_path / "root"
    authority.serve(folder, ["localhost", "127.0.0.1"], days=10)
    first = x509.load_pem_x509_certificate((folder / SERVER).read_bytes())
    Authority.read(folder).serve(folder, ["localhost"], days=20)
    second = x509.load_pem_x509_certificate((folder / SERVER).read_bytes())
    root = x509.load_pem_x509_certificate((folder / ROOT).read_bytes())
    assert second.not_valid_after_utc > first.not_valid_after_utc
    for certificate in (first, second):
        certificate.verify_directly_issued_by(root)
    for secret in (ROOT_KEY, SERVER_KEY):
        assert stat.S_IMODE((folder / secret).stat().st_mode) == 0o600


def test_a_root_is_never_overwritten(authority, tmp_path):
    with pytest.raises(UserError, match="never overwritten"):
        Authority.create(tmp_path / "root")
