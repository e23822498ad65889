"""The summary page: what helps under `clean` with tuned settings on each data set, generated from all finished runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from federec.files import make_folder, write_atomic
from federec.reproduction.cells import SEEDS, Cell, Row
from federec.reproduction.claims import Asked, Claim, corrected, decide, listed
from federec.reproduction.found import DECIDES, Found, best, collect
from federec.reproduction.grids import TUNED, has_order
from federec.reproduction.questions import QUESTIONS, Question
from federec.reproduction.records import Book
from federec.reproduction.tables import budget, folded, interval, markdown, significance

Leader = tuple[str, float]
"""A row's label and its NDCG@10 in percent."""
HEADLINES = 5
"""So many questions are answered in the first lines of the page."""
WITHOUT_ORDER = ("ease", "ials", "lightgcn")
"""Centralised methods that do not read the order of a history."""
TIMED = ("ml-100k", "ml-1m", "lastfm-2k", "amazon-video", "amazon-video-10")
"""Data sets that know when things happened."""
TWINS = "pfedrec", "fedmf+dualper"
"""Rows that are the same method but for a bias."""
GOAL = 10.0
"""Percent by which the best federated method should be ahead of the best centralised one without order."""


def write_summary(book: Book, out: Path, data: Sequence[str] = ()) -> Path:
    """Write `summary.md` from the finished tuned runs on these data sets, by default on all that are tuned."""
    data = data or TUNED.data
    text = summary(TUNED.rows, data, tuned_runs(book, data))
    make_folder(out)
    path = out / "summary.md"
    write_atomic(path, text)
    return path


def tuned_runs(book: Book, data: Sequence[str], may_be_none: bool = False) -> Found:
    """The finished tuned runs on these data sets."""
    cells = [Cell(row, name, "tuned", seed) for row in TUNED.rows for name in data for seed in range(SEEDS["tuned"])]
    return collect(cells, book, may_be_none)


def judged_pairs(found: Found) -> dict[Asked, Claim]:
    """What the summary of all tuned runs says, pair by pair."""
    return judge([row.label for row in TUNED.rows if row.federated], TUNED.data, found)


def judge(federated: Sequence[str], data: Sequence[str], found: Found) -> dict[Asked, Claim]:
    """All claims of the page: one family for the correction."""
    asked: list[Asked] = [(*pair, name) for question in QUESTIONS for pair in question.all_pairs for name in data]
    for name in data:
        if leaders := _leaders(federated, name, found):
            asked.append((leaders[0][0], leaders[1][0], name))
    return decide(asked, found, ["tuned"])


def summary(rows: Sequence[Row], data: Sequence[str], found: Found) -> str:
    """The page."""
    data = [name for name in data if any(key[1:] == (name, "tuned") for key in found)]
    federated = [row.label for row in rows if row.federated]
    claims = judge(federated, data, found)
    parts = [
        "# What survives\n",
        "Which published ideas help when every method is tuned alike, and by how much.\n",
        "\n".join(f"- {answer(question, data, claims)}" for question in QUESTIONS[:HEADLINES]) + "\n",
        "Points are percentage points of NDCG@10 against all items, on test. A difference is clear if it is "
        "significant after correction for all comparisons of this page "
        "([how claims are judged](index.md#how-claims-are-judged)). That a difference is not clear "
        "does not show that there is none.\n",
        "## Best federated method against the best centralised one without order\n",
        goal(federated, data, found, claims),
        _race(federated, data, found, claims),
    ]
    for question in QUESTIONS:
        head = f"## Does {question.idea} help?\n"
        parts += [head, f"{answer(question, data, claims)}\n", _answers(question, data, claims)]
    parts += ["## How this page was made\n", f"`federec reproduce summary`, from tuned runs only. {budget(found)}\n"]
    parts += [f"{corrected(claims)}\n", searched_twice(data, found)]
    return "\n".join(part for part in parts if part)


def searched_twice(data: Sequence[str], found: Found) -> str:
    """How far two rows are apart that are nearly the same method, each with a search of its own: this shows the size of
    chance in a search, which p-values do not count. Chance in seeds, and the bias, are part of it."""
    first, second = TWINS
    apart: dict[str, float] = {}
    for name in data:
        one, other = found.get((first, name, "tuned")), found.get((second, name, "tuned"))
        if one and other and one.common(other):
            apart[name] = abs(one.mean_minus(other, *DECIDES))
    if not apart:
        return ""
    most = max(apart, key=lambda name: apart[name])
    return (
        f"Chance in the search: {first} and {second} are the same model but for a bias, and each had a search of its "
        f"own. Their NDCG@10 differs by {fmean(apart.values()):.1f} points in the mean over data sets and by "
        f"{apart[most]:.1f} points at most (on {most}); chance in seeds is part of that.\n"
    )


def _known(pairs: Iterable[tuple[str, str]], data: Iterable[str], claims: Mapping[Asked, Claim]) -> dict[Asked, Claim]:
    keys = [(*pair, name) for pair in pairs for name in data]
    return {key: claims[key] for key in keys if key in claims}


