"""What each protection costs on ML-100K: accuracy, bytes and seconds of a round.

    python benchmarks/protection.py                # runs what is missing of docs/protection.jsonl, then writes the page
    python benchmarks/protection.py --page-only    # only writes the table of docs/protection.md

One thread, protocol clean, full ranking. Each line of the file is one run, so an interrupted benchmark goes on where it
stopped. Seconds are compared within one engine: kernels cannot play what works on single updates.
"""

from __future__ import annotations

import argparse
import json
import re
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

from page import DOCS, table

PAGE, FILE = DOCS / "protection.md", DOCS / "protection.jsonl"
SEEDS = (0, 1, 2)
ROUNDS, DIM = 20, 8
DATA = "ml-100k"
NOTHING = "nothing"

Line = dict[str, Any]


@dataclass(frozen=True)
class Option:
    """A protection, as arguments of `fr.train`."""

    label: str
    method: str = "fedmf"
    given: dict[str, Any] = field(default_factory=dict)

    @property
    def rounds(self) -> int | None:
        return ROUNDS if self.method == "fedmf" else None


def _stages(*stages: str, **more: Any) -> dict[str, Any]:
    return {"channel": stages, **more}


OPTIONS = (
    Option(NOTHING, given={"engine": "torch"}),
    Option(f"{NOTHING}, in a kernel", given={"engine": "fused"}),
    Option("`secure-sum`", given=_stages("secure-sum")),
    Option("`clip`, `secure-sum`", given=_stages("clip:norm=30", "secure-sum")),
    Option("`--epsilon 8`: noise by the server", given={"epsilon": 8.0}),
    Option(
        "`--epsilon 8`: noise by all devices, `secure-sum`",
        given=_stages("clip:norm=30", "distributed-noise", "secure-sum", epsilon=8.0),
    ),
    Option("noise by each device", given=_stages("clip:norm=1", "dense", "gaussian:scale=5")),
    Option("aggregator `item-clip:norm=10`", given={"aggregator": "item-clip:norm=10"}),
    Option("aggregator `foolsgold`", given={"aggregator": "foolsgold"}),
    Option("aggregator `trimmed-mean`", given={"aggregator": "trimmed-mean"}),
    Option("popularity, for comparison", given={"method": "popularity"}),
    Option(NOTHING, "fedease"),
    Option("`secure-sum`", "fedease", _stages("secure-sum")),
    Option("`--epsilon 8`: noise by the server", "fedease", {"epsilon": 8.0}),
)


def play(option: Option, seed: int) -> Line:
    """One run."""
    import torch

    import federec as fr

    torch.set_num_threads(1)
    given = {"method": fr.FedMF(dim=DIM) if option.method == "fedmf" else option.method} | option.given
    rounds = None if given["method"] == "popularity" else option.rounds
    run = fr.train(data=DATA, rounds=rounds, seed=seed, progress=False, **given)
    result = run.result
    return {
        "method": option.method,
        "label": option.label,
        "seed": seed,
        "ndcg": run.test["full"]["ndcg@10"],
        "hr": run.test["full"]["hr@10"],
        "up_bytes": result["communication"]["up_bytes_per_device_round"] or 0,
        "seconds": result["seconds"]["train"] / result["rounds"],
        "epsilon": result.get("privacy", {}).get("epsilon"),
    }


def known() -> dict[tuple[str, str, int], Line]:
    """The runs that have ended."""
    lines = map(json.loads, FILE.read_text(encoding="utf-8").splitlines()) if FILE.exists() else ()
    return {(line["method"], line["label"], line["seed"]): line for line in lines}


def row(option: Option, lines: list[Line], plain: list[Line]) -> list[str]:
    """A row of the table; `plain` is the same method without any protection."""

    def mean_of(lines: list[Line], name: str) -> float:
        return mean(line[name] for line in lines)

    change = 100 * (mean_of(lines, "hr") - mean_of(plain, "hr"))
    epsilon, federated = lines[0]["epsilon"], bool(lines[0]["up_bytes"])
    return [
        option.label,
        f"{100 * mean_of(lines, 'ndcg'):.2f}",
        f"{100 * mean_of(lines, 'hr'):.2f}",
        "" if lines is plain else f"{change:+.1f}",
        f"{mean_of(lines, 'up_bytes') / 1e3:,.0f}" if federated else "",
        f"{mean_of(lines, 'seconds') / mean_of(plain, 'seconds'):.2f}" if federated else "",
        "" if epsilon is None else f"{epsilon:.1f}",
    ]


def tables(found: dict[tuple[str, str, int], Line]) -> str:
    """A table for each method."""
    head = [
        "protection",
        "NDCG@10",
        "HR@10",
        "points of HR@10",
        "kB up, a device and round",
        "time of a round",
        "epsilon",
    ]
    parts = [
        f"Test items among all items of {DATA} under `clean`, in percent, mean of {len(SEEDS)} seeds. Time is that of "
        f"learning and aggregating, for all devices, relative to the first row. {ROUNDS} rounds are few: FedMF ranks "
        "no better than popularity yet, so these figures say what a protection breaks, not what is left in the end."
    ]
    for method in dict.fromkeys(option.method for option in OPTIONS):
        chosen = [option for option in OPTIONS if option.method == method]
        groups = [[found[key] for seed in SEEDS if (key := (method, each.label, seed)) in found] for each in chosen]
        rows = [row(option, lines, groups[0]) for option, lines in zip(chosen, groups, strict=True) if lines]
        rounds = f", dim {DIM}, {ROUNDS} rounds" if method == "fedmf" else ""
        parts += [f"### `{method}`{rounds}", table(head, rows)]
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page-only", action="store_true")
    asked, found = parser.parse_args(), known()
    for seed in () if asked.page_only else SEEDS:
        for option in OPTIONS:
            if (option.method, option.label, seed) not in found:
                line = play(option, seed)
                found[option.method, option.label, seed] = line
                with FILE.open("a", encoding="utf-8") as out:
                    out.write(json.dumps(line) + "\n")
                print(option.method, option.label, seed, f"{line['ndcg']:.4f}, {line['seconds']:.2f} s", flush=True)
    page, text = PAGE.read_text(encoding="utf-8"), tables(found)
    marked = re.compile(r"(<!-- price -->\n).*?(<!-- end price -->)", re.S)
    PAGE.write_text(marked.sub(lambda mark: f"{mark[1]}{text}\n{mark[2]}", page), encoding="utf-8")


if __name__ == "__main__":
    main()
