"""Reading and writing files. A file is written completely or not at all; a failure is one clear line."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path

from federec.errors import UserError


def as_path(path: object) -> Path:
    """A path that a user gave."""
    if not isinstance(path, str | os.PathLike):
        raise UserError(f"{path!r:.80} is no path; give one as text or as a pathlib.Path")
    return Path(path)


def read_bytes(path: Path) -> bytes:
    """The whole content of a file."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise cannot_read(path, error) from None


def write_atomic(path: Path, content: bytes | str | Iterable[bytes | memoryview]) -> None:
    """Replace the file `path` by `content` (at once or in pieces) in one step. A reader sees the old file or the new
    one, never a part of it, even if this process is killed."""
    # Text that UTF-8 cannot encode, such as a stray byte of a file name, is written as \udc80, a valid JSON escape.
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
    """Create a folder, and its parents where they are missing."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from None


def cannot_read(path: Path, error: OSError) -> UserError:
    """The error for a failed read, in one line."""
    return UserError(f"{path}: cannot be read ({error.strerror or error}); check the path and its permissions")


def cannot_write(path: Path, error: OSError) -> UserError:
    """The error for a failed write, in one line."""
    remedy = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "check the path"
    return UserError(f"{path}: cannot be written ({error.strerror or error}); {remedy} and try again")


def cache() -> Path:
    """The folder for what can be fetched or made again: data sets, and compiled kernels."""
    if own := os.environ.get("FEDEREC_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "federec"
