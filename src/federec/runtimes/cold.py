"""Cold start of a finished run: how it ranks for devices that know next to nothing, and where it puts new items.

Users of the run's test stand in for new devices: each gets the shared parameters and its last few items before the test
item, and nothing that it learned in the run. Their other items are left out of the ranking, as in the run's own test.
The shared parameters were trained with these users taking part, as one among all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from federec import streams
from federec.cohort.layers import ITEMS
from federec.errors import UserError
from federec.evaluation.metrics import Metrics, headline
from federec.federation.newcomers import Newcomers
from federec.federation.state import State
from federec.methods.base import DeviceMethod
from federec.runtimes.run import Run

KNOWN = (0, 1, 3, 5)
"""Items that new devices know."""
_NEW = 20
"""Items of the catalogue for each new one that is added."""
_TOP = 10
_USERS = 256

Scores = NDArray[np.float32]


def cold_start(run: Run, known: Sequence[int] = KNOWN) -> dict[str, Any]:
    """HR@10 and NDCG@10 of the test, sampled and full, by the number of items that a new device knows, beside those of
    popularity and of the run's own users; and how often new items, which nobody has, are among the first ten."""
    method, state = run.method, run.point.best_state
    if not isinstance(method, DeviceMethod):
        raise UserError(f"'{method.name}' is a centralised reference; only federated methods have new devices")
    assert state is not None
    newcomers = Newcomers(method, state, run.data.n_items, run.config.seed, run.point.best.round)
    split, users = run.trainer.evaluator.split, run.trainer.evaluator.users.cpu().numpy()
    counts = np.bincount(split.train, minlength=run.data.n_items).astype(np.float32)
    before = split.fresh.distinct
    histories = [before.items[before.ptr[user] : before.ptr[user + 1]].astype(np.int64) for user in users]
    return {
        "users": {
            str(count): _ranked(run, newcomers, [items[len(items) - min(count, len(items)) :] for items in histories])
            for count in known
        },
        "popularity": _reported(run, lambda rows: np.tile(counts, (len(rows), 1))),
        "trained": headline(run.test),
        "new_items": _new_items(newcomers, [items[-max(known) :] for items in histories]),
    }


def _ranked(run: Run, newcomers: Newcomers, histories: Sequence[NDArray[np.int64]]) -> dict[str, Metrics]:
    return _reported(run, lambda rows: newcomers.scores([histories[row] for row in rows]))


def _reported(run: Run, scores: Any) -> dict[str, Metrics]:
    """The metrics of the test; `scores` gives those [C, n_items] of evaluated users, by their rows."""
    evaluator = run.trainer.evaluator
    sampled, full = evaluator.sampled(), evaluator.full()
    for some in evaluator.users.split(_USERS):
        values = torch.from_numpy(scores(evaluator.row[some].tolist())).to(some.device)
        for ranks in (sampled, full):
            ranks.add(some, partial(values.gather, 1))
    return headline(sampled.metrics()[1] | full.metrics()[1])


def _new_items(newcomers: Newcomers, histories: Sequence[NDArray[np.int64]]) -> dict[str, float]:
    """How often new items are among the first ten, with the mean row, which a federation gives them, and with rows
    drawn at random, as training begins with; and how often they would be if lists were drawn at random."""
    count = max(1, newcomers.n_items // _NEW)
    grown, some = newcomers.with_items(count), histories[:_USERS]
    found = {"items": count, "fair": count / grown.n_items, "mean_row": _taken(grown, some)}
    params, shared = newcomers.method.shared(), dict(newcomers.state.shared)
    if any(ITEMS in param.shape for param in params.values()):  # it has no rows to draw
        return found
    generator = torch.Generator().manual_seed(streams.seed_of(newcomers.seed, grown.n_items))
    for name, param in params.items():
        if param.rows:
            shared[name] = torch.cat([shared[name].cpu(), param.start(count, generator)])
    return found | {"random_row": _taken(replace(grown, state=State(shared)), some)}


def _taken(newcomers: Newcomers, histories: Sequence[NDArray[np.int64]]) -> float:
    """The fraction of the first ten places that new items have."""
    scores = newcomers.scores(histories)
    for row, items in zip(scores, histories, strict=True):
        row[items] = -np.inf
    best = np.argpartition(-scores, _TOP, 1)[:, :_TOP]
    return float((best >= newcomers.n_items - newcomers.new).mean())
