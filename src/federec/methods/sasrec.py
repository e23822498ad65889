"""SASRec - Self-Attentive Sequential Recommendation (Kang and McAuley, ICDM 2018), on pooled data.

    s_ij = f(items of user i, oldest first) . v_j + b_j            f: a causal transformer (mathematics/transformer.py)
    loss = mean over positions of - ln softmax_j(s)[next item]     among all items

The original learns by one drawn negative for each position; the full softmax needs none and ranks better. A round is
one epoch over all users, in mini-batches of users, by AdamW. An item that a history repeats stands at its newest place.
Items of the same time get a new order in every round (`reorder`), so that the model does not learn an order by heart
that the split drew for them.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor

from federec import streams
from federec.cohort.draw import Devices
from federec.cohort.layers import Params
from federec.cohort.optim import server_moments
from federec.data.split import Split, ragged
from federec.mathematics.windows import Windows, gradient, outputs, stream_keys
from federec.methods.central import CentralMethod
from federec.methods.forms import NextItem
from federec.methods.sequence import SequenceSettings


class SASRec(CentralMethod, SequenceSettings):
    """Centralised reference: a transformer over each user's items in their order.

    >>> fr.SASRec(dim=8).dim
    8
    """

    name: ClassVar[str] = "sasrec"
    paper: ClassVar[str] = "Kang and McAuley, Self-Attentive Sequential Recommendation, ICDM 2018"
    reads_history: ClassVar[bool] = True
    default_rounds: ClassVar[int] = 120
    follow_rounds: ClassVar[tuple[str, ...]] = ("schedule",)

    batch: PositiveInt = 96
    """Users in a mini-batch."""

    def start(self, split: Split, seed: int) -> Params:
        generator = torch.Generator().manual_seed(seed)
        params = {name: p.start(split.data.n_items, generator) for name, p in self.network.params().items()}
        return params | server_moments(params)

    def learn(self, model: Params, split: Split, devices: Devices, seed: int, round_: int) -> Params:
        model = {name: value.clone() for name, value in model.items()}
        users = (devices.ptr.diff() > 1).nonzero()[:, 0]  # a single item is followed by nothing
        keys = devices.keys(seed, round_, users)
        batches = users[streams.bits(keys, streams.SHUFFLE).argsort(stable=True)].split(self.batch)
        for batch in batches:
            self.descend(model, devices, batch, devices.keys(seed, round_, batch), self.falls * len(batches))
        return model

    def descend(self, model: Params, devices: Devices, users: Tensor, keys: Tensor, steps: int) -> None:
        """One step of AdamW, of `steps` in all, on the mean over all positions of these users; in place."""
        params = {name: model[name] for name in self.network.params()}
        history = self.ordered(devices.history(users), keys)
        windows = Windows.of(history.items, history.counts, self.window)
        _, total = gradient(self.network, params, windows, self.dropout, stream_keys(keys, 0))
        count = max(1, int(windows.counts.sum()))
        mean = dict(zip(total, torch._foreach_div([*total.values()], count), strict=True))
        model |= self.stepped(params, mean, model, steps)

    def fused_form(self, n_items: int) -> NextItem:
        return NextItem(self.network)

    def scores(self, model: Params, split: Split, users: Tensor) -> Tensor:
        ptr, train, *_ = split.distinct
        codes = users.cpu().numpy()
        counts = torch.from_numpy(np.diff(ptr)[codes]).to(model["items"].device)
        _, found = ragged(ptr, train, codes)
        real = torch.arange(int(counts.max()), device=counts.device) < counts[:, None]
        items = torch.zeros_like(real, dtype=torch.long)
        items[real] = torch.from_numpy(found.astype(np.int64)).to(items.device)
        return outputs(self.network, model, items, counts) @ model["items"].T + model["item_bias"]
