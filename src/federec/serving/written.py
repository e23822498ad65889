"""Lists of items as JSON. What never changes is written once, when the server starts: label and title of each item, and
the beginning of each user's list."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from federec.network.catalogue import Catalogue

SHORT = 10
"""Items of a user's list that are written at the start: as many as a request asks for unless it says otherwise. Their
text takes about as much memory as codes and scores of the whole list."""

Ranked = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Item codes, best first, and their scores, which are finite: JSON has no other numbers."""


def quoted(text: str) -> str:
    """Text in JSON."""
    return _ENCODER.encode(text)


_ENCODER = json.JSONEncoder(ensure_ascii=False)  # `json.dumps` would make one for each text


def items_of(catalogue: Catalogue) -> tuple[str, ...]:
    """By code, the object of each item up to its score."""
    named = ((label, catalogue.titles.get(label, "")) for label in catalogue.labels)
    return tuple(f'{{"item": {quoted(label)}, "title": {quoted(title)}, "score": ' for label, title in named)


def objects(items: Sequence[str], ranked: Ranked) -> list[str]:
    """The objects of ranked items."""
    pairs = zip(ranked[0].tolist(), ranked[1].tolist(), strict=True)
    return [f"{items[code]}{round(score, 6)!r}}}" for code, score in pairs]


class Beginnings(NamedTuple):
    """The first SHORT objects of many lists. They are one piece of memory, which processes that are forked later share:
    with an object for each list, its reference count would make each process copy the page."""

    text: bytes
    ends: NDArray[np.int64]
    """[lists, SHORT + 1] where the first k objects of a list end in the text."""

    @staticmethod
    def of(lists: Iterable[list[str]]) -> Beginnings:
        """Of these lists of objects. The ends of a list that has fewer repeat."""
        parts: list[bytes] = []
        sizes: list[int] = []
        for found in lists:
            pieces = [(f", {each}" if place else each).encode() for place, each in enumerate(found[:SHORT])]
            parts += pieces
            sizes += [len(piece) for piece in pieces] + [0] * (SHORT - len(pieces))
        ends = np.cumsum([0, *sizes])  # end of each object, after the beginning of the text
        places = SHORT * np.arange(len(sizes) // SHORT)[:, None] + np.arange(SHORT + 1)
        return Beginnings(b"".join(parts), ends[places])

    def first(self, place: int, k: int) -> bytes:
        """The first k objects of a list, at most SHORT."""
        return self.text[self.ends[place, 0] : self.ends[place, k]]
