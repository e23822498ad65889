"""The key of a device folder: in a file of its own, in the system's key ring, or made from a passphrase."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from federec.errors import UserError
from federec.files import cannot_write, make_folder, read_bytes

Kind = Literal["file", "keyring", "passphrase"]


@dataclass(frozen=True)
class Key:
    """A secret, and how the encryption key of a folder is made from it."""

    kind: Kind
    secret: bytes = field(repr=False)

    def derive(self, salt: bytes) -> bytes:
        """32 bytes that are this folder's alone. A passphrase is stretched: each guess costs 32 MB and a quarter of a
        second."""
        if self.kind == "passphrase":
            return hashlib.scrypt(self.secret, salt=salt, n=2**15, r=8, p=3, maxmem=2**26, dklen=32)
        return hmac.digest(self.secret, b"federec device" + salt, "sha256")

    @staticmethod
    def passphrase(text: str) -> Key:
        if len(text) < 8:
            raise UserError("the passphrase is too short; use at least 8 characters")
        return Key("passphrase", text.encode(errors="surrogateescape"))

    @staticmethod
    def file(path: Path) -> Key:
        """The key in a file that nobody else may read."""
        secret = _parse(read_bytes(path).decode(errors="replace"))
        if secret is None:
            raise UserError(f"{path}: is not a key file; it must hold 64 hexadecimal digits")
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise UserError(f"{path}: others may read this key; forbid it with: chmod 600 {path}")
        return Key("file", secret)

    @staticmethod
    def new_file(path: Path) -> Key:
        """A new random key in a new file of mode 0600."""
        make_folder(path.parent)
        secret = secrets.token_bytes(32)
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secret.hex() + "\n")
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            raise UserError(f"{path}: exists; a key is never overwritten, name another file") from None
        except OSError as error:
            raise cannot_write(path, error) from None
        return Key("file", secret)


def _parse(text: str) -> bytes | None:
    try:
        secret = bytes.fromhex(text.strip())
    except ValueError:
        return None
    return secret if len(secret) == 32 else None
