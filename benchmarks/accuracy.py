"""PFedRec against its published figures, and the leak laid bare: means over seeds, in percent.

    python benchmarks/accuracy.py [--seeds 3] [--data ml-100k ml-1m] [--runs runs/accuracy]

Finished runs in the folder are used again, interrupted ones are continued.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from statistics import fmean, stdev

PUBLISHED = {("pfedrec", "ml-100k"): (71.62, 43.44), ("pfedrec", "ml-1m"): (73.26, 44.36)}
"""HR@10 and NDCG@10 of Table 2 of the paper, under what is here called `paper`."""

ROWS = [("pfedrec", "paper"), ("pfedrec", "clean"), ("fedmf", "clean"), ("negative-count", "paper")]
ROWS += [("negative-count", "clean"), ("popularity", "clean"), ("ease", "clean"), ("ials", "clean")]


def run(method: str, data: str, protocol: str, seed: int, runs: Path) -> dict[str, float]:
    """Test metrics of one run, trained if it is not there yet."""
    out = runs / f"{method}-{data}-{protocol}-{seed}"
    command = [sys.executable, "-m", "federec", "train"]
    if (out / "config.yaml").is_file():
        command += ["--resume", str(out), "--quiet"]
    else:
        command += [method, "--data", data, "--protocol", protocol, "--seed", str(seed), "--out", str(out), "--quiet"]
    if not (out / "result.json").is_file():
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    metrics: dict[str, float] = json.loads((out / "result.json").read_text())["test"]["sampled"]
    return metrics


def spread(values: list[float]) -> str:
    """Mean and standard deviation."""
    return f"{fmean(values):6.2f}" + (f" ± {stdev(values):4.2f}" if len(values) > 1 else "       ")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", nargs="+", default=["ml-100k", "ml-1m"])
    parser.add_argument("--runs", type=Path, default=Path("runs/accuracy"))
    asked = parser.parse_args()
    print(f"{'data':<10} {'method':<15} {'protocol':<9} {'HR@10':>13}  {'NDCG@10':>13}  published")
    for data in asked.data:
        for method, protocol in ROWS:
            results = [run(method, data, protocol, seed, asked.runs) for seed in range(asked.seeds)]
            hr, ndcg = (spread([100 * r[metric] for r in results]) for metric in ("hr@10", "ndcg@10"))
            known = PUBLISHED.get((method, data)) if protocol == "paper" else None
            published = f"{known[0]} / {known[1]}" if known else ""
            print(f"{data:<10} {method:<15} {protocol:<9} {hr}  {ndcg}  {published}", flush=True)


if __name__ == "__main__":
    main()
