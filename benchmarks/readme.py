"""The first screen of README.md: three numbers and the picture that shows them.

    python benchmarks/readme.py            # measure (minutes), write the figures, the picture, README.md
    python benchmarks/readme.py --check    # exit code 1 if the picture or README.md is not what the files below say

The leak and the accuracy are measured here and kept in docs/first-screen.json; finished runs are not repeated. The
speed is that of docs/benchmarks.md (`python benchmarks/peers.py --page`).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
DOCS, README = ROOT / "docs", ROOT / "README.md"
FIGURES, PICTURE = DOCS / "first-screen.json", DOCS / "first-screen.svg"
DATA = "ml-1m"
FEDERATED, CENTRALISED = ("fednext", "fedals"), ("ease", "ials")
"""What is compared. The centralised ones are the best that do not use the order of a history."""
SEEDS = (0, 1, 2)
SECTION = re.compile(r"(<!-- first screen -->\n).*?(<!-- end first screen -->\n)", re.S)


class Bar(NamedTuple):
    """One figure of a panel."""

    label: str
    value: float
    text: str


class Panel(NamedTuple):
    """One of the three parts of the picture."""

    title: str
    headline: str
    unit: str
    bars: tuple[Bar, Bar]
    good: int
    """Which of the bars is drawn in colour."""


Figures = dict[str, dict[str, float]]


def measure() -> Figures:
    """What docs/first-screen.json has.

    `leak`: HR@10 against 99 items of the control that learns nothing, by protocol; the round is chosen by the same
    metric under both, so that only the leak differs. `accuracy`: NDCG@10 on ML-1M among all items under `clean`, mean
    of the seeds, by method."""
    import federec as fr

    data, given = fr.load("tastes"), {"select": "sampled.hr@10"}
    runs = {name: fr.train("negative-count", data, protocol=name, **given) for name in ("paper", "clean")}
    leak = {name: run.test["sampled"]["hr@10"] for name, run in runs.items()}
    data = fr.load(DATA)
    accuracy = {}
    for name in (*FEDERATED, *CENTRALISED):
        folders = [ROOT / "runs" / "first-screen" / f"{name}-s{seed}" for seed in SEEDS]
        found = [
            fr.Run.load(folder, data) if folder.exists() else fr.train(name, data, seed=seed, out=folder)
            for seed, folder in zip(SEEDS, folders, strict=True)
        ]
        accuracy[name] = sum(run.test["full"]["ndcg@10"] for run in found) / len(found)
        print(f"{name}: {accuracy[name]:.4f}", flush=True)
    return {"leak": leak, "accuracy": accuracy}


def speed() -> tuple[float, float]:
    """Seconds of a round of PFedRec on ML-1M: written as released code is, and in federec."""
    row = re.search(
        rf"^\| pfedrec, {DATA} \| ([\d.]+) \| ([\d.]+) \|", (DOCS / "benchmarks.md").read_text("utf-8"), re.M
    )
    assert row, f"docs/benchmarks.md has no row of pfedrec on {DATA}: python benchmarks/peers.py --page"
    return float(row[1]), float(row[2])


def best(figures: Figures, names: tuple[str, ...]) -> tuple[str, float]:
    """The one of these methods that ranks best, and its NDCG@10."""
    return max(((name, figures["accuracy"][name]) for name in names), key=lambda found: found[1])


def panels(figures: Figures) -> list[Panel]:
    """The three reasons."""
    (slow, quick), control = speed(), figures["leak"]
    (ours, high), (theirs, low) = best(figures, FEDERATED), best(figures, CENTRALISED)
    return [
        Panel(
            "Evaluation that does not leak.",
            f"{control['paper']:.3f} → {control['clean']:.3f}",
            "HR@10 of a control that learns nothing",
            (
                Bar("paper", control["paper"], f"{control['paper']:.3f}"),
                Bar("clean", control["clean"], f"{control['clean']:.3f}"),
            ),
            1,
        ),
        Panel(
            "Fast enough to measure again.",
            f"{slow / quick:.0f} times faster",
            "CPU seconds a round, PFedRec on ML-1M",
            (
                Bar("client by client, like released code", slow, f"{slow:.0f} s"),
                Bar("federec", quick, f"{quick:.2f} s"),
            ),
            1,
        ),
        Panel(
            "Federated need not mean worse.",
            f"{high:.3f} vs {low:.3f}",
            "NDCG@10 among all items, ML-1M, clean",
            (
                Bar(f"{theirs}, pooled, without order", low, f"{low:.3f}"),
                Bar(f"{ours}, federated", high, f"{high:.3f}"),
            ),
            1,
        ),
    ]


STYLE = """
  .card { fill: #ffffff; stroke: #d0d7de } .title { fill: #1f2328; font-weight: 600 } .big { fill: #0a7d5a }
  .small, .label { fill: #59636e } .value { fill: #1f2328 } .other { fill: #afb8c1 } .good { fill: #1a9f76 }
  text { font-family: -apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif; font-size: 13px }
  .title { font-size: 14px } .big { font-size: 24px; font-weight: 700 }
  @media (prefers-color-scheme: dark) {
    .card { fill: #151b23; stroke: #3d444d } .title, .value { fill: #f0f6fc } .big { fill: #3fd4a0 }
    .small, .label { fill: #9198a1 } .other { fill: #656c76 } .good { fill: #2fb98b }
  }
"""
WIDTH, HEIGHT, GAP = 300, 202, 14


def draw(parts: list[Panel]) -> str:
    """The picture: a card for each panel, with a background of its own, so that it can be read on any page."""
    size = f"{len(parts) * (WIDTH + GAP) + GAP} {HEIGHT + 2 * GAP}"
    words = "; ".join(f"{part.title} {part.headline}" for part in parts)
    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" role="img" aria-label="{escape(words)}">']
    lines += [f"<style>{STYLE}</style>"]
    for number, part in enumerate(parts):
        lines += [f'<g transform="translate({GAP + number * (WIDTH + GAP)} {GAP})">', *_card(part), "</g>"]
    return "\n".join([*lines, "</svg>", ""])


def _card(part: Panel) -> list[str]:
    left, wide, most = 18, WIDTH - 36, max(bar.value for bar in part.bars)
    lines = [f'<rect class="card" width="{WIDTH}" height="{HEIGHT}" rx="10"/>']
    lines += [_text(left, 32, "title", part.title), _text(left, 68, "big", part.headline)]
    lines += [_text(left, 90, "small", part.unit)]
    for number, bar in enumerate(part.bars):
        y, length = 118 + 42 * number, max(3.0, (wide - 60) * bar.value / most)
        lines += [_text(left, y, "label", bar.label)]
        lines += [
            f'<rect class="{"good" if number == part.good else "other"}" x="{left}" y="{y + 6}" '
            f'width="{length:.1f}" height="14" rx="3"/>'
        ]
        lines += [_text(left + length + 8, y + 18, "value", bar.text)]
    return lines


def _text(x: float, y: float, class_: str, text: str) -> str:
    return f'<text class="{class_}" x="{x:.1f}" y="{y}">{escape(text)}</text>'


def written(parts: list[Panel], figures: Figures) -> str:
    """README.md with the section of the numbers as it should be."""
    (slow, quick), control = speed(), figures["leak"]
    (ours, high), (theirs, low) = best(figures, FEDERATED), best(figures, CENTRALISED)
    alt = "; ".join(f"{part.title} {part.headline}" for part in parts)
    section = f"""![{alt}](docs/first-screen.svg)

* **Honest.** A control that learns nothing scores HR@10 {control["paper"]:.3f} under `paper`, the protocol of PFedRec's
  and FedRAP's published code, and {control["clean"]:.3f} under `clean`, federec's default (built-in data, against 99
  sampled items): [protocols](docs/protocols.md).
* **Fast.** A round of PFedRec on ML-1M takes {quick:.2f} s; client by client in plain PyTorch, like the released code,
  {slow:.0f} s, {slow / quick:.0f} times as long (one thread): [benchmarks](docs/benchmarks.md).
* **Good.** On ML-1M `{ours}`, which learns from the order of histories by sums over devices, has NDCG@10
  {high:.3f} among all items under `clean`. The best centralised method without order, `{theirs}`, has {low:.3f}
  (means of {len(SEEDS)} seeds): [methods](docs/methods/index.md), [results](docs/results/index.md).
"""
    page = README.read_text("utf-8")
    assert SECTION.search(page), "README.md has no marks of the first screen"
    return SECTION.sub(lambda marks: f"{marks[1]}{section}{marks[2]}", page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say whether everything is up to date")
    check = parser.parse_args().check
    figures = json.loads(FIGURES.read_text("utf-8")) if check else measure()
    parts = panels(figures)
    texts = {PICTURE: draw(parts), README: written(parts, figures)}
    if not check:
        texts[FIGURES] = json.dumps(figures, indent=2) + "\n"
    old = [path for path, text in texts.items() if not path.exists() or path.read_text("utf-8") != text]
    for path in old:
        print(f"{path.relative_to(ROOT)}: {'is out of date; run: python benchmarks/readme.py' if check else 'written'}")
        if not check:
            path.write_text(texts[path], encoding="utf-8")
    sys.exit(bool(check and old))


if __name__ == "__main__":
    main()
