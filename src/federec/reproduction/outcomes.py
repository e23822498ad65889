"""What the tuned runs say about a method or plug-in, for its page: verdicts in words, tables, and what is missing."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from federec.reproduction.claims import Asked, Claim, listed
from federec.reproduction.found import Finished, Found
from federec.reproduction.grids import GRIDS, TUNED, Grid, has_order
from federec.reproduction.questions import QUESTIONS
from federec.reproduction.records import Book
from federec.reproduction.summary import judged_pairs, tell, tuned_runs
from federec.reproduction.tables import METRICS, SLASH, markdown, size, spread

Pair = tuple[str, str]
REFERENCES = ("popularity", "ease")
"""What the figures of a row stand beside where no claim is about it."""
_NOTE = (
    "Each cell is NDCG@10 / HR@10 against all items, in percent: mean ± standard deviation over seeds. Settings were "
    "searched on validation under `clean`, with one budget for every method. Verdicts are those of "
    "[What survives](../results/summary.md), after Holm's correction."
)


class Measured(NamedTuple):
    """All finished tuned runs, and what they say."""

    found: Found
    claims: Mapping[Asked, Claim]


def measured(book: Book) -> Measured:
    """What the records hold."""
    found = tuned_runs(book, TUNED.data)
    return Measured(found, judged_pairs(found))


def outcome(name: str, known: Measured, pages: Collection[str] = ()) -> str:
    """Markdown on a method or plug-in. `pages` are the names of the results pages that it may point to."""
    labels = [row.label for row in TUNED.rows if row.label == name or name in row.plugins]
    asked = list(dict.fromkeys(pair for question in QUESTIONS for pair in question.all_pairs))
    judged = [pair for pair in asked if pair[0] in labels]
    parts = [_sentences(judged, known), *_tables(labels, judged, known)]
    if against := _sentences([pair for pair in asked if pair[1] in labels and pair not in judged], known):
        parts += [f"Others are judged against it:\n\n{against}"]
    parts += [_NOTE] if any(label == key[0] for label in labels for key in known.found) else []
    parts += [_missing(labels, known.found), _elsewhere(name, pages)]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _sentences(pairs: Sequence[Pair], known: Measured) -> str:
    told = [tell(pair, TUNED.data, known.claims) for pair in pairs]
    return "\n".join(
        f"- **{first} against {second}.** {text}" for (first, second), text in zip(pairs, told, strict=True) if text
    )


def _tables(labels: Sequence[str], judged: Sequence[Pair], known: Measured) -> list[str]:
    """A table for each row: beside what it is judged against first, or beside references."""
    tables = []
    for label in labels:
        baseline = next((second for first, second in judged if first == label), None)
        columns = [label, baseline] if baseline else [label, *(each for each in REFERENCES if each != label)]
        lines = []
        for name in TUNED.data:
            if (label, name, "tuned") in known.found:
                claim = known.claims.get((label, baseline, name)) if baseline else None
                verdict = f"{claim.verdict} ({claim.points})" if claim else "not judged yet"
                cells = [_figures(known.found.get((column, name, "tuned"))) for column in columns]
                lines.append([name, verdict, *cells] if baseline else [name, *cells])
        if lines:
            heads = ["data", *([f"verdict against {baseline}"] if baseline else []), *columns]
            tables.append(markdown(heads, lines))
    return tables


def _figures(group: Finished | None) -> str:
    return SLASH.join(spread(group.values("full", metric)) for metric in METRICS) if group else "not measured yet"


def _missing(labels: Sequence[str], found: Found) -> str:
    """The rows and data sets without finished tuned runs."""
    if not labels:
        return "It is not among the rows that are tuned for the results pages."
    sentences, never = [], []
    for label in labels:
        wanted = [name for name in TUNED.data if has_order(label, name)]
        absent = [name for name in wanted if (label, name, "tuned") not in found]
        if absent == wanted:
            never.append(f"`{label}`")
        elif absent:
            sentences.append(f"`{label}` has not been measured yet with tuned settings on {listed(absent)}.")
    if never:
        verb = "has" if len(never) == 1 else "have"
        sentences.append(f"{listed(never)} {verb} not been measured yet with tuned settings on any data set.")
    if without := [name for name in TUNED.data if not has_order(labels[0], name)]:
        sentences.append(f"{listed(without)} have no times, so they are left out: it learns from the order of items.")
    return " ".join(sentences)


def _elsewhere(name: str, pages: Collection[str]) -> str:
    """The pages of published tables that have the method or plug-in."""

    def has(grid: Grid) -> bool:
        return any(name == row.method or name in row.plugins for row in grid.rows)

    links = [
        f"[{grid.title.partition(':')[0]}](../results/{grid.name}.md)"
        for grid in GRIDS.values()
        if grid is not TUNED and grid.name in pages and has(grid)
    ]
    return f"With settings that were not tuned: {listed(links)}." if links else ""


def sent(label: str, found: Found) -> str:
    """What a device sends and receives in a round, measured on the first data set that has the row; empty for none."""
    for name in TUNED.data:
        if group := found.get((label, name, "tuned")):
            traffic = [result["communication"] for result in group.results]
            ways = [[each[f"{way}_bytes_per_device_round"] for each in traffic] for way in ("up", "down")]
            if any(None in way for way in ways):
                return ""
            up, down = (size(fmean(way)) for way in ways)
            return f"on {name}, with tuned settings, a device sent {up} and received {down} in a round, on average."
    return ""
