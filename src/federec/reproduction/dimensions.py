"""How many dimensions of their item tables the methods of a page use, from the notes of every round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from federec.reproduction.cells import Row
from federec.reproduction.drawings.look import LIGHT
from federec.reproduction.figures import pyplot, svg
from federec.reproduction.found import Found
from federec.runs.folder import Line

_RANK, _SPECTRUM, _MIX = "effective rank", "spectrum", "mixing weight"


def noted(rows: Sequence[Row], data: str, found: Found) -> dict[str, list[Line]]:
    """Row label -> the noted rounds of its first run with the papers' settings under `clean`, if all of them say
    something about the item table."""
    notes: dict[str, list[Line]] = {}
    for row in rows:
        group = found.get((row.label, data, "clean"))
        lines = group.results[0].get("notes", []) if group else []
        if lines and all(any(name.endswith(_RANK) for name in line.get("notes", ())) for line in lines):
            notes[row.label] = lines
    return notes


def table(found: dict[str, list[Line]]) -> str:
    """One line per row: effective rank of the item table, fraction of the largest singular value and mixing weight of
    the devices, each in the first and in the last round."""
    lines = ["| one run under clean | effective rank | largest singular value, fraction of the sum | mixing weight |"]
    lines.append("|" + " --- |" * 4)
    for label, rounds in found.items():
        ends = [line["notes"] for line in (rounds[0], rounds[-1])]
        ranks = " to ".join(f"{_one(notes, _RANK):.1f}" for notes in ends)
        fractions = " to ".join(f"{_one(notes, _SPECTRUM)[0] / sum(_one(notes, _SPECTRUM)):.2f}" for notes in ends)
        mixes = " to ".join(f"{notes[_MIX]:.2f}" for notes in ends if _MIX in notes)
        lines.append(f"| {label} | {ranks} | {fractions} | {mixes} |")
    note = (
        "From the first round to the last. Effective rank is exp(entropy) of the singular values divided by their sum."
    )
    return f"{_opening(found)}\n\n" + "\n".join(lines) + f"\n\n{note}\n"


def _opening(found: dict[str, list[Line]]) -> str:
    """By how much the plug-in changes the effective rank in the last round, in a sentence."""
    last = {label: _one(rounds[-1]["notes"], _RANK) for label, rounds in found.items()}
    changes = [
        f"from {last[base]:.1f} to {rank:.1f} for {base}"
        for label, rank in last.items()
        if (base := label.removesuffix("+plgc")) != label and base in last
    ]
    if not changes:
        return "How many dimensions of the item table are used:"
    return f"In the last round PLGC changes the effective rank of the item table {', '.join(changes)}."


def figure(found: dict[str, list[Line]]) -> str:
    """A figure of effective rank and mixing weight by round, and of the last spectrum, as SVG text."""
    panels, (rank, spectrum, mix) = pyplot.subplots(1, 3, figsize=(11, 4.6), layout="constrained")
    methods = list(dict.fromkeys(label.split("+")[0] for label in found))
    variants = list(dict.fromkeys(label.partition("+")[2] for label in found))
    for label, rounds in found.items():
        method, _, variant = label.partition("+")
        look = {
            "color": LIGHT.colour(methods.index(method)),
            "linestyle": ("-", "--", ":", "-.")[variants.index(variant) % 4],
            "label": label,
        }
        numbers = [line["round"] for line in rounds]
        rank.plot(numbers, [_one(line["notes"], _RANK) for line in rounds], **look)
        values = _one(rounds[-1]["notes"], _SPECTRUM)
        spectrum.plot(range(1, len(values) + 1), [value / values[0] for value in values], **look)
        if _MIX in rounds[-1]["notes"]:
            mix.plot(numbers, [line["notes"][_MIX] for line in rounds], **look)
    for axes, (x, y) in zip(
        (rank, spectrum, mix),
        (("round", _RANK), ("dimension", "singular value over the largest"), ("round", _MIX)),
        strict=True,
    ):
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.grid(alpha=0.3)
    handles, labels = rank.get_legend_handles_labels()
    panels.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    return svg(panels)


def _one(notes: dict[str, Any], kind: str) -> Any:
    """The note of this kind on the method's item table, or on the first of several."""
    return next(value for name, value in notes.items() if name.endswith(kind))
