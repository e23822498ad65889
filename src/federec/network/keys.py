"""The key of a device folder: in a file of its own, in the system's key ring, or made from a passphrase."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Literal

from federec.errors import UserError
from federec.files import cannot_write, make_folder, read_bytes

Kind = Literal["file", "keyring", "passphrase"]
_SERVICE = "federec"


@dataclass(frozen=True)
class Key:
    """A secret, and how the encryption key of a folder is made from it."""

    kind: Kind
    secret: bytes = field(repr=False)
    place: str = ""
    """Where it is: path of its file, name in the key ring. A folder remembers that, never the secret."""

    def derive(self, salt: bytes) -> bytes:
        """32 bytes that only fit one folder. A passphrase is stretched: a guess costs 32 MB and some tenths of a
        second."""
        if self.kind == "passphrase":
            return hashlib.scrypt(self.secret, salt=salt, n=2**15, r=8, p=3, maxmem=2**26, dklen=32)
        return hmac.digest(self.secret, b"federec device" + salt, "sha256")

    @staticmethod
    def passphrase(text: str) -> Key:
        """A key made from a passphrase."""
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
        return Key("file", secret, str(path.resolve()))

    @staticmethod
    def new_file(path: Path) -> Key:
        """A new random key in a new file of mode 0600."""
        make_folder(path.parent)
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(secrets.token_hex(32) + "\n")
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            raise UserError(f"{path}: exists; a key is never overwritten, name another file") from None
        except OSError as error:
            raise cannot_write(path, error) from None
        return Key.file(path)

    @staticmethod
    def ring(name: str) -> Key:
        """The key of that name in the system's key ring."""
        secret = _parse(_keyring().get_password(_SERVICE, name) or "")
        if secret is None:
            raise UserError(f"the key ring has no key '{name}' of federec; unlock the one that had it when it was made")
        return Key("keyring", secret, name)

    @staticmethod
    def new_ring() -> Key:
        """A new random key in the system's key ring."""
        name = secrets.token_hex(8)
        try:
            _keyring().set_password(_SERVICE, name, secrets.token_hex(32))
        except Exception as error:  # each system's ring has errors of its own
            reason = " ".join(str(error).split())
            raise UserError(f"the key ring cannot be used ({reason}); use a key file or --passphrase") from None
        return Key.ring(name)

    def destroy(self) -> None:
        """Remove it, so that what it locked can never be read again."""
        if self.kind == "file":
            Path(self.place).unlink(missing_ok=True)
        elif self.kind == "keyring":
            _keyring().delete_password(_SERVICE, self.place)


def key_folder() -> Path:
    """Where keys are put by default: not in the folder that they lock."""
    if own := os.environ.get("FEDEREC_KEYS"):
        return Path(own)
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "federec" / "keys"


def _keyring() -> ModuleType:
    try:
        import keyring
    except ImportError:
        raise UserError("the key ring needs one more package: pip install keyring") from None
    module: ModuleType = keyring
    return module


def _parse(text: str) -> bytes | None:
    try:
        secret = bytes.fromhex(text.strip())
    except ValueError:
        return None
    return secret if len(secret) == 32 else None
