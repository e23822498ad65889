"""What a device that starts anew in the page gets, beside one that played all rounds of the run:

    python benchmarks/web.py                      on the built-in data
    python benchmarks/web.py --data ml-100k

Every fourth user of the data starts anew, with shared tables that were trained with their interactions, too: the page's
tables of 8 bits, of an item-item model the largest weights only; private parameters from their start, as many local
rounds as the run's best round. The held-out item is ranked among all items that are not in the user's training items,
by the run's devices and by the page's.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from page import put, table
from safetensors.numpy import load

import federec as fr
from federec.cohort.draw import Devices
from federec.export.precision import restored
from federec.federation.channel import Channel
from federec.federation.device import learn
from federec.federation.scoring import score_global, score_own
from federec.federation.state import State
from federec.methods.base import DeviceMethod
from federec.web.folder import page_files

METHODS = ("fedease", "pfedrec", "fedmf")
EVERY = 4
"""Every fourth user is ranked for: learning for all of them again in torch takes long."""


def page_shared(run: fr.Run, files: dict[str, bytes]) -> dict[str, torch.Tensor]:
    """The shared parameters as the page reads them."""
    stored, shared = load(files["model.safetensors"]), dict(run.point.best_state.shared)

    def read(role: str) -> torch.Tensor:
        return torch.from_numpy(restored({"values": stored[f"{role}.values"], "scales": stored[f"{role}.scales"]}))

    if "ids" in stored:
        ids = torch.from_numpy(stored["ids"].astype(np.int64))
        return shared | {"weights": torch.zeros_like(shared["weights"]).scatter_(1, ids, read("weights"))}
    return shared | {"items": read("items")}


def page_scores(run: fr.Run, shared: dict[str, torch.Tensor]) -> torch.Tensor:
    """The scores [users / EVERY, items] of users as new persons, with other random numbers than in the run."""
    method, split, seed = run.method, run.config.split_of(run.data), run.config.seed
    assert isinstance(method, DeviceMethod)
    devices = Devices.of(split, False)
    state = State.start(method, split.data.n_items, len(devices), seed)
    state.shared = shared
    users, items = torch.arange(0, len(devices), EVERY), torch.arange(split.data.n_items)
    scores = torch.zeros(len(users), split.data.n_items)

    def observe(cohort: fr.Cohort) -> None:
        if method.view == "own" and round_ == rounds:
            scores[cohort.users // EVERY] = score_own(method, cohort, state, items.expand(len(cohort), -1))

    rounds = 0 if method.closed_form else run.point.best.round
    for round_ in range(1, rounds + 1):
        learn(method, state, devices, users, seed + 1, round_, Channel(), lambda update, users: None, observe)
    return scores if method.view == "own" else score_global(method, state, users, items.expand(len(users), -1), devices)


def ranked(run: fr.Run, scores: torch.Tensor) -> tuple[float, float]:
    """HR@10 and NDCG@10 of the test items among all that are not in training."""
    split = run.config.split_of(run.data)
    hits, gains = [], []
    for user in range(0, split.data.n_users, EVERY):
        for item in split.test.items[split.test.ptr[user] : split.test.ptr[user + 1]].tolist():
            own = scores[user // EVERY].clone()
            own[split.train[split.ptr[user] : split.ptr[user + 1]]] = -torch.inf
            place = int((own > own[item]).sum())
            hits.append(place < 10)
            gains.append(1 / np.log2(place + 2) if place < 10 else 0.0)
    return float(np.mean(hits)), float(np.mean(gains))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="tastes")
    parser.add_argument("--rounds", type=int, default=60)
    asked = parser.parse_args()
    rows = []
    for name in METHODS:
        with tempfile.TemporaryDirectory() as folder:
            settings = {"recency": [0.0, 2.0, 5.0, 10.0]} if name == "fedease" else {}
            method = fr.FedEASE(**settings) if settings else name
            rounds = None if name == "fedease" else asked.rounds
            run = fr.train(method, asked.data, rounds=rounds, out=Path(folder) / "run")
            files = page_files(Path(folder) / "run")
            took_part = ranked(run, torch.from_numpy(run.score(run.data.user_ids[::EVERY])))
            new = ranked(run, page_scores(run, page_shared(run, files)))
            size = sum(map(len, files.values())) / 1e6
        rows.append([name, *(f"{value:.3f}" for value in (*took_part, *new)), f"{size:.1f} MB"])
        print(rows[-1], flush=True)
    head = ["method", "HR@10, device in the run", "NDCG@10", "HR@10, started anew in the page", "NDCG@10", "all files"]
    text = (
        f"On `{asked.data}`, `clean`, seed 0, every fourth user, held-out items among all that are not in training. "
        "These users took part in the run: the shared tables know their training items."
    )
    put(f"web-{asked.data}", f"The page, on {asked.data}", f"{text}\n\n{table(head, rows)}", page="accuracy")


if __name__ == "__main__":
    main()
