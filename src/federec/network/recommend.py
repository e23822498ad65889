"""Recommending on a device, without the server: with the shared rows that reached it and what it learned itself."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from federec.errors import UserError
from federec.evaluation.protocols import protocol
from federec.federation.channel import Channel
from federec.methods.base import DeviceMethod
from federec.network.device_folder import DeviceFolder
from federec.network.engines import Task, engine_of
from federec.runs.config import RunConfig
from federec.runs.recommendation import Recommendation, best


def recommend(folder: DeviceFolder, user: int, k: int = 10) -> list[Recommendation]:
    """The k best items that a user does not have, among those whose shared rows the device has seen."""
    scores, catalogue = scored(folder, user), folder.catalogue
    return best(scores, folder.history(user).items, k, catalogue.labels.__getitem__, catalogue.titles)


def scored(folder: DeviceFolder, user: int) -> NDArray[np.float32]:
    """The score that a user's device gives to every item; NaN for an item that it has never seen. A method that ranks
    with rows tuned in a round plays the newest round again."""
    head = folder.head
    if head is None:
        raise UserError(f"{folder.path}: nothing was learned here yet; take part in a federation first")
    config = RunConfig.checked(**{"ties": "file"} | head.config)  # as versions did that did not write it down
    method, seen, n_items = config.build(), folder.seen(), len(folder.catalogue)
    assert isinstance(method, DeviceMethod)
    split = folder.split(config.seed, ties=config.ties or protocol(config.protocol).ties)
    sizes = head.sizes if head.sizes[-1] == n_items else [*head.sizes, n_items]  # new items since the newest round
    engine = engine_of(Task(config, method, Channel(), split, sizes, seen))
    if method.view == "own" and user in engine.users:
        scores = engine.tuned(user, folder.begin(head.run, head.round, engine.start()), head.round)
    else:
        scores = engine.scores(user, folder.after(head.run, head.round, engine.start()))
    if seen.rows:
        unseen = np.ones(n_items, bool)
        unseen[seen.ids] = False
        scores[unseen] = np.nan
    return scores
