"""Cold start: how methods rank for new devices that know 0, 1, 3 or 5 items, and where they put new items.

    python benchmarks/cold_start.py [--data ml-100k] [--methods pfedrec ...] [--seeds 0 1 2] [--runs DIR] [--page]

Each method is trained with its `clean` preset and evaluated as `federec evaluate --cold-start` does. A line of
docs/results/cold-start.jsonl is one run; what is there is not trained again. `--page` writes docs/results/cold-start.md
from the lines.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean, stdev
from tempfile import TemporaryDirectory
from typing import Any

from page import DOCS, machine, table

RECORDS, PAGE = DOCS / "results" / "cold-start.jsonl", DOCS / "results" / "cold-start.md"
METHODS = ("pfedrec", "fedmf", "fedrap", "fedease", "fednext")
KNOWN = ("0", "1", "3", "5")
Line = dict[str, Any]


def lines() -> list[Line]:
    """What was measured so far."""
    return [json.loads(line) for line in RECORDS.read_text(encoding="utf-8").splitlines()] if RECORDS.exists() else []


def measure(method: str, data: str, seed: int, runs: Path) -> Line:
    """Train, or take the run that is there, and evaluate."""
    from federec.methods.presets import RUN_SETTINGS, preset
    from federec.plugins.registry import build
    from federec.runtimes.cold import cold_start
    from federec.runtimes.local import train
    from federec.runtimes.run import Run

    path = runs / f"{data}-{method}-{seed}"
    if (path / "result.json").exists():
        run = Run.load(path)
    else:
        values = dict(preset(method, "clean", data=data))
        settings = {name: values.pop(name) for name in RUN_SETTINGS if name in values}
        run = train(build(method, (), values), data, seed=seed, out=path, progress=False, **settings)
    return {"data": data, "method": method, "seed": seed, **cold_start(run)}


def page(found: list[Line]) -> str:
    """The page, a function of the lines."""
    data = found[0]["data"]
    seeds = sorted({line["seed"] for line in found})
    methods = list(dict.fromkeys(line["method"] for line in found))
    popular = figure([line["popularity"]["full"]["ndcg@10"] for line in found if line["method"] == methods[0]])
    rows, sampled, items = [], [], []
    for method in methods:
        own = [line for line in found if line["method"] == method]
        for ranking, into in (("full", rows), ("sampled", sampled)):
            metric = "ndcg@10" if ranking == "full" else "hr@10"
            cells = [figure([line["users"][known][ranking][metric] for line in own]) for known in KNOWN]
            into.append([f"`{method}`", *cells, figure([line["trained"][ranking][metric] for line in own])])
        new = [line["new_items"] for line in own]
        drawn = [each["random_row"] for each in new if "random_row" in each]
        items.append([f"`{method}`", percent([each["mean_row"] for each in new]), percent(drawn) if drawn else "-"])
    worse = [
        f"`{method}`"
        for method in methods
        if mean(line["users"]["0"]["full"]["ndcg@10"] for line in found if line["method"] == method)
        < mean(line["popularity"]["full"]["ndcg@10"] for line in found if line["method"] == method) - 0.003
    ]
    verdict = f"On {data}, a device without items gets about what popularity gives: NDCG@10 is at most 0.003 behind"
    if worse:
        verdict += f", but with {', '.join(worse)} further (not if ranked among 99)"
    head = ["method", *(f"{known} {'item' if known == '1' else 'items'}" for known in KNOWN), "devices of the run"]
    fair = found[0]["new_items"]["fair"]
    reference = ["popularity", popular, popular, popular, popular, popular]
    sampled_popular = figure([line["popularity"]["sampled"]["hr@10"] for line in found if line["method"] == methods[0]])
    return f"""# Cold start

After reading this page you know how well a device is served that has just joined, and how often new items are
recommended. Measure it for a run of your own:

```bash
federec train fedmf --data tastes --rounds 3 --out runs/cold
federec evaluate runs/cold --cold-start
```

{verdict}. With one item every method is ahead of popularity.

## New devices

NDCG@10 of the test item among all items, {data}, protocol `clean`, presets `clean`, mean and standard
deviation of {len(seeds)} seeds:

{table(head, [reference, *rows])}

HR@10 of the test item among 99 others:

{table(head, [["popularity", *[sampled_popular] * 5], *sampled])}

Users of the test stand in for new devices. Each has the shared parameters and its last items before the test item, and
nothing that it learned in the run. The shared parameters were trained with these users taking part, as one among all.
New devices know the newest items, of which the last is the validation item. The devices of the run learned from all
items but that one, whatever their age: a few new items can be worth more than a long history.

What a new device does depends on its method:

* `fedease` and `fednext` read the history when they score, so a new device is like any other. Without items `fedease`
  ranks by the diagonal of the sum that its server has, which is popularity; `fednext` as if the device had every item.
* `pfedrec`, `fedmf` and `fedrap` fit the private score layer in 20 steps with the method's own rate, the item rows
  frozen (`federation/newcomers.py`); `fedrecon` in as many steps as its setting `passes`. Tried without success: ridge
  regression in closed form. Without items they score with the parameters that every device starts with. Items that many
  devices took have moved towards these, so that is close to popularity, and nobody had to count anything.
* Methods in closed form play one local round, all others 20. Nothing of it is sent.

Nothing more is sent for this than in training: a server only uses sums that it has anyway.

## New items

One new item was added for every 20, with the mean row of all others (no weight, in `fedease` and `fednext`). Fraction
of the first ten places that they take, on the first 256 devices, which know 5 items; {fair:.1%} of the catalogue is
new; mean and standard deviation of {len(seeds)} seeds:

{table(["method", "with the mean row", "with rows drawn at random"], items)}

`federec federation add-items` gives new items the mean row, so that they stand in the middle of the catalogue, below
what is recommended, until devices take them. With rows drawn at random, as training begins with, new items of some
methods would crowd into the lists of everybody, because training has pushed most other rows down.

<!-- not run: trains for minutes -->
```bash
python benchmarks/cold_start.py --data {data} --seeds {" ".join(map(str, seeds))} --page
```

Machine: {machine()}.
"""


def figure(values: list[float]) -> str:
    """Mean and standard deviation."""
    return f"{mean(values):.3f} ± {stdev(values) if len(values) > 1 else 0:.3f}"


def percent(values: list[float]) -> str:
    return f"{100 * mean(values):.1f} ± {100 * stdev(values) if len(values) > 1 else 0:.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="ml-100k")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, help="folder of the runs; default: a temporary one")
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    with TemporaryDirectory() as temporary:
        for seed in asked.seeds:
            for method in asked.methods:
                known = {(line["data"], line["method"], line["seed"]) for line in lines()}
                if (asked.data, method, seed) in known:
                    continue
                line = measure(method, asked.data, seed, asked.runs or Path(temporary))
                with RECORDS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                print(
                    method,
                    seed,
                    {known: round(line["users"][known]["full"]["ndcg@10"], 4) for known in KNOWN},
                    flush=True,
                )
    if asked.page:
        order = {method: place for place, method in enumerate(asked.methods)}
        found = [line for line in lines() if line["data"] == asked.data and line["method"] in order]
        PAGE.write_text(page(sorted(found, key=lambda line: (order[line["method"]], line["seed"]))), encoding="utf-8")


if __name__ == "__main__":
    main()
