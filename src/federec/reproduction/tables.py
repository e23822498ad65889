"""What a results page says of one data set: figures, claims, settings, and what is missing."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from html import escape
from statistics import fmean, stdev
from typing import Any

from federec.reproduction.cells import Row
from federec.reproduction.claims import Asked, Claim, listed
from federec.reproduction.found import DECIDING, Finished, Found, best
from federec.reproduction.grids import Grid, kinds_of

Published = Mapping[tuple[str, str, str], float]
"""(row label, data, metric) -> percent, as printed in the paper."""
COLUMNS = (("tuned", "full"), ("clean", "full"), ("paper", "sampled"))
"""Kind and ranking of the columns of a published table; what decides comes first. The CSV has all others."""
TUNED_COLUMNS = (("tuned", "full"), ("tuned", "fresh full"), ("tuned", "sampled"))
"""Those of a page that has only tuned rows."""
METRICS = ("ndcg@10", "hr@10")
NEAR = 2.0
"""Points of HR@10 within which a published figure counts as reached."""
SLASH = "\u00a0/ "  # the unbreakable space lets a narrow cell break between the metrics, not inside one


def markdown(heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    rule = "|" + " --- |" * len(heads)
    return "\n".join([f"| {' | '.join(heads)} |", rule, *(f"| {' | '.join(line)} |" for line in lines)]) + "\n"


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation over seeds."""
    if not values:
        return ""
    return f"{fmean(values):.2f}" + (f"\u00a0±\u00a0{stdev(values):.2f}" if len(values) > 1 else "")


def figures(
    grid: Grid, data: str, found: Found, known: Published, verdicts: Mapping[str, Mapping[str, str]] | None = None
) -> str:
    """One line per row: a column for each kind and ranking that any row has, the published figures, the bytes sent.
    `verdicts` are further columns, which come first: head -> row label -> text. Rows with verdicts are in the order of
    what decides, the best first."""
    rows = [row.label for row in grid.rows if any((row.label, data, kind) in found for kind in DECIDING)]
    if verdicts:
        rows.sort(key=lambda label: -fmean(found.get((label, data, "tuned"), Finished()).values() or [0.0]))
    shown = {head: [texts.get(label, "") for label in rows] for head, texts in (verdicts or {}).items()}
    only_tuned = grid.kinds == ("tuned",)
    for kind, ranking in TUNED_COLUMNS if only_tuned else COLUMNS:
        groups = [found.get((label, data, kind), Finished()) for label in rows]
        name = ranking if ranking != "fresh full" else "full, fresh"
        cells = [SLASH.join(filter(None, (spread(g.values(ranking, m)) for m in METRICS))) for g in groups]
        shown[name if only_tuned else f"{kind} {name}"] = cells
    printed = [[known[key] for metric in METRICS if (key := (label, data, metric)) in known] for label in rows]
    if any(shown.get("paper sampled", ())):  # nothing else can be compared with them
        shown["published"] = [SLASH.join(f"{value:.2f}" for value in values) for values in printed]
    shown = {name: cells for name, cells in shown.items() if any(cells)}
    shown["sent"] = [_sent(label, data, found) for label in rows]
    lines = [[label, *cells] for label, *cells in zip(rows, *shown.values(), strict=True)]
    note = "Each figure is NDCG@10 / HR@10. `sent` is what a device sends in a round; centralised methods send nothing."
    return markdown(["method", *shown], lines) + f"\n{note} {_seeds(rows, data, found)}\n"


def _sent(label: str, data: str, found: Found) -> str:
    group = next(group for kind in DECIDING if (group := found.get((label, data, kind))))
    sizes = [result["communication"]["up_bytes_per_device_round"] for result in group.results]
    known = [count for count in sizes if count is not None]
    return size(fmean(known)) if known else ""


