"""The items of a federation: labels with stable codes. It grows at the end and never renumbers."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from federec.data.interactions import Interactions
from federec.errors import UserError
from federec.files import read_bytes

_MOST_TEXT = 1000  # characters of a label or title
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")  # control characters, and halves of others


def is_text(value: object) -> bool:
    """Whether something can be a label or title: text of a reasonable length, without control characters."""
    return isinstance(value, str) and 0 < len(value) <= _MOST_TEXT and _CONTROL.search(value) is None


@dataclass(frozen=True)
class Catalogue:
    """An item's code is its place in `labels`."""

    labels: tuple[str, ...]
    titles: dict[str, str] = field(default_factory=dict, repr=False)
    """Label -> title, where there is one."""

    @staticmethod
    def of(data: Interactions) -> Catalogue:
        """The items of a data set, with its codes."""
        return Catalogue(tuple(map(str, data.item_ids)), dict(data.titles))

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def version(self) -> str:
        """Number of items and a digest of their labels: equal where every code means the same item."""
        digest = hashlib.sha256(json.dumps(self.labels).encode())
        return f"{len(self)}-{digest.hexdigest()[:12]}"

    @cached_property
    def codes(self) -> dict[str, int]:
        return {label: code for code, label in enumerate(self.labels)}

    def code(self, label: str) -> int:
        """The code of an item, which must be there."""
        if label not in self.codes:
            raise UserError(f"no item is called '{label}'{self._near(label)}")
        return self.codes[label]

    def grown(self, labels: Iterable[str]) -> Catalogue:
        """With new items at the end; those already there stay where they are."""
        new = tuple(dict.fromkeys(label for label in labels if label not in self.codes))
        return Catalogue(self.labels + new, self.titles)

    def extends(self, other: Catalogue) -> bool:
        """Whether every code of `other` means the same item here."""
        return self.labels[: len(other)] == other.labels

    def text(self) -> str:
        """For a file."""
        return json.dumps({"items": self.labels, "titles": self.titles})

    @staticmethod
    def parse(text: str | bytes) -> Catalogue:
        """The catalogue of a `text`; a ValueError where it is none."""
        read = json.loads(text)
        if not isinstance(read, dict) or not isinstance(read.get("items"), list) or not read["items"]:
            raise ValueError("no list of items")
        labels, titles = tuple(read["items"]), read.get("titles", {})
        if not isinstance(titles, dict) or not all(map(is_text, (*labels, *titles.values()))):
            raise ValueError("labels and titles must be text")
        if len(set(labels)) < len(labels):
            raise ValueError("an item is there twice")
        return Catalogue(labels, titles)

    @staticmethod
    def read(path: Path) -> Catalogue:
        """The catalogue in a file, such as a server hands out."""
        try:
            return Catalogue.parse(read_bytes(path))
        except ValueError as error:
            form = '{"items": [label, ...], "titles": {label: title, ...}}'
            raise UserError(f"{path}: is not a catalogue ({error}); it must be JSON like {form}") from None

    def _near(self, word: str) -> str:
        """A remedy for an unknown label: the nearest label or title."""
        names = {name.lower(): label for label in self.labels for name in (self.titles.get(label, label), label)}
        near = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.6)
        if not near:
            return f"; the {len(self):,} items are like {', '.join(self.labels[:3])}"
        label = names[near[0]]
        return f" - did you mean '{label}'{f' ({self.titles[label]})' if label in self.titles else ''}?"