def answer(question: Question, data: Sequence[str], claims: Mapping[Asked, Claim]) -> str:
    """Whether the idea helps, by how much and where, in short sentences."""
    idea = question.idea[0].upper() + question.idea[1:]
    deciding = _known(question.pairs, data, claims)
    if not deciding:
        return f"**{idea}** is not measured yet."
    sentences = [f"**{idea} {_helps(deciding)}.**", tell(question.pairs[0], data, claims)]
    if rest := _judged(_known(question.pairs[1:], data, claims)):
        named = listed(list(dict.fromkeys(f"{first} against {second}" for first, second, _ in rest)))
        better, worse = (_times(sum(c.verdict == word for c in rest.values())) for word in ("better", "worse"))
        sentences.append(f"In {_count(len(rest), 'comparison')} of {named} it is {better} better and {worse} worse.")
    sentences += [tell(pair, data, claims) for pair in question.told]
    planned = sum(
        has_order(first, name) and has_order(second, name) for first, second in question.pairs for name in data
    )
    if (count := len(_judged(deciding))) < planned:
        sentences.append(f"So far {count} of {planned} comparisons are measured.")
    return " ".join(filter(None, sentences))


def _judged(claims: Mapping[Asked, Claim]) -> dict[Asked, Claim]:
    """Those with enough seeds."""
    return {asked: claim for asked, claim in claims.items() if claim.verdict != "no claim"}


def _helps(claims: Mapping[Asked, Claim]) -> str:
    """An idea helps if more than half of the claims say so, and in some cases if more say so than say the opposite.
    That there is no clear difference does not show that there is none."""
    verdicts = [claim.verdict for claim in _judged(claims).values()]
    better, worse = verdicts.count("better"), verdicts.count("worse")
    if not verdicts:
        return "has too few seeds for a claim"
    if 2 * better > len(verdicts):
        return "helps"
    return f"helps in {better} of {len(verdicts)} comparisons" if better > worse else "shows no clear gain"


_NAMED = 3
"""Up to so many data sets a sentence names."""


def tell(pair: tuple[str, str], data: Sequence[str], claims: Mapping[Asked, Claim]) -> str:
    """`pfedrec is better than fedmf on ml-1m (+0.6 points). On 5 ...`; empty if nothing was run."""
    here = _known([pair], data, claims)
    clear: list[str] = []
    sentences: list[str] = []
    for word in ("better", "worse"):
        if some := {key: claim for key, claim in here.items() if claim.verdict == word}:
            clear.append(f"{word}{f' than {pair[1]}' if not clear else ''} on {_where(some, len(here))}")
    if clear:
        sentences.append(f"{pair[0]} is {listed(clear)}.")
    for word, said in (
        ("no clear difference", "there is no clear difference"),
        ("no claim", "there are too few seeds for a claim"),
    ):
        if some := {key: claim for key, claim in here.items() if claim.verdict == word}:
            others = "other " if clear and len(some) > 1 else "another " if clear else ""
            where = f"On {'' if others == 'another ' else f'{len(some)} '}{others}data set{'s' * (len(some) > 1)}"
            between = "" if clear else f" between {pair[0]} and {pair[1]}"
            sentences.append(f"{where} {said}{between} ({_span(some)}).")
    return " ".join(sentences)


def _where(claims: Mapping[Asked, Claim], all_: int) -> str:
    """The data sets with the differences there; of many only how many they are."""
    if len(claims) <= _NAMED:
        return listed([f"{name} ({claim.points} points)" for (_, _, name), claim in claims.items()])
    return f"{'all ' if len(claims) == all_ else ''}{len(claims)} data sets ({_span(claims)})"


def _span(claims: Mapping[Asked, Claim]) -> str:
    """The smallest and the largest difference."""
    points = [claim.points for claim in sorted(claims.values(), key=lambda claim: claim.difference.mean)]
    return f"{points[0]} points" if len(points) == 1 else f"{points[0]} to {points[-1]} points"


def _times(number: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(number, f"{number} times")


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'s' if number != 1 else ''}"


def _leaders(federated: Sequence[str], data: str, found: Found, fresh: bool = False) -> tuple[Leader, Leader] | None:
    """The best federated method and the best centralised one without order, each with its figure."""
    first, second = (best(labels, data, "tuned", found, fresh) for labels in (federated, WITHOUT_ORDER))
    return (first, second) if first and second else None


def _gain(first: Leader, second: Leader) -> float:
    """By how many percent the first figure is larger."""
    return 100 * (first[1] / second[1] - 1) if second[1] else 0.0


