"""Methods whose server needs only sums: bytes of a device and round, and what FedEASE gains from receiving more.

python benchmarks/sums.py [--data ml-100k] [--seed 0]
"""

from __future__ import annotations

import argparse

import federec as fr
from federec.plugins.registry import build

BEST = {"l2": [400.0], "recency": [10.0], "window": [100.0]}
"""Settings near the best by validation on ML-100K, for the table over `top`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="ml-100k")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    data = fr.load(asked.data)

    def trained(name: str, rounds: int, **settings: object) -> fr.Run:
        return fr.train(build(name, (), settings), data, rounds=rounds, seed=asked.seed)

    print(f"{'method':<10} {'upload':<7} {'bytes sent':>12} {'received':>12}   in its first round")
    for name in ("fcf", "fedals", "fedease"):
        for upload in ("dense", "sparse"):
            line = trained(name, 1, upload=upload).history[0]
            print(f"{name:<10} {upload:<7} {line['up_bytes']:>12,.0f} {line['down_bytes']:>12,.0f}", flush=True)

    print(f"\n{'fedease top':<12} {'received':>12} {'HR@10':>7} {'NDCG@10':>8} {'HR@10, all items':>17}")
    for top in (10, 30, 100, 300, 0):
        run = trained("fedease", 1, top=top, **BEST)
        sampled, full = run.test["sampled"], run.test["full"]
        figures = f"{sampled['hr@10']:7.4f} {sampled['ndcg@10']:8.4f} {full['hr@10']:17.4f}"
        print(f"{top or 'all':<12} {run.history[0]['down_bytes']:>12,.0f} {figures}", flush=True)


if __name__ == "__main__":
    main()
