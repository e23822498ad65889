"""Federec against its peers, ratios within one run, one thread, in CPU seconds.

    python benchmarks/peers.py [--data ml-100k ml-1m] [--clients 96] [--rounds 100] [--page] [--pfl PYTHON]

* One client at a time (`loop.py`): a whole round - drawing negatives, training, evaluating every device's validation
  and test item - of the same method with the same settings. The loop, whose rounds are all the same work, is measured
  on clients of evenly spaced lengths and scaled to all. Federec plays a run of so many rounds, and the mean counts: a
  network's rounds take less time when it is trained (`kernels.patterns`).
* pfl, Apple's simulator, where an interpreter that has it is named (`pfl_peer.py` says how to make one): the training
  of FedMF's model by federated averaging, on the same clients.
* The machine (`floor.py`): how long a fused round would take if nothing but its arithmetic, or its memory traffic, took
  time. PFedRec's arithmetic: two passes of logits, the gradient of w, the step of the rows, 2 dim operations each a
  sample. FedRecGEL's, row by row: of each that a device touches, 5 products with the first layer - the one with the
  server's rows is the same for all - and 8 with each other in its three gradients, 1 with these in an evaluation; rows
  that go back together need less. Traffic: each row that a device touches is read from the shared table, and read and
  written in the sum; training items are read once.
* Centralised `implicit` (extra `bench`) for scale: seconds to train on pooled data, and HR@10 under `clean`.

With `--page` the section of docs/benchmarks.md and its figure are written too.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import tempfile
import time
from pathlib import Path
from statistics import mean, median

import numpy as np
import torch
from floor import arithmetic, bandwidth
from loop import MODELS, Loop
from page import bars, put, table

import federec as fr
from federec.data.split import Split, leave_one_out
from federec.evaluation.candidates import Candidates, sample
from federec.evaluation.evaluator import Evaluator
from federec.evaluation.protocols import protocol
from federec.plugins.registry import build
from federec.runtimes.simulation import trainer

EARLY = 5
"""Rounds of federec, after the first, that are told apart."""
ROUNDS = 5
"""Rounds of the loop, which copies much memory: one took 29 to 42 s within minutes. Medians count."""


def evenly(split: Split, clients: int) -> list[int]:
    """Clients of evenly spaced lengths."""
    order = np.argsort(np.diff(split.ptr), kind="stable")
    places = (np.arange(clients) + 0.5) * len(order) / clients
    return order[places.astype(int)].tolist() if clients < len(order) else order.tolist()


def one_by_one(name: str, split: Split, clients: int) -> tuple[float, float]:
    """Seconds of a round of the loop, scaled to all clients; the mean loss of the first."""
    random.seed(0)
    torch.manual_seed(0)
    drawn = sample(split, 0)
    rows = torch.zeros(split.data.n_users, dtype=torch.long)
    rows[drawn.users] = torch.arange(len(drawn.users))
    loop = Loop(MODELS[name](split.data.n_items), split, Candidates(drawn.users, drawn.valid[rows], drawn.test[rows]))
    users = evenly(split, clients)
    pools = [loop.pool(user) for user in users]
    loop.round(users[:2], pools[:2])  # torch loads its optimisers when they are first used
    seconds, losses = [], []
    for _ in range(ROUNDS):
        training, loss = loop.round(users, pools)
        seconds.append(training * loop.model.participation + loop.evaluate(users))
        losses.append(loss)
    return median(seconds) * split.data.n_users / len(users), losses[0]


def federec(name: str, split: Split, rounds: int) -> tuple[float, float, float]:
    """Seconds of a round: the mean of a run from its second on, the first of which loads kernels, and of its early
    ones; the loss of the first."""
    method = build(name)
    worker = trainer(method, split, protocol("paper"), 0, method.default_participation, "cpu", "fused")
    loss, seconds = worker.play(1).loss, []
    for round_ in range(2, rounds + 1):
        began = time.process_time()
        worker.play(round_)
        seconds.append(time.process_time() - began)
    return mean(seconds), mean(seconds[:EARLY]), loss or 0.0


def touched(split: Split) -> float:
    """Rows that all devices touch in a round, on average."""
    positives, n_items = np.diff(split.ptr), split.data.n_items
    others = n_items - positives
    return float((positives + others * -np.expm1(4 * positives * np.log1p(-1 / others))).sum())


def floors(name: str, split: Split) -> tuple[float, float]:
    """Seconds that a round's arithmetic and its memory traffic take at least."""
    samples, scores, rows = 5 * len(split.train), 200 * split.data.n_users, touched(split)
    if name == "pfedrec":
        products, width = 32 * (4 * samples + scores), 32
    else:
        first, others = 128 * 128, 128 * 64 + 64 * 32
        rows *= MODELS[name].participation
        products, width = rows * (5 * first + 8 * others) + scores * others, 32 + 128
    return 2 * products / arithmetic(), (3 * 4 * width * rows + 4 * len(split.train)) / bandwidth()


