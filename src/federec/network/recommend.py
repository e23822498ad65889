"""Recommending on a device, without the server: with the shared rows that reached it and what it learned itself."""

from __future__ import annotations

import torch
from torch import Tensor

from federec.errors import UserError
from federec.evaluation.protocols import protocol
from federec.federation.device import cohorts, keep_private
from federec.federation.scoring import score_global, score_own
from federec.methods.base import DeviceMethod
from federec.network.device_folder import DeviceFolder
from federec.network.parameters import start
from federec.runs.config import RunConfig
from federec.runs.recommendation import Recommendation, best


def recommend(folder: DeviceFolder, user: int, k: int = 10) -> list[Recommendation]:
    """The k best items that a user does not have, among those whose shared rows the device has seen."""
    scores, catalogue = scored(folder, user), folder.catalogue
    known = torch.from_numpy(folder.history(user).items).long()
    return best(scores, known, k, catalogue.labels.__getitem__, catalogue.titles)


def scored(folder: DeviceFolder, user: int) -> Tensor:
    """The score that a user's device gives to every item; NaN for an item that it has never seen. A method that ranks
    with rows tuned in a round plays the newest round again."""
    head = folder.head
    if head is None:
        raise UserError(f"{folder.path}: nothing was learned here yet; take part in a federation first")
    config = RunConfig.checked(**{"ties": "file"} | head.config)  # as versions did that did not write it down
    method, seen, n_items = config.build(), folder.seen(), len(folder.catalogue)
    assert isinstance(method, DeviceMethod)
    rules = protocol(config.protocol)
    devices = folder.devices(config.seed, rules.close_held_out, config.ties or rules.ties)
    sizes = head.sizes if head.sizes[-1] == n_items else [*head.sizes, n_items]  # new items since the newest round
    begun = start(method, sizes, len(devices), config.seed)
    begun.shared = seen.shared(n_items)
    users, items = torch.tensor([user]), torch.arange(n_items)[None]
    if method.view == "own" and int(devices.lengths(users, 0)):
        state = folder.begin(head.run, head.round, begun)
        (cohort,) = cohorts(method, state, devices, users, config.seed, head.round)
        method.fit(cohort)
        keep_private(cohort, state)
        scores = score_own(method, cohort, state, items)[0]
    else:
        scores = score_global(method, folder.after(head.run, head.round, begun), users, items, devices)[0]
    if seen.rows:
        scores[torch.ones(n_items, dtype=torch.bool).index_fill(0, seen.ids, False)] = torch.nan
    return scores
