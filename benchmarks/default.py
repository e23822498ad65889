"""Why `federec train` without a method takes what it takes (`methods/default.py`).

    python benchmarks/default.py [--data tastes ml-100k ...] [--runs runs/default] [--page]

Each candidate is trained under `clean` and compared by NDCG@10 against all items on validation, which decides, and on
test. FedEASE is left out where the catalogue is larger than it is taken for. Finished runs are not repeated. With
`--page` the section of docs/accuracy.md is written too.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from page import put, table

import federec as fr
from federec.methods.default import MOST_ITEMS, TRIALS
from federec.runs.folder import RunFolder

SETS = ("tastes", "ml-100k", "ml-1m", "filmtrust", "amazon-video-10", "amazon-video", "lastfm-2k", "lastfm-listens")
CANDIDATES = {
    "fedease, recency": fr.FedEASE(**TRIALS),
    "fedease": fr.FedEASE(),
    "fedals": fr.FedALS(),
    "fedmf": fr.FedMF(),
    "pfedrec": fr.PFedRec(),
    "popularity": fr.Popularity(),
}


def cell(label: str, data: fr.Interactions, runs: Path) -> str:
    """NDCG@10 of a candidate on validation and on test; empty where it is left out."""
    method = CANDIDATES[label]
    if isinstance(method, fr.FedEASE) and (data.n_items > MOST_ITEMS or (any(method.recency) and data.times is None)):
        return ""
    folder = RunFolder(runs / f"{data.name}-{label.replace(', ', '-')}")
    result = folder.result() if folder.finished else fr.train(method, data, seed=1, out=folder.path).result
    valid, test = (result[part]["full"]["ndcg@10"] for part in ("valid", "test"))
    return f"{valid:.4f}, {test:.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=SETS)
    parser.add_argument("--runs", type=Path, default=Path("runs/default"))
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    rows = []
    for name in asked.data:
        data = fr.load(name)
        rows.append([name, f"{data.n_items:,}", *(cell(label, data, asked.runs) for label in CANDIDATES)])
        print(*rows[-1], sep="  ", flush=True)
    text = "NDCG@10 against all items under `clean`, on validation and on test; one seed. FedEASE is left out above "
    text += f"{MOST_ITEMS:,} items, and with recency where there are no times."
    text += "\n\n" + table(["data", "items", *CANDIDATES], rows)
    print(text)
    if asked.page:
        put("default", "The default method", text, page="accuracy")


if __name__ == "__main__":
    main()