def centralised(split: Split) -> list[list[str]]:
    """Rows of `implicit`'s ALS and BPR."""
    from implicit.als import AlternatingLeastSquares
    from implicit.bpr import BayesianPersonalizedRanking
    from scipy.sparse import csr_matrix

    users = np.repeat(np.arange(split.data.n_users), np.diff(split.ptr))
    shape = (split.data.n_users, split.data.n_items)
    pooled = csr_matrix((np.ones(len(users), np.float32), (users, split.train)), shape=shape)
    rows = []
    for model in (
        AlternatingLeastSquares(factors=32, regularization=20.0, alpha=5.0, iterations=15, num_threads=1),
        BayesianPersonalizedRanking(factors=32, iterations=100, num_threads=1),
    ):
        began = time.process_time()
        model.fit(pooled, show_progress=False)
        seconds = time.process_time() - began
        ranks = Evaluator(split, 0).sampled()
        for some in ranks.missing().split(256):
            scores = torch.from_numpy(model.user_factors[some.numpy()] @ model.item_factors.T)
            ranks.add(some, lambda items, scores=scores: scores.gather(1, items.long()))
        rows.append([type(model).__name__, f"{seconds:.1f}", f"{ranks.metrics()[1]['sampled']['hr@10']:.3f}"])
    return rows


def simulated(python: str, split: Split, clients: int) -> float:
    """CPU seconds of pfl to train all clients once, from those measured."""
    with tempfile.TemporaryDirectory() as folder:
        users = evenly(split, clients)
        histories = [split.train[split.ptr[user] : split.ptr[user + 1]] for user in users]
        path = Path(folder) / "clients.npz"
        np.savez(path, items=np.concatenate(histories), lengths=[len(h) for h in histories], n_items=split.data.n_items)
        script = Path(__file__).with_name("pfl_peer.py")
        said = subprocess.run([python, script, path], check=True, capture_output=True, text=True).stdout
    return float(json.loads(said.splitlines()[-1])["seconds"]) * split.data.n_users / len(users)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", nargs="+", default=["ml-100k", "ml-1m"])
    parser.add_argument("--clients", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--pfl", metavar="PYTHON")
    parser.add_argument("--page", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    parts = []

    def tell(title: str, head: list[str], rows: list[list[str]]) -> None:
        text = table(head, rows)
        print(f"\n{title}\n\n{text}", flush=True)
        parts.append(f"{title}\n\n{text}")

    seconds, rows = [], []
    for data in asked.data:
        split = leave_one_out(fr.load(data))
        for name in MODELS:
            slow, loop_loss = one_by_one(name, split, asked.clients)
            quick, early, loss = federec(name, split, asked.rounds)
            seconds.append((f"{name}, {data}", slow, quick))
            figures = f"{slow:.2f}", f"{quick:.4f}", f"{slow / quick:.0f}x", f"{early:.4f}"
            rows.append([f"{name}, {data}", *figures, f"{loop_loss:.3f}", f"{loss:.3f}"])
            print(*rows[-1], flush=True)
    head = ["a round", "loop, s", "federec, s", "ratio", f"rounds 2-{1 + EARLY}, s", "loss, loop", "loss, federec"]
    title = f"**One client at a time.** Federec: the mean of a run of {asked.rounds} rounds, and of its early ones."
    tell(f"{title} Losses are those of the first round, each from its own random start.", head, rows)

    least = []
    for data in asked.data:
        for name in ("pfedrec", "fedrecgel"):
            arithmetic_, traffic = floors(name, leave_one_out(fr.load(data)))
            took = next(quick for title, _, quick in seconds if title == f"{name}, {data}")
            figures = f"{took:.4f}", f"{arithmetic_:.4f}", f"{traffic:.4f}", f"{took / max(arithmetic_, traffic):.1f}x"
            least.append([f"{name}, {data}", *figures])
    head = ["a round", "federec, s", "arithmetic, s", "traffic, s", "over the larger"]
    told = "FedRecGEL can go below it: samples with the same active units share one backward pass."
    tell(f"**Lower bound of this machine**, counted per sample. {told}", head, least)

    if asked.pfl:
        rows = []
        for data in asked.data:
            split = leave_one_out(fr.load(data))
            slow, (quick, *_) = simulated(asked.pfl, split, asked.clients), federec("fedmf", split, asked.rounds)
            rows.append([f"fedmf, {data}", f"{slow:.2f}", f"{quick:.4f}", f"{slow / quick:.0f}x"])
        head = ["a round", "pfl, s, training alone", "federec, s, with evaluation", "ratio"]
        tell("**pfl**, its PyTorch simulation.", head, rows)
    try:
        rows = [
            [f"{row[0]}, {data}", *row[1:]] for data in asked.data for row in centralised(leave_one_out(fr.load(data)))
        ]
        tell("**Centralised, for scale.**", ["implicit", "s to train", "HR@10, clean"], rows)
    except ModuleNotFoundError as error:
        print(f"\nimplicit is left out: {error}; pip install 'federec[bench]'")
    if asked.page:
        drawn = {title: {"one client at a time": slow, "federec": quick} for title, slow, quick in seconds}
        parts.append(bars("peers", "CPU seconds a round, one thread", drawn))
        put("peers", "Against peers", "\n\n".join(parts))


if __name__ == "__main__":
    main()
