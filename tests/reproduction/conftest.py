"""Finished runs without training: ranks drawn at random, better by so many places."""

import numpy as np
import pytest

from federec.reproduction.found import Finished
from federec.reproduction.statistics import gains


@pytest.fixture
def ratings(tmp_path):
    """A small file with times."""
    random = np.random.default_rng(0)
    lines = [f"{u},{i},{t}" for u in range(12) for t, i in enumerate(random.permutation(30)[:8])]
    path = tmp_path / "small.csv"
    path.write_text("user,item,timestamp\n" + "\n".join(lines) + "\n")
    return path


@pytest.fixture
def finished():
    """A function that gives the runs of a row; rows with the same `users` are paired user by user."""

    def make(places=0, seeds=(0, 1, 2), fresh=None, search=None, commit="abc1234", users=600):
        results, ranks = [], []
        for seed in seeds:
            drawn = np.random.default_rng(seed).integers(0, 40, users)
            own = {name: np.maximum(drawn - places, 0) for name in ("full", "sampled")}
            if fresh is not None:
                own |= {f"fresh {name}": np.maximum(drawn - fresh, 0) for name in ("full", "sampled")}
            tests = {n: {m: gains(r, m).mean() for m in ("hr@10", "ndcg@10")} for n, r in own.items()}
            test = {name: tests[name] for name in ("full", "sampled")}
            if fresh is not None:
                test["fresh"] = {name: tests[f"fresh {name}"] for name in ("full", "sampled")}
            sent = {"up_bytes_per_device_round": 2000.0}
            results.append(
                {"seed": seed, "test": test, "communication": sent, "commit": commit, "rounds": 9, "device": "cpu"}
            )
            ranks.append(own)
        return Finished(results, ranks, search)

    return make


@pytest.fixture
def search():
    """What a search for settings found."""
    return {
        "trials": 24,
        "pruned": 11,
        "value": 0.071,
        "start": 0.064,
        "best": {"lr": 0.0123456, "schedule": "sin"},
        "space": {"lr": {"from": 0.01, "to": 3.0}, "schedule": ["sin", "fixed"]},
        "commit": "fff0000",
    }
