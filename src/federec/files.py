"""Writing files whole or not at all."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from federec.errors import UserError


def write_atomic(path: Path, content: bytes | str) -> None:
    """Replace `path` by `content` in one step: a reader, or a kill at any moment, sees the old or the new."""
    data = content.encode() if isinstance(content, str) else content
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise cannot_write(path, error) from None


def make_folder(path: Path) -> None:
    """Create a folder and its parents."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from None


def cannot_write(path: Path, error: OSError) -> UserError:
    """One line for a failed write."""
    remedy = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG) else "check the path"
    return UserError(f"{path}: cannot be written ({error.strerror or error}); {remedy} and try again")
