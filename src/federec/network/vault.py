"""Named values in one file, encrypted and authenticated, changed all together or not at all.

An SQLite database (WAL). In the clear are names, sizes and what tells the right key from a wrong one; values are sealed
with AES-256-GCM, each bound to its name, so that none can be read, changed or swapped without the key.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from federec.errors import UserError
from federec.network.keys import Key, Kind

_NONCE = 12
_LOCK = "CREATE TABLE lock (facts TEXT NOT NULL)"
_SEALED = "CREATE TABLE sealed (name TEXT PRIMARY KEY, value BLOB NOT NULL)"
PRAGMAS = ("secure_delete = ON", "synchronous = FULL", "cache_size = -256")
"""Of every connection: what is deleted is overwritten, what was committed survives a loss of power, and 256 kB of pages
are kept in memory instead of 2 MB: values are read once."""
_REMEDIES = {
    "locked": "another process is at work on it, try again",
    "full": "free some space and try again",
    "readonly": "check who may write it",
    "I/O": "check the disk",
    "unable to open": "check who may read it",
}


class Vault:
    """An open vault."""

    def __init__(self, file: Path, key: Key) -> None:
        self.file = file
        with self._told():
            self._db = _connect(file)
            if self._db.execute("PRAGMA integrity_check").fetchone() != ("ok",):
                raise damaged(file)
            lock = _read_lock(self._db, file)
        if lock.kind != key.kind:
            raise UserError(f"{file.parent}: is locked with a {lock.kind}, not with a {key.kind}")
        derived = key.derive(lock.salt)
        if not hmac.compare_digest(lock.check, _check(derived)):
            raise UserError(f"{file.parent}: this {key.kind} does not open it")
        self._cipher = AESGCM(derived)
        with self._told():  # damage anywhere is noticed before anything is done with what is left
            for name, value in self._db.execute("SELECT name, value FROM sealed"):
                self._open(name, value)

    @staticmethod
    def create(file: Path, key: Key) -> Vault:
        """A new vault in a file that is not there yet."""
        salt = secrets.token_bytes(16)
        facts = {"kind": key.kind, "place": key.place, "salt": salt.hex(), "check": _check(key.derive(salt)).hex()}
        file.touch(mode=0o600, exist_ok=False)
        db = _connect(file)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(_LOCK)
        db.execute(_SEALED)
        db.execute("INSERT INTO lock VALUES (?)", (json.dumps(facts),))
        db.close()
        return Vault(file, key)

    def close(self) -> None:
        self._db.close()

    def get(self, name: str) -> bytes | None:
        """A value, None where there is none."""
        with self._told():
            found = self._db.execute("SELECT value FROM sealed WHERE name = ?", (name,)).fetchone()
            return None if found is None else self._open(name, found[0])

    def need(self, name: str) -> bytes:
        """A value without which the vault is damaged."""
        value = self.get(name)
        if value is None:
            raise damaged(self.file)
        return value

    def put(self, name: str, value: bytes) -> None:
        """Set a value; within `change`."""
        nonce = os.urandom(_NONCE)
        sealed = nonce + self._cipher.encrypt(nonce, value, name.encode())
        self._db.execute("INSERT OR REPLACE INTO sealed VALUES (?, ?)", (name, sealed))

    def delete(self, name: str) -> None:
        """Remove a value if there is one; within `change`."""
        self._db.execute("DELETE FROM sealed WHERE name = ?", (name,))

    def names(self, beginning: str = "") -> list[str]:
        """Names that begin so."""
        with self._told():
            return [name for (name,) in self._db.execute("SELECT name FROM sealed") if name.startswith(beginning)]

    @contextmanager
    def change(self) -> Iterator[None]:
        """Everything put and deleted within happens, or nothing of it."""
        with self._told():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def scrub(self) -> None:
        """Remove deleted and replaced values from the log; in the file itself SQLite has overwritten them."""
        with self._told():
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _open(self, name: str, sealed: bytes) -> bytes:
        try:
            value: bytes = self._cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], name.encode())
        except (InvalidTag, ValueError, TypeError):
            raise damaged(self.file) from None
        return value

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn what goes wrong with the file into one line."""
        try:
            yield
        except (sqlite3.Error, UnicodeError) as error:  # SQLite may quote what it cannot read
            remedy = next((remedy for words, remedy in _REMEDIES.items() if words in str(error)), None)
            raise UserError(f"{self.file}: {error}; {remedy}") if remedy else damaged(self.file) from None


@dataclass(frozen=True)
class Lock:
    """What is known of a vault without its key."""

    kind: Kind
    """What it is locked with."""
    place: str
    """Where that key was: a path, or a name in the key ring."""
    salt: bytes
    check: bytes
    """Tells the right key from a wrong one."""


def lock_of(file: Path) -> Lock:
    """The lock of the vault in a file."""
    try:
        db = _connect(file)
        lock = _read_lock(db, file)
        db.close()
    except (sqlite3.Error, UnicodeError):
        raise damaged(file) from None
    return lock


def damaged(file: Path) -> UserError:
    """A vault that cannot be read, though it was whole once."""
    return UserError(
        f"{file}: is damaged; bring back a copy of the folder, or give it up and begin anew: federec device forget "
        "--everything, then federec device init"
    )


def _read_lock(db: sqlite3.Connection, file: Path) -> Lock:
    try:
        facts = json.loads(db.execute("SELECT facts FROM lock").fetchone()[0])
        if facts["kind"] not in get_args(Kind):
            raise damaged(file)
        return Lock(facts["kind"], str(facts["place"]), *(bytes.fromhex(facts[name]) for name in ("salt", "check")))
    except (TypeError, KeyError, ValueError):
        raise damaged(file) from None


def _check(derived: bytes) -> bytes:
    """Tells the right key from a wrong one, and nothing about it."""
    return hmac.digest(derived, b"check", "sha256")


def _connect(file: Path) -> sqlite3.Connection:
    db = sqlite3.connect(f"{file.resolve().as_uri()}?mode=rw", uri=True, isolation_level=None, timeout=30)
    for pragma in PRAGMAS:
        db.execute(f"PRAGMA {pragma}")
    return db
