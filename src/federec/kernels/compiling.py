"""How the CPU kernels are compiled, once, and kept on disk."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import numba
from filelock import FileLock
from numba.core import caching, codegen, compiler

from federec.files import cache

_OPTIONS: dict[str, Any] = {
    "fastmath": True,
    "nogil": True,
    "error_model": "numpy",
    "no_cfunc_wrapper": True,
    # References to arrays are not counted, which took up to a third of a kernel's time: a call that passes on a tuple
    # of arrays counts each of them. So kernels can make no arrays: those who call them lend them all their memory.
    "_nrt": False,
}


class _PieceLibrary(codegen.JITCodeLibrary):
    """The code of a piece. Numba would optimise each piece again together with all that it calls, and make machine
    code of it: a piece five calls deep would be optimised five times. Here it is optimised once by itself, and once
    more with the kernel that it becomes part of; only that is machine code."""

    def finalize(self) -> None:
        self._optimize_final_module()
        for library in dict.fromkeys(self._linking_libraries):
            if hasattr(library, "_reload_init"):  # numba 0.61 has none
                self._reload_init.update(library._reload_init)
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        self._ensure_finalized()
        return 0  # Python cannot call it

    @property
    def codegen(self) -> Any:
        return self  # which is only asked for `set_env`

    def set_env(self, name: str, environment: Any) -> None:
        """Without machine code there is nothing to tell about Python objects, which pieces do not use."""


class _PieceCompiler(compiler.Compiler):
    def compile_extra(self, function: Any) -> Any:
        self.state.library = _PieceLibrary(self.state.targetctx.codegen(), function.__qualname__)
        return super().compile_extra(function)


_PIECE = {"no_cpython_wrapper": True, "pipeline_class": _PieceCompiler}

jit: Any = numba.njit(**_OPTIONS | _PIECE)
"""A piece of kernels, which Python does not call: without a way in for it, compilation takes less time and memory."""

exact: Any = numba.njit(**_OPTIONS | _PIECE | {"fastmath": {"contract"}})
"""The same, but rounded as it is written: the compiler does not change the order of its operations."""

inlined: Any = numba.njit(**_OPTIONS | _PIECE, inline="always")
"""A piece that gives back a view of an array, which only code within one function can."""


_FOLDER = Path(__file__).parent


def sources(path: Path, folder: Path = _FOLDER) -> str:
    """A digest of a source file and of the kernels' files, in that folder, which it imports, also through others."""
    needed, known = [path], set()
    while needed:
        file = needed.pop()
        if file not in known:
            known.add(file)
            imported = re.findall(r"^from federec\.kernels\.(\w+) import", file.read_text("utf-8"), re.MULTILINE)
            needed += [folder / f"{name}.py" for name in imported]
    digest = hashlib.sha256()
    for file in sorted(known):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def kernel(function: Any) -> Any:
    """Compiled code that is kept on disk. Numba would keep it until the kernel's own file changes; but pieces from
    other files are compiled into it, and two kernels with unlike versions of one piece do not go together."""
    compiled: Any = numba.njit(**_OPTIONS, cache=True)(function)
    kept, stamp = compiled._cache, sources(Path(function.__code__.co_filename))
    folder = _kept_for(stamp) or kept._cache_path
    file: Any = caching.IndexDataCacheFile(str(folder), kept._impl.filename_base, stamp)
    file._load_index = _readable(file._load_index)
    kept._cache_path, kept._cache_file = str(folder), file
    compiled.compile = _once(compiled, Path(folder) / f"{function.__name__}.lock")
    return compiled


_UNUSED = 60 * 24 * 3600.0
"""Compiled code that was not used for so many seconds is deleted."""


def _kept_for(stamp: str) -> Path | None:
    """The folder in the user's cache with the code compiled of sources with this digest: a new version of federec, or
    another environment, compiles only what has changed. None where numba was told a folder, or where the cache cannot
    be written or belongs to somebody else, whose code is not to be run: then code lies where numba puts it."""
    if numba.config.CACHE_DIR:  # type: ignore[attr-defined]
        return None
    try:
        kernels = cache() / "kernels"
        kernels.mkdir(mode=0o700, parents=True, exist_ok=True)
        if kernels.stat().st_uid != os.getuid() or not os.access(kernels, os.W_OK):
            return None
        folder = kernels / f"{numba.__version__}-{stamp[:16]}"
        if not folder.is_dir():
            _tidy(kernels)
        folder.mkdir(exist_ok=True)
        os.utime(folder)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        return None
    return folder


def _tidy(kernels: Path) -> None:
    """Delete what no program has used for long."""
    for folder in kernels.iterdir():
        if time.time() - folder.stat().st_mtime > _UNUSED:
            shutil.rmtree(folder, ignore_errors=True)


def _readable(load: Callable[[], dict[Any, str]]) -> Callable[[], dict[Any, str]]:
    """An index of compiled code may name types that are no more; numba would fail before it sees that it is old."""

    def index() -> dict[Any, str]:
        try:
            return load()
        except (AttributeError, ImportError):
            return {}

    return index


class NotCompiledError(Exception):
    """A kernel is not compiled yet."""


_only_load: ContextVar[bool] = ContextVar("only_load", default=False)


@contextmanager
def only_loading() -> Iterator[None]:
    """Kernels are loaded here, but none is compiled: one that is not on disk raises `NotCompiledError`."""
    before = _only_load.set(True)
    try:
        yield
    finally:
        _only_load.reset(before)


def loads(work: Callable[[], object]) -> bool:
    """Whether this needs no kernel that is not compiled yet; then it is done."""
    try:
        with only_loading():
            work()
    except NotCompiledError:
        return False
    return True


_PATIENCE = 300.0  # seconds; a kernel compiles in one minute


def _once(kernel_: Any, path: Path) -> Callable[[Any], Any]:
    """One process compiles, which takes up to a minute; others that need the kernel meanwhile wait and load it."""
    compile_ = kernel_.compile

    def compiled(signature: Any) -> Any:
        if _only_load.get() and not _on_disk(kernel_, signature):
            raise NotCompiledError(kernel_.__name__)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(path, timeout=_PATIENCE)
            lock.acquire()
        except (OSError, NotImplementedError):  # the folder takes no files or no locks, or nobody gives the lock back
            return compile_(signature)
        try:
            return compile_(signature)
        finally:
            lock.release()

    return compiled


def _on_disk(kernel_: Any, signature: Any) -> bool:
    """Whether code for arguments of these types is kept, made on a processor like this one."""
    cache = kernel_._cache
    return cache._index_key(signature, kernel_.targetctx.codegen()) in cache._cache_file._load_index()
