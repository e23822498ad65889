"""Importing what a reference names: a module by its name, or a file by its path."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import linecache
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from federec.errors import UserError


def source(class_: type) -> Path | None:
    """The file that defines a class; None where there is none."""
    if class_.__module__ not in sys.modules:
        return None
    try:
        path = Path(inspect.getfile(class_)).absolute()
    except (TypeError, OSError):  # made in an interactive session
        return None
    return path if path.is_file() else None


def digest(class_: type) -> str | None:
    """SHA-256 of the file that defines a class; None where there is none, and for federec's own."""
    path = source(class_)
    if path is None or class_.__module__.partition(".")[0] == "federec":
        return None
    loaded = _FILES.get(path)
    return loaded.sha256 if loaded else hashlib.sha256(path.read_bytes()).hexdigest()


class _Loaded(NamedTuple):
    sha256: str
    """Of the text that was run."""
    module: ModuleType


_FILES: dict[Path, _Loaded] = {}
"""Files that were imported by their path: once, and again when their content has changed."""


def lasting(module: ModuleType, path: Path) -> bool:
    """Whether another process finds the module by its name, even from another directory."""
    name = module.__name__
    if "." in name:
        return True  # inside a package: its name is the only way to import it
    if name == "__main__" or path in _FILES:
        return False
    folder = path.parent.parent if path.name == "__init__.py" else path.parent
    here = {Path.cwd(), Path(sys.path[0]).absolute(), *(file.parent for file in _FILES)}
    return folder not in here and str(folder) in sys.path


def by_import(name: str) -> ModuleType:
    """The module of that name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _cannot_import(name, error, None) from None
        remedy = "install its package, add its folder to PYTHONPATH, or name the file: path/to/file.py:Class"
        raise UserError(f"there is no module '{error.name}'; {remedy}") from None
    except (Exception, SystemExit) as error:
        raise _cannot_import(name, error, None) from None


def from_file(path: Path) -> ModuleType:
    """The module that a file is. A file that was imported already, in whatever way, is not run again."""
    path = path.expanduser().absolute()
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; check the path") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); check the path and who may read it") from None
    sha256, known = hashlib.sha256(text).hexdigest(), _FILES.get(path)
    if known is not None and known.sha256 == sha256:
        return known.module
    for module in [*sys.modules.values()] if known is None else ():
        if getattr(module, "__dict__", {}).get("__file__") == str(path):
            return module
    name = known.module.__name__ if known else _module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # at the end: it hides nothing, and modules beside the file are found
    sys.modules[name] = module  # where pydantic and pickle look for it
    linecache.checkcache(str(path))
    try:
        exec(compile(text, str(path), "exec"), module.__dict__)
    except BaseException as error:
        sys.modules.pop(name)
        if known is not None:
            sys.modules[name] = known.module
        if not isinstance(error, (Exception, SystemExit)):
            raise
        raise _cannot_import(str(path), error, path) from None
    _FILES[path] = _Loaded(sha256, module)
    return module


def _module_name(path: Path) -> str:
    """As `import` would call the file from its own folder, so that processes to which this one sends its objects find
    it, too; with a number behind where another module is called that."""
    name = path.stem
    free = name.isidentifier() and name not in sys.modules and _origin(name) in (None, str(path))
    return name if free else f"{name}_{hashlib.sha256(os.fsencode(path)).hexdigest()[:8]}"


def _origin(name: str) -> str | None:
    spec = importlib.util.find_spec(name)
    return None if spec is None else spec.origin or "built in"


def _cannot_import(name: str, error: BaseException, path: Path | None) -> UserError:
    """One line: what went wrong, and in which line of the file."""
    why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    if isinstance(error, SyntaxError) and error.lineno is not None:
        why, name = f"{error.msg}", f"{error.filename}, line {error.lineno}"
        return UserError(f"{name}: is not valid Python ({why}); mend it there")
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if path is not None and frame.filename == str(path)]
    others = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    if inside or others:
        last = (inside or others)[-1]
        name = f"{last.filename}, line {last.lineno}"
    if isinstance(error, ModuleNotFoundError):
        return UserError(f"{name}: needs the module '{error.name}'; install it, or mend the import")
    return UserError(f"{name}: cannot be imported ({why}); mend it there")
