"""Errors that a user can correct: one clear line and exit code 2, never a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class UserError(Exception):
    """A mistake in the request or in the data. Its text is one line: what is wrong, where, and the remedy."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` - did you mean 'x'?` with the most similar known word, or ` (known: a, b, c)` if none is similar."""
    words = {each.lower(): each for each in sorted(known)}
    near = difflib.get_close_matches(word.lower(), words, n=1, cutoff=0.6)
    return f" - did you mean '{words[near[0]]}'?" if near else f" (known: {', '.join(words.values())})"


def first_fault(error: ValidationError) -> tuple[str, str]:
    """The first setting that was refused, as `key=value`, and the reason."""
    first = error.errors()[0]
    why = first["msg"].lower().replace("tuple", "list")  # users write lists
    return f"{'.'.join(str(part) for part in first['loc'])}={first['input']!r}", why