def size(count: float) -> str:
    """A number of bytes with its unit."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g}\u00a0{unit}"
        count /= 1000
    return f"{count:.3g}\u00a0GB"


def _seeds(labels: Sequence[str], data: str, found: Found) -> str:
    """The seeds of each kind, and the rows that have others than most."""
    sentences = []
    for kind in DECIDING:
        seeds = {label: sorted(group.seeds) for label in labels if (group := found.get((label, data, kind)))}
        if not seeds:
            continue
        sets = [*seeds.values()]
        usual = max(sets, key=sets.count)
        others = [f"{label} {listed([*map(str, own)])}" for label, own in seeds.items() if own != usual]
        aside = f" ({'; '.join(others)})" if others else ""
        sentences.append(f"Seeds of `{kind}`: {listed([*map(str, usual)])}{aside}.")
    return " ".join(sentences)


def leading(grid: Grid, data: str, found: Found) -> str:
    """The best methods on this data set, in a sentence; empty where no row was run under `clean`."""
    for kind, settings in (("tuned", "tuned settings"), ("clean", "the papers' settings")):
        named = []
        for federated, name in ((True, "federated"), (False, "centralised")):
            labels = [row.label for row in grid.rows if row.federated is federated]
            if first := best(labels, data, kind, found):
                named.append(f"the best {name} method is **{first[0]}** with {first[1]:.2f}")
        if named:
            return f"By NDCG@10 against all items, with {settings}, {listed(named)}.\n"
    return "Only `paper` was run here, which compares with the published figures and decides nothing.\n"


def judged(grid: Grid, data: str, claims: Mapping[Asked, Claim]) -> str:
    """What the claims say on this data set, in a sentence or two, and then as a table."""
    here = {(first, second): claim for (first, second, name), claim in claims.items() if name == data}
    if not here:
        return "No claim of this page can be judged here yet.\n" if grid.claims else ""
    sentences = []
    for word, said in (("better", "is better than"), ("worse", "is worse than")):
        pairs = [f"{a} {said} {b} ({c.points} points)" for (a, b), c in here.items() if c.verdict == word]
        if pairs:
            sentences.append(f"{listed(pairs)}.")
    for word, said in (
        ("no clear difference", "There is no clear difference"),
        ("no claim", "There are too few seeds for a claim"),
    ):
        pairs = [f"between {a} and {b}" for (a, b), claim in here.items() if claim.verdict == word]
        if pairs:
            sentences.append(f"{said} {listed(pairs)}.")
    lines = [
        [f"{a} against {b}", c.verdict, interval(c), significance(c), f"{c.sampled[0]:+.2f}", c.kind]
        for (a, b), c in here.items()
    ]
    heads = ["claim", "verdict", "full NDCG@10", "p", "sampled HR@10", "settings"]
    return " ".join(sentences) + "\n\n" + markdown(heads, lines)


def interval(claim: Claim) -> str:
    """The difference in points, with its 95 % interval."""
    mean, low, high = (100 * value for value in claim.difference)
    return f"{mean:+.2f} [{low:+.2f},\u00a0{high:+.2f}]"


def significance(claim: Claim) -> str:
    """The corrected p-value in words."""
    if claim.verdict == "no claim":
        return ""
    return "< 0.001" if claim.p < 0.001 else f"{claim.p:.3f}"


def settings(rows: Sequence[Row], data: str, found: Found) -> str:
    """A list that opens on demand: what was tuned for each row, and the commits of its cells."""
    items = []
    for row in rows:
        groups = {kind: group for kind in DECIDING if (group := found.get((row.label, data, kind)))}
        search = groups["tuned"].search if "tuned" in groups else None
        made = [
            f"{kind} {', '.join(group.commits)}{_devices(group)}" for kind, group in groups.items() if group.commits
        ]
        words = ([_searched(search)] if search else []) + ([f"Commits: {'; '.join(made)}."] if made else [])
        if words:
            items.append(f"<li><b>{escape(row.label)}</b>: {escape(' '.join(words))}</li>")
    if not items:
        return ""
    head = f"<summary>Tuned settings, search spaces and commits on {escape(data)}</summary>"
    return "\n".join(["<details>", head, "<ul>", *items, "</ul>", "</details>"]) + "\n"


def _devices(group: Finished) -> str:
    """What the runs were made on, where that is known."""
    devices = sorted({result["device"] for result in group.results if "device" in result})
    return f" on {listed(devices)}" if devices else ""


def folded(summary: str, heads: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table that opens on demand."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "\n".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in line)}</tr>" for line in lines)
    table = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"
    return f"<details>\n<summary>{escape(summary)}</summary>\n{table}\n</details>\n"


def _searched(search: Mapping[str, Any]) -> str:
    """What a search found, tried and looked through."""
    chosen = ", ".join(f"{key}={_short(value)}" for key, value in search["best"].items())
    space = ", ".join(f"{key} {_range(values)}" for key, values in search["space"].items())
    start = "" if search["start"] is None else f" (with the method's own settings {100 * search['start']:.2f})"
    return (
        f"{chosen or 'nothing to tune'}. {search['trials']} trials, {search['pruned']} of them stopped early; best "
        f"NDCG@10 on validation {100 * search['value']:.2f}{start}. Searched: {space or 'nothing'}."
    )


def _range(values: Sequence[Any] | Mapping[str, Any]) -> str:
    """The ends of a range, or choices."""
    if isinstance(values, Mapping):
        return f"from {_short(values['from'])} to {_short(values['to'])}"
    return "in {" + ", ".join(map(_short, values)) + "}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def missed(grid: Grid, data: str, found: Found, known: Published) -> str:
    """The published figures that `paper` does not reach, and what was tried."""
    lines = []
    for row in grid.rows:
        group, printed = found.get((row.label, data, "paper")), known.get((row.label, data, "hr@10"))
        if group is None or printed is None:
            continue
        reached = fmean(group.values("sampled", "hr@10"))
        if abs(reached - printed) > NEAR:
            side = "above" if reached > printed else "below"
            tried = grid.tried.get(row.label, "Only the default settings were tried.")
            points = f"{abs(reached - printed):.1f} points {side} the published {printed:.1f}"
            lines.append(f"- {row.label} reaches {reached:.1f}, which is {points}. {tried}")
    head = f"Further than {NEAR:g} points from the published HR@10 under `paper` are these rows:\n\n"
    return head + "\n".join(lines) + "\n" if lines else ""


def missing(grid: Grid, data: str, found: Found) -> str:
    """The rows that are planned for this data set and have not been run, or not with tuned settings."""
    absent, untuned = [], []
    for row in grid.rows:
        planned = [kind for kind in kinds_of(row, data) if kind in grid.kinds]
        known = [kind for kind in planned if (row.label, data, kind) in found]
        if planned and not known:
            absent.append(row.label)
        elif "tuned" in planned and "tuned" not in known:
            untuned.append(row.label)
    sentences = [f"Not run yet on {data}: {', '.join(absent)}."] if absent else []
    sentences += [f"Not tuned yet on {data}: {', '.join(untuned)}."] if untuned else []
    if "paper" in grid.kinds and not any(key[1:] == (data, "paper") for key in found):
        sentences.append(
            "Nothing was run under `paper` here yet, so there is nothing to compare with published figures."
        )
    return " ".join(sentences) + "\n" if sentences else ""


def as_csv(grid: Grid, data: Sequence[str], found: Found, known: Published) -> str:
    """All figures of a page."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    heads = ["data", "method", "kind", "ranking", "metric", "seeds", "mean_percent", "std_percent", "published"]
    writer.writerow([*heads, "commit"])
    for key in ((row.label, name, kind) for name in data for row in grid.rows for kind in DECIDING):
        label, name, kind = key
        group = found.get(key, Finished())
        for ranking in ("full", "sampled", "fresh full", "fresh sampled"):
            for metric in METRICS:
                if values := group.values(ranking, metric):
                    std = f"{stdev(values):.4f}" if len(values) > 1 else ""
                    printed = known.get((label, name, metric), "") if (kind, ranking) == ("paper", "sampled") else ""
                    counted = [len(values), f"{fmean(values):.4f}", std, printed, " ".join(group.commits)]
                    writer.writerow([name, label, kind, ranking, metric, *counted])
    return text.getvalue()


def budget(found: Found) -> str:
    """With how many trials and seeds the tuned rows were measured, in a sentence or two."""
    tuned = {key: group for key, group in found.items() if key[2] == "tuned"}
    trials = sorted({group.search["trials"] for group in tuned.values() if group.search} - {0})
    if not trials:
        return "No row was tuned."
    fixed = listed(
        list(dict.fromkeys(label for (label, _, _), group in tuned.items() if not (group.search or {}).get("trials")))
    )
    count = f"{'up to ' * (len(trials) > 1)}{trials[-1]}"
    seeds = sorted({seed for group in tuned.values() for seed in group.seeds})
    return (
        f"Where a row has tuned figures, it was tuned on that data set with the same budget: {count} trials, chosen by "
        "Optuna's TPE sampler or, for closed forms, from a grid of at most as many, and judged by NDCG@10 against all "
        f"items on validation. They come from runs with the seeds {listed([*map(str, seeds)])}, unless fewer are named"
        + (f". There was nothing to tune for {fixed}." if fixed else ".")
    )
