"""Errors that a user can correct: one clear line and exit code 2, never a traceback."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError


class UserError(Exception):
    """A mistake in the request or in the data. Its text is one line: what is wrong, where, and the remedy.

    >>> fr.FedMF(dmi=32)
    Traceback (most recent call last):
    federec.errors.UserError: 'fedmf' has no setting 'dmi' - did you mean 'dim'?
    """

    def _render_traceback_(self) -> list[str]:
        """What a notebook shows: the line, without a traceback through federec."""
        return [f"{type(self).__name__}: {self}"]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` - did you mean 'x'?` with the most similar known word, or ` (known: a, b, c)` if none is similar."""
    words = {each.lower(): each for each in sorted(known)}
    near = difflib.get_close_matches(word.lower(), words, n=1, cutoff=0.6)
    return f" - did you mean '{words[near[0]]}'?" if near else f" (known: {', '.join(words.values())})"


def whole(value: Any, name: str, least: int = 1) -> int:
    """A whole number that a user gave as the argument `name`."""
    known = hasattr(value, "__index__") and not isinstance(value, bool)  # NumPy's numbers have it too
    if not known or operator.index(value) < least:
        raise UserError(f"{name}={value!r:.80}: give a whole number of at least {least}")
    return operator.index(value)


def several(given: Any, name: str, remedy: str, one: type | tuple[type, ...] = ()) -> list[Any]:
    """What a user gave as the argument `name`, where several things can be given, or one of the types `one`. A text is
    never taken apart."""
    if one and isinstance(given, one):
        return [given]
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise UserError(f"{name}={given!r:.80}: {remedy}")
    return list(given)


EXTRAS = {
    "cryptography": "device",
    "dp_accounting": "privacy",
    "fastapi": "serve",
    "flwr": "flower",
    "matplotlib": "results",
    "mlflow": "mlflow",
    "numba": "train",
    "onnx": "export",
    "onnxruntime": "export",
    "optuna": "results",
    "polars": "train",
    "scipy": "train",
    "sklearn": "results",
    "tensorboard": "tensorboard",
    "threadpoolctl": "train",
    "torch": "train",
    "uvicorn": "serve",
}
"""Packages that only some commands need, as they are imported -> the extra that installs them."""


def needs(module: str) -> Any:
    """The module of an optional package, imported."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise lacking(error) from None


def lacking(error: ModuleNotFoundError) -> Exception:
    """What to tell whoever lacks a package: the extra that installs it. The error itself where there is none."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        return error
    return UserError(f"this needs the package {package}; install it with: pip install 'federec[{EXTRAS[package]}]'")


def first_fault(error: ValidationError) -> tuple[str, str]:
    """The first setting that was refused, as `key=value`, and the reason."""
    first = error.errors()[0]
    why = first["msg"].lower().replace("tuple", "list")  # users write lists
    if first["type"] == "literal_error":
        suggestion = did_you_mean(str(first["input"]), re.findall("'([^']*)'", first["ctx"]["expected"]))
        why += suggestion if "did you mean" in suggestion else ""  # else the message lists them already
    return f"{'.'.join(str(part) for part in first['loc'])}={first['input']!r}", why
