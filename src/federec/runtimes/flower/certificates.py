"""Certificates and keys for a federation: a root, a certificate for the server, a key pair for each device."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from federec.errors import UserError
from federec.files import make_folder, write_atomic

ROOT, SERVER, SERVER_KEY = "ca.crt", "server.pem", "server.key"


def certificates(folder: Path, hosts: Sequence[str], days: int = 365) -> None:
    """A new root (`ca.crt`) and a certificate of the server for these names and addresses (`server.pem`, `server.key`).
    The root's own key is thrown away: it signs nothing else."""
    make_folder(folder)
    for name in (ROOT, SERVER, SERVER_KEY):
        if (folder / name).exists():
            raise UserError(f"{folder / name}: exists; certificates are never overwritten, name another folder")
    root_key, key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    root_name = _name("federec root")
    usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
    root = (
        _certificate(root_name, root_name, root_key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(root_key.public_key()), critical=False)
        .sign(root_key, hashes.SHA384())
    )
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(root_key.public_key())
    server = (
        _certificate(_name(hosts[0]), root_name, key.public_key(), days)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(authority, critical=False)
        .sign(root_key, hashes.SHA384())
    )
    _write_secret(folder / SERVER_KEY, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    write_atomic(folder / ROOT, root.public_bytes(Encoding.PEM))
    write_atomic(folder / SERVER, server.public_bytes(Encoding.PEM))


def node_key(path: Path) -> None:
    """A key pair for a device's SuperNode: `path`, which never leaves it, and `path`.pub, to be registered."""
    make_folder(path.parent)
    key = ec.generate_private_key(ec.SECP384R1())
    _write_secret(path, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    write_atomic(Path(f"{path}.pub"), key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")


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


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _write_secret(path: Path, value: bytes) -> None:
    """For nobody else's eyes, from the first moment."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(value)
