"""Invitations: a person opens a link, and the tab is a member.

A member's certificate must be signed by the federation's root, whose key is offline, so that the server cannot invent
members. An invitation is therefore made where the root's key is: a new key, its certificate for one user, and the
digest of the root's certificate. It travels in the part of a link after `#`, which browsers never send: the server
sees only the certificate, as with any other device.

    version (1 byte), SHA-256 of the root's certificate (32), private key (32), certificate (DER); in base64
"""

from __future__ import annotations

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from federec.network.certificates import Authority, Identity
from federec.web.gateway.tokens import encoded

_VERSION = b"\1"


def invitation(authority: Authority, days: int) -> tuple[str, bytes]:
    """A new member's invitation, which is secret, and its certificate (PEM), which goes to the server."""
    identity = Identity.new()
    certificate = authority.admit(identity.request(), 1, days)
    der = x509.load_pem_x509_certificate(certificate).public_bytes(Encoding.DER)
    secret = identity.key.private_numbers().private_value.to_bytes(32)
    return encoded(_VERSION + authority.certificate.fingerprint(hashes.SHA256()) + secret + der), certificate


def link(page: str, code: str) -> str:
    """What a person opens."""
    return f"{page}#join={code}"
