"""Who may take part: the certificates in a folder, each a file `NAME.crt` that the root has signed.

A file that appears admits a node, a file that is taken away removes it, with the next request; a certificate that has
ended counts as none. What happens is a line in the run's `audit.jsonl`.
"""

from __future__ import annotations

import datetime
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from federec.errors import UserError
from federec.files import read_bytes
from federec.network.certificates import Member, member
from federec.network.events import Events
from federec.runtimes.flower.link import Link, node_number

AUDIT = "audit.jsonl"
WARN = 30
"""Days before a certificate ends from which that is said, once a day."""
_EVERY = 60.0  # seconds between looks at what ends
_TOLD = 60.0  # seconds for which the same refusal of the same address is only counted
_MOST_TOLD = 1000  # refusals that are told apart


@dataclass(frozen=True)
class Admitted:
    """A node whose certificate is in the folder."""

    name: str
    key: bytes
    """Its public key, as Flower writes it."""
    member: Member

    @property
    def node(self) -> int:
        return node_number(self.key)

    @property
    def ended(self) -> bool:
        return self.member.ends < datetime.datetime.now(datetime.UTC)


def read_certificate(path: Path, root: bytes) -> Admitted:
    """The node of a certificate's file; a UserError where it is not one of the root."""
    try:
        found = x509.load_pem_x509_certificate(read_bytes(path))
    except ValueError:
        raise UserError(f"{path}: is not a certificate") from None
    try:
        return Admitted(path.stem, _key(found), member(found.public_bytes(Encoding.DER), root))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def node_of(path: Path) -> str:
    """The number of a certificate's node, whoever has signed it; empty where it is no certificate."""
    try:
        return str(node_number(_key(x509.load_pem_x509_certificate(read_bytes(path)))))
    except ValueError:
        return ""


def _key(certificate: x509.Certificate) -> bytes:
    """The public key of a certificate, as Flower writes it."""
    return certificate.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


class Admission:
    """Keeps a link's nodes as the folder has them."""

    def __init__(self, link: Link, folder: Path, root: bytes, audit: Events, others: tuple[Path, ...] = ()) -> None:
        """`others` are certificates whose end is worth a warning, too: the root's, the server's."""
        self.link, self.folder, self.root, self.audit, self.others = link, folder, root, audit, others
        self.admitted: dict[bytes, Admitted] = {}
        """By public key."""
        self._users: dict[int, int] = {}
        self._seen = -1
        self._looked = -_EVERY
        self._said: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()

    def users(self, node: int) -> int | None:
        """How many users a node may speak for; None where it was not admitted."""
        return self._users.get(node)

    def why_not(self, key: bytes) -> str:
        """Why the holder of a key is refused; empty where it is not."""
        self.look()
        known = self.admitted.get(key)
        if known is None:
            return "this device was not admitted, or was removed"
        return "the certificate of this device has ended" if known.ended else ""

    def look(self) -> None:
        """Bring the link up to date with the folder."""
        changed = self.folder.stat().st_mtime_ns if self.folder.exists() else 0
        now = time.monotonic()
        with self._lock:
            if changed == self._seen and now < self._looked + _EVERY:
                return
            self._seen, self._looked = changed, now
            found: dict[bytes, Admitted] = {}
            for path in sorted(self.folder.glob("*.crt")):
                try:
                    each = read_certificate(path, self.root)
                except UserError as error:
                    self._once(f"unusable {path.name}", "unusable", file=path.name, why=str(error))
                else:
                    found.setdefault(each.key, each)
            for key, each in found.items():
                self._warn(each.name, each.member.ends)
                if key not in self.admitted:
                    self._admit(each)
            for key in self.admitted.keys() - found.keys():
                gone = self.admitted[key]
                self.link.remove(key)
                self.audit.say("removed", name=gone.name, device=str(gone.node))
            self.admitted = found
            self._users = {each.node: each.member.users for each in found.values()}
            for path in self.others:
                certificate = x509.load_pem_x509_certificate(read_bytes(path))
                self._warn(path.name, certificate.not_valid_after_utc)

    def _admit(self, each: Admitted) -> None:
        self.link.admit(each.key)
        ends, users = each.member.ends.date().isoformat(), each.member.users
        self.audit.say("admitted", name=each.name, device=str(each.node), users=users, ends=ends)

    def _warn(self, name: str, ends: datetime.datetime) -> None:
        now = datetime.datetime.now(datetime.UTC)
        left = (ends - now).days
        if left < WARN:
            kind = "ended" if ends < now else "ends"
            self._once(f"{kind} {name} {now.date()}", kind, certificate=name, days=left, date=ends.date().isoformat())

    def _once(self, what: str, event: str, **fields: str | int) -> None:
        if (what, "") not in self._said:
            self._said[what, ""] = 0.0
            self.audit.say(event, **fields)

    def refuse(self, why: str, address: str) -> None:
        """Write down that somebody was refused, though not a line for each of many."""
        now = time.monotonic()
        with self._lock:
            if len(self._said) > _MOST_TOLD or now < self._said.get((why, address), -_TOLD) + _TOLD:
                return
            self._said[why, address] = now
        self.audit.say("refused", why=why, address=address)
