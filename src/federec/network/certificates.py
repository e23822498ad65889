"""Certificates of a federation: a root, the server's, and one for each node that was admitted.

The root signs everything and is needed for nothing else: keep `ca.key` offline. A node's certificate binds its public
key to the number of its users. Devices check it before they hide among other nodes (`secure_sum`), so that a server
without the root's key cannot invent nodes; servers check it before they admit a node.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from federec.errors import UserError
from federec.files import make_folder, read_bytes, write_atomic

ROOT, ROOT_KEY, SERVER, SERVER_KEY = "ca.crt", "ca.key", "server.pem", "server.key"
_USERS = x509.ObjectIdentifier("2.25.114922710436221098")  # of a node's certificate: how many users it hosts
_ECDSA = ec.ECDSA(hashes.SHA256())
_MOST_CERTIFICATE = 4096  # bytes


@dataclass(frozen=True)
class Identity:
    """A node's own key, which never leaves it, and the certificate that admits it, if it has one."""

    key: ec.EllipticCurvePrivateKey
    certificate: bytes = b""
    """DER; empty where the node was not admitted yet."""

    @staticmethod
    def new() -> Identity:
        return Identity(ec.generate_private_key(ec.SECP256R1()))

    @staticmethod
    def parse(key: bytes, certificate: bytes = b"") -> Identity:
        """From what `secret` gave."""
        loaded = load_der_private_key(key, None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        return Identity(loaded, certificate)

    def secret(self) -> bytes:
        """The key, for a vault."""
        return self.key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())

    @cached_property
    def public(self) -> bytes:
        """What others know the node by."""
        return _point(self.key.public_key())

    def sign(self, message: bytes) -> bytes:
        return self.key.sign(message, _ECDSA)

    def request(self) -> bytes:
        """What a node asks to be admitted with: a certificate request, PEM."""
        builder = x509.CertificateSigningRequestBuilder().subject_name(_name(f"node {self.public.hex()[-16:]}"))
        return builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM)

    def admitted(self, certificate: bytes, root: bytes) -> Identity:
        """With its certificate, PEM or DER, which must be this node's and the root's."""
        der = _der(certificate)
        if member(der, root).public != self.public:
            raise UserError("this certificate belongs to another device; ask for one with: federec device request")
        return Identity(self.key, der)


@dataclass(frozen=True)
class Member:
    """A node that the root has admitted."""

    public: bytes
    """Its public key: a compressed point."""
    users: int
    """How many users it hosts, at most."""
    serial: int
    ends: datetime.datetime

    def verify(self, message: bytes, signature: bytes) -> bool:
        """Whether the node has signed a message."""
        return _verified(self.public, message, signature)


@lru_cache(maxsize=8192)
def member(certificate: bytes, root: bytes) -> Member:
    """The node of a certificate (DER); a UserError where it is not a node's, or not signed by the root (PEM). Whether
    it has expired is for the caller to say."""
    if len(certificate) > _MOST_CERTIFICATE:
        raise UserError("is not a certificate: it is too long")
    try:
        found, signer = x509.load_der_x509_certificate(certificate), x509.load_pem_x509_certificate(root)
        found.verify_directly_issued_by(signer)
        usage = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
        users = found.extensions.get_extension_for_oid(_USERS).value
        key = found.public_key()
    except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound) as error:
        raise UserError(f"is not a certificate of this federation ({type(error).__name__})") from None
    if ExtendedKeyUsageOID.CLIENT_AUTH not in usage or not isinstance(users, x509.UnrecognizedExtension):
        raise UserError("is not the certificate of a node")
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise UserError("is not a certificate of this federation (its key is of another kind)")
    return Member(_point(key), int.from_bytes(users.value), found.serial_number, found.not_valid_after_utc)


@lru_cache(maxsize=65536)
def _verified(public: bytes, message: bytes, signature: bytes) -> bool:
    try:
        ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), public).verify(signature, message, _ECDSA)
    except (InvalidSignature, ValueError):
        return False
    return True


@dataclass(frozen=True)
class Authority:
    """The root with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @staticmethod
    def create(folder: Path, days: int = 3650) -> Authority:
        """A new root in a folder: `ca.crt`, for everybody, and `ca.key`, to be kept offline."""
        make_folder(folder)
        for name in (ROOT, ROOT_KEY):
            if (folder / name).exists():
                raise UserError(f"{folder / name}: exists; a root is never overwritten, name another folder")
        key, subject = ec.generate_private_key(ec.SECP256R1()), _name("federec root")
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        root = (
            _certificate(subject, subject, key.public_key(), days)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .sign(key, hashes.SHA256())
        )
        write_secret(folder / ROOT_KEY, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        write_atomic(folder / ROOT, root.public_bytes(Encoding.PEM))
        return Authority(root, key)

    @staticmethod
    def read(folder: Path) -> Authority:
        """The root in a folder."""
        try:
            certificate = x509.load_pem_x509_certificate(read_bytes(folder / ROOT))
            key = load_pem_private_key(read_bytes(folder / ROOT_KEY), None)
        except (ValueError, TypeError):
            raise UserError(f"{folder}: its {ROOT} or {ROOT_KEY} cannot be read; bring back a copy") from None
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        return Authority(certificate, key)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    def serve(self, folder: Path, hosts: Sequence[str], days: int = 365) -> None:
        """A new certificate of the server for these names and addresses: `server.pem`, `server.key`. Replaces an older
        one: devices trust the root, so nothing changes for them."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([_host(host) for host in hosts])
        signed = self._issue(_name(hosts[0]), key.public_key(), days, ExtendedKeyUsageOID.SERVER_AUTH, names)
        (folder / SERVER_KEY).unlink(missing_ok=True)
        write_secret(folder / SERVER_KEY, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        write_atomic(folder / SERVER, signed.public_bytes(Encoding.PEM))

    def admit(self, request: bytes, users: int = 1, days: int = 365) -> bytes:
        """The certificate (PEM) of a node that hosts so many users, from its `request`."""
        try:
            asked = x509.load_pem_x509_csr(request)
        except ValueError:
            raise UserError("is not a certificate request; make one on the device: federec device request") from None
        key = asked.public_key()
        if not asked.is_signature_valid or not isinstance(key, ec.EllipticCurvePublicKey):
            raise UserError("its signature does not fit; make a new request on the device: federec device request")
        hosts = x509.UnrecognizedExtension(_USERS, users.to_bytes(4))
        signed = self._issue(asked.subject, key, days, ExtendedKeyUsageOID.CLIENT_AUTH, hosts)
        return signed.public_bytes(Encoding.PEM)

    def _issue(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        days: int,
        usage: x509.ObjectIdentifier,
        more: x509.ExtensionType,
    ) -> x509.Certificate:
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        return (
            _certificate(subject, self.certificate.subject, key, days)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(authority, critical=False)
            .add_extension(more, critical=False)
            .sign(self.key, hashes.SHA256())
        )


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # a device's clock may be a little behind
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _der(certificate: bytes) -> bytes:
    if not certificate.startswith(b"-----"):
        return certificate
    try:
        return x509.load_pem_x509_certificate(certificate).public_bytes(Encoding.DER)
    except ValueError:
        raise UserError("is not a certificate") from None


def _point(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.X962, PublicFormat.CompressedPoint)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def write_secret(path: Path, value: bytes) -> None:
    """A new file that nobody else may read, from the first moment."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(value)
