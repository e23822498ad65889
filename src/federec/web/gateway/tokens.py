"""Short-lived tokens. A tab gets one for signing a challenge with its admitted key, and another one when it has ended.

Challenges and tokens carry their own end and are signed with a key that only this process has: nothing is kept for
strangers, and after a restart everybody signs again.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode

from federec.runtimes.bounds import Refused

LABEL = b"federec gateway 1 "
"""Before a challenge, in what a tab signs: the signature is good for nothing else."""
CHALLENGE, TOKEN = 60.0, 600.0
"""Seconds for which a challenge and a token are good."""
_MAC = 32  # bytes


class Tokens:
    """Those of one process."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._used: dict[bytes, float] = {}

    def challenge(self) -> str:
        """What a tab has to sign."""
        return encoded(self._signed(b"challenge", struct.pack(">d", time.time() + CHALLENGE) + secrets.token_bytes(16)))

    def use(self, challenge: bytes) -> None:
        """A Refused unless this is a challenge of this process, still good, that was not used before."""
        content = self._content(b"challenge", challenge, "sign a new challenge")
        now, ends = time.time(), struct.unpack_from(">d", content)[0]
        self._used = {each: end for each, end in self._used.items() if end > now}
        if ends < now or challenge in self._used:
            raise Refused(401, "the challenge has ended; sign a new one")
        self._used[challenge] = ends

    def token(self, node: int) -> str:
        """By which a node is known for a while."""
        return encoded(self._signed(b"token", struct.pack(">Qd", node, time.time() + TOKEN)))

    def node(self, token: str) -> int:
        """Whose token this is; a Refused where it is nobody's, or has ended."""
        node, ends = struct.unpack(">Qd", self._content(b"token", decoded(token), "join again"))
        if ends < time.time():
            raise Refused(401, "the token has ended; join again")
        return int(node)

    def _signed(self, label: bytes, content: bytes) -> bytes:
        return content + self._mac(label, content)

    def _content(self, label: bytes, signed: bytes, remedy: str) -> bytes:
        content, mac = signed[:-_MAC], signed[-_MAC:]
        if not hmac.compare_digest(mac, self._mac(label, content)):
            raise Refused(401, f"this is not a {label.decode()} of this gateway; {remedy}")
        return content

    def _mac(self, label: bytes, content: bytes) -> bytes:
        return hmac.new(self._key, label + b"\0" + content, hashlib.sha256).digest()


def encoded(content: bytes) -> str:
    return urlsafe_b64encode(content).decode().rstrip("=")


def decoded(text: str) -> bytes:
    """Bytes from base64 without padding; nothing where it is no base64."""
    try:
        return urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError:
        return b""