def goal(federated: Sequence[str], data: Sequence[str], found: Found, claims: Mapping[Asked, Claim]) -> str:
    """On which data sets with times the best federated method is ahead by `GOAL` percent, and on which not, and why."""
    sentences = []
    for fresh, start in ((False, "The best"), (True, "With fresh histories, the best")):
        ahead: dict[str, str] = {}
        behind: dict[str, str] = {}
        for name in data:
            if name in TIMED and (leaders := _leaders(federated, name, found, fresh)):
                gain, claim = _gain(*leaders), claims.get((leaders[0][0], leaders[1][0], name))
                doubt = ", not a clear difference" if not fresh and claim and claim.verdict != "better" else ""
                told = f"{name} ({leaders[0][0]}, {gain:+.1f} %{doubt if gain >= GOAL else ''})"
                (ahead if gain >= GOAL else behind)[name] = told
        if ahead or behind:
            sentences.append(
                f"{start} federated method is at least {GOAL:g} % ahead of the best centralised method without order "
                f"on {listed([*ahead.values()]) or 'no data set with times'}"
                + (f", but not on {listed([*behind.values()])}." if behind else ".")
            )
        if not fresh:
            sentences += _reasons(behind, claims)
            for label in WITHOUT_ORDER:
                if absent := [name for name in data if name in TIMED and (label, name, "tuned") not in found]:
                    sentences.append(f"Of the centralised ones {label} is not measured yet on {listed(absent)}.")
    return " ".join(sentences) + "\n" if sentences else "Nothing was run yet on data sets with times.\n"


_REASONS = {
    "better": "order helps: fednext is better than ease",
    "worse": "order does not help: fednext is worse than ease",
    "no clear difference": "order brings no clear gain: fednext is not clearly better than ease",
}


def _reasons(data: Iterable[str], claims: Mapping[Asked, Claim]) -> list[str]:
    """What order does on these data sets, where that is known."""
    named: dict[str, list[str]] = {}
    for name in data:
        if claim := claims.get(("fednext", "ease", name)):
            named.setdefault(claim.verdict, []).append(name)
    return [f"On {listed(named[verdict])} {said}." for verdict, said in _REASONS.items() if verdict in named]


def _race(federated: Sequence[str], data: Sequence[str], found: Found, claims: Mapping[Asked, Claim]) -> str:
    """The best federated method and the best centralised one without order on each data set."""
    parts = []
    for fresh in (False, True):
        lines = []
        for name in data:
            if leaders := _leaders(federated, name, found, fresh):
                claim = claims.get((leaders[0][0], leaders[1][0], name))
                verdict = [] if fresh else [claim.verdict if claim else "no common seed"]
                shown = [f"{label} {value:.2f}" for label, value in leaders]
                lines.append([name, *verdict, *shown, f"{_gain(*leaders):+.1f} %"])
        if lines:
            parts.append(markdown(["data", *["verdict"] * (not fresh), "federated", "centralised", "gain"], lines))
    if not parts:
        return ""
    note = (
        "NDCG@10 against all items in percent; the gain is relative. The best of many methods is chosen by the figures "
        "of this table, which flatters it, and its verdict, a little."
    )
    fresh_note = (
        "The same with fresh histories: methods that read a history when they score also know the validation item. The "
        "others rank as before."
    )
    return f"{parts[0]}\n{note}\n\n{fresh_note}\n\n{parts[1]}"


def _answers(question: Question, data: Sequence[str], claims: Mapping[Asked, Claim]) -> str:
    """A line for each pair of which anything was run, and below it all comparisons one by one."""
    lines, details, absent = [], [], []
    for first, second in question.all_pairs:
        here = {name: claims[first, second, name] for name in data if (first, second, name) in claims}
        if not here:
            absent.append(f"{first} against {second}")
            continue
        lines.append([f"{first} against {second}", _verdicts(here), ", ".join(map(_difference, here, here.values()))])
        for name, c in here.items():
            shown = [interval(c), significance(c), f"{c.sampled[0]:+.1f}", str(c.seeds)]
            details.append([f"{first} against {second}", name, c.verdict, *shown])
    if not lines:
        return ""
    heads = ["comparison", "data", "verdict", "NDCG@10, points", "p, corrected", "sampled HR@10, points", "seeds"]
    parts = [
        markdown(["comparison", "verdict", "points of NDCG@10; bold where clear"], lines),
        folded("Intervals and p-values", heads, details),
        f"Not run yet: {', '.join(absent)}.\n" if absent else "",
    ]
    return "\n".join(filter(None, parts))


def _verdicts(claims: Mapping[str, Claim]) -> str:
    """On how many data sets a pair has each verdict."""
    found = [claim.verdict for claim in claims.values() if claim.verdict != "no claim"]
    clear = [f"{word} on {found.count(word)}" for word in ("better", "worse") if word in found]
    if clear:
        return f"{' and '.join(clear)} of {len(found)}"
    return "no clear difference" if found else "no claim"


def _difference(name: str, claim: Claim) -> str:
    shown = f"{name}\u00a0{claim.points}".replace("-", "\u2011")  # a line never breaks inside of it
    return f"**{shown}**" if claim.verdict in ("better", "worse") else shown
