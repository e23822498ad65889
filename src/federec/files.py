"""Reading and writing files: whole or not at all, and one clear line where that fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from federec.errors import UserError


def read_bytes(path: Path) -> bytes:
    """All of a file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise cannot_read(path, error) from None


def write_atomic(path: Path, content: bytes | str | Iterable[bytes | memoryview]) -> None:
    """Replace `path` by `content`, whole or in pieces, in one step: a reader, or a kill at any moment, sees the old or
    the new."""
    # What UTF-8 cannot hold, such as the odd byte of a file name, is written as \udc80: an escape in JSON too.
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            for piece in [data] if isinstance(data, bytes) else data:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise cannot_write(path, error) from None
    finally:
        part.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Create a folder and its parents."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from None


def cannot_read(path: Path, error: OSError) -> UserError:
    """One line for a failed read."""
    return UserError(f"{path}: cannot be read ({error.strerror or error}); check the path and who may read it")


def cannot_write(path: Path, error: OSError) -> UserError:
    """One line for a failed write."""
    remedy = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "check the path"
    return UserError(f"{path}: cannot be written ({error.strerror or error}); {remedy} and try again")
