"""Who is a member: certificates in JavaScript against those that Python makes, and against forged ones."""

import datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from tests.web.console import Refused
from tests.web.node import needs_node

from federec.network import certificates
from federec.network.certificates import Authority, Identity, member

pytestmark = needs_node
MEMBER = """const root = await certificates.Root.of(certificates.fromPem(pem));
const found = await root.member(certificate);
return {public: found.public, users: found.users, ends: found.ends};"""


def read(console, certificate, authority):
    return console(MEMBER, certificate=certificate, pem=authority.pem.decode())


@pytest.mark.parametrize("days", [20, 365, 365 * 60])  # the last one ends after 2049, which DER writes otherwise
def test_a_member_is_who_python_says(console, authority, days):
    new = Identity.new()
    der = new.admitted(authority.admit(new.request(), 7, days), authority.pem).certificate
    expected, got = member(der, authority.pem), read(console, der, authority)
    assert (got["public"], got["users"]) == (expected.public, 7)
    assert got["ends"] == expected.ends.timestamp() * 1000


def test_only_the_root_admits(console, authority, tmp_path):
    other = Authority.create(tmp_path / "other")  # of the same name
    identity = Identity.new()
    der = x509.load_pem_x509_certificate(other.admit(identity.request())).public_bytes(Encoding.DER)
    with pytest.raises(Refused, match="signed by another"):
        read(console, der, authority)


def made(authority, usage=ExtendedKeyUsageOID.CLIENT_AUTH, issuer=None, curve=None, users=b"\0\0\0\1", digest=None):
    """A certificate that the root's key signs, otherwise than the root does."""
    key = ec.generate_private_key(curve or ec.SECP256R1())
    issuer = issuer or authority.certificate.subject
    builder = certificates._certificate(certificates._name("x"), issuer, key.public_key(), 9)
    if usage is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    if users is not None:
        builder = builder.add_extension(x509.UnrecognizedExtension(certificates._USERS, users), critical=False)
    return builder.sign(authority.key, digest or hashes.SHA256()).public_bytes(Encoding.DER)


def test_what_the_root_would_not_write_is_refused(console, authority):
    assert read(console, made(authority), authority)["users"] == 1
    elsewhere = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "someone else")])
    for wrong in (
        made(authority, usage=ExtendedKeyUsageOID.SERVER_AUTH),
        made(authority, usage=None),
        made(authority, users=None),
        made(authority, issuer=elsewhere),
        made(authority, curve=ec.SECP384R1()),
        authority.certificate.public_bytes(Encoding.DER),
    ):
        with pytest.raises(Refused):
            read(console, wrong, authority)


def test_no_bit_of_a_certificate_can_be_changed(console, authority, admit):
    der = admit(0).certificate
    forged = [bytes([*der[:at], der[at] ^ 1 << at % 8, *der[at + 1 :]]) for at in range(len(der))]
    body = """const root = await certificates.Root.of(certificates.fromPem(pem));
    const accepted = [];
    for (const [at, each] of forged.entries()) {
      try { await root.member(each); accepted.push(at); }
      catch (error) { if (!(error instanceof bytes.Refusal)) throw error; }
    }
    return accepted;"""
    assert console(body, forged=forged, pem=authority.pem.decode()) == []
    for wrong in (b"", der[:-1], der + b"\0", b"\x30\x80" + der[2:], bytes(5000)):
        with pytest.raises(Refused):
            read(console, wrong, authority)


def test_signatures_are_those_of_python(console, admit, authority):
    identity = admit(1)
    body = """const curve = {name: "ECDSA", namedCurve: "P-256"};
    const pair = await crypto.subtle.generateKey(curve, true, ["sign", "verify"]);
    const point = new Uint8Array(await crypto.subtle.exportKey("raw", pair.publicKey));
    const signed = [];
    for (let at = 0; at < 300; at++) signed.push(await certificates.sign(pair.privateKey, Uint8Array.of(at)));
    return {point, signed};"""
    made_there = console(body)
    key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), made_there["point"])
    for at, signature in enumerate(made_there["signed"]):  # some of them begin with zeros
        key.verify(signature, bytes([at % 256]), ec.ECDSA(hashes.SHA256()))
    body = """const root = await certificates.Root.of(certificates.fromPem(pem));
    const found = await root.member(certificate);
    return Promise.all(signed.map((each) => found.verify(Uint8Array.of(1, 2), each)));"""
    signed = [identity.sign(b"\1\2") for _ in range(300)]
    wrong = [identity.sign(b"\1\3"), b"", bytes(64), signed[0][:-1], signed[0] + b"\0"]
    told = console(body, certificate=identity.certificate, pem=authority.pem.decode(), signed=signed + wrong)
    assert told == [True] * 300 + [False] * len(wrong)


def test_a_certificate_that_has_ended_is_for_the_caller_to_refuse(console, authority):
    new = Identity.new()
    der = new.admitted(authority.admit(new.request(), days=0), authority.pem).certificate
    assert read(console, der, authority)["ends"] <= datetime.datetime.now(datetime.UTC).timestamp() * 1000
