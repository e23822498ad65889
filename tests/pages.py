"""The pages of the documentation as their blocks of code, each with the line where it stands."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
}
SHELL = ("", "bash")
FENCE = re.compile(
    r"(?:^ *<!-- (?P<mark>[^\n]+?) -->\n)?"
    r'^(?P<indent> *)```(?P<language>[\w-]*)(?: title="(?P<title>[^"\n]+)")?[^\n]*\n(?P<text>.*?)^(?P=indent)```$',
    re.M | re.S,
)
LIST = ("* ", "- ", "!!!", "???", "===", ":", "[^")


@dataclass(frozen=True)
class Block:
    """A block between fences."""

    page: str
    line: int
    """Of its first line of text; the fence is the line before."""
    language: str
    title: str | None
    """The file that the block is."""
    mark: str | None
    """The comment on the line before the fence."""
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def runs(self) -> bool:
        return not (self.mark or "").startswith("not run: ")

    @property
    def numbered(self) -> str:
        """The text on the lines that it has in the page, so that error messages name them."""
        return "\n" * (self.line - 1) + self.text


def blocks(page: str, text: str) -> Iterator[Block]:
    """All blocks of a page, in order."""
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start("text")) + 1
        inside = textwrap.dedent(found["text"])
        yield Block(page, line, found["language"], found["title"], found["mark"], inside)


def indented(text: str) -> list[int]:
    """Lines where code begins that only its indentation marks; such code has no language and no mark."""
    text = FENCE.sub(lambda found: re.sub(r"[^\n]+", "fence", found[0]), text)
    found, last, before = [], "", ""
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("    ") and not before.strip() and not _in_list(last):
            found.append(number)
        if line.strip() and not line.startswith("  "):
            last = line
        before = line
    return found


def _in_list(line: str) -> bool:
    return line.startswith(LIST) or re.match(r"\d+\. ", line) is not None


BLOCKS = {page: list(blocks(page, text)) for page, text in PAGES.items()}
