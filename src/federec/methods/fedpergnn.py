"""FedPerGNN - a federated graph neural network (Wu et al., Nature Communications 2022), trained for ranking.

A device's graph: its user, the user's items, and for each item up to `neighbours` anonymous users who have it too.
    z = W x                                                         for users' vectors u and item rows v
    att(x; N) = sum_{y in N + x} a_xy z_y,   a_xy = softmax_y LeakyReLU(a . z_x + a' . z_y)
    e_j = att(v_j; vectors of its anonymous users),   h_i = att(u_i; e_j of i's items),   r_ik = sigma(h_i . W v_k)
An item is left out of h_i when it is itself to be predicted. A device takes one gradient of its mean cross-entropy
(`target = ratings`: of its ratings' squared error, as the original), steps u_i by Adam and sends that of item rows, W,
a, a', clipped to +-delta, plus Laplace noise (2 delta / lambda a value and round), and pseudo rows. The server: Adam.

The user's vector is the device's, but a copy goes to a matching server (a third party) under a pseudonym every round,
with the items under a key only devices have: it sees how many items pseudonyms have and share, and their vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, embedding

from federec import streams
from federec.cohort.cohort import Cohort
from federec.cohort.draw import Devices, History, Samples
from federec.cohort.layers import USERS, Param, Params, dot
from federec.cohort.optim import Adam, server_adam, server_moments
from federec.cohort.rows import Rows
from federec.errors import UserError
from federec.mathematics.attention import attend, mean, surroundings, tastes
from federec.methods.base import DeviceMethod
from federec.methods.forms import Form, GraphScore
from federec.stages.noise import laplace
from federec.stages.randomness import Simulated

_LAYERS = ("gat", "from", "to")
_REASON = "its devices take no steps on shared parameters, only a gradient"


class FedPerGNN(DeviceMethod):
    """Graph attention over the user's items and anonymous users who share them; noisy gradients.

    >>> fr.FedPerGNN(dim=8).dim
    8
    """

    name: ClassVar[str] = "fedpergnn"
    paper: ClassVar[str] = "Wu et al., A federated graph neural network framework, Nature Communications 2022"
    reads_history: ClassVar[bool] = True
    refuses: ClassVar[Mapping[str, str]] = dict.fromkeys(("dualper", "plgc", "sam"), _REASON)
    sums: ClassVar[bool] = True

    dim: PositiveInt = 64
    """Width of user vectors and item rows."""
    neighbours: NonNegativeInt = 5
    """Anonymous users at each item, at most; the original takes up to 100."""
    lr: NonNegativeFloat = 0.03
    """Step of the user vector's Adam."""
    server_lr: NonNegativeFloat = 0.02
    """Step of the server's Adam."""
    clip: PositiveFloat = 0.1
    """Largest value of a gradient that is sent (delta); only with noise."""
    laplace: NonNegativeFloat = 0.2
    """Scale of the Laplace noise on every value sent (lambda); 0: neither clipped nor noisy."""
    pseudo: NonNegativeInt = 1000
    """Pseudo items drawn, whose rows are sent with the real ones; at most as many as there are items."""
    target: Literal["ranking", "ratings"] = "ranking"
    """What is learned: which items were taken, or (as in the original) the ratings of those that were."""

    def shared(self) -> dict[str, Param]:
        d, bound = self.dim, self.dim**-0.5
        gat = {
            "gat": Param((d, d), "uniform", 3**0.5 * bound),
            **dict.fromkeys(_LAYERS[1:], Param((d,), "uniform", bound)),
        }
        return {"items": Param((d,), scale=0.1, rows=True), **gat, "anonymous": Param((USERS, d), "zeros")}

    def private(self) -> dict[str, Param]:
        return {"user": Param((self.dim,), scale=0.1, adam=True)}

    def sends(self) -> dict[str, Param]:
        return {**self.shared(), "anonymous": Param((self.dim,))}

    def check(self, devices: Devices) -> None:
        if self.target == "ratings" and devices.ratings is None:
            raise UserError("setting target=ratings of 'fedpergnn': this data has no ratings")

    def cover(self, users: Tensor, samples: Samples, n_items: int) -> Tensor | None:
        return pseudo_items(samples.key, min(self.pseudo, n_items), n_items) if self.pseudo else None

    def fetch(self, shared: Params, users: Tensor, rows: Rows) -> tuple[Params, Params]:
        layers = {name: shared[name].expand(len(users), *shared[name].shape) for name in (*_LAYERS, "anonymous")}
        return {"items": shared["items"].index_select(0, rows.ids)}, layers

    def recall(self, shared: Params, history: History, items: Tensor) -> Params:
        layers = shared["gat"], shared["from"], shared["to"]
        return {"taste": tastes(layers, shared["anonymous"], shared["items"], history, self.neighbours)}

    def score(self, p: Params) -> Tensor:
        if "node" not in p:
            return dot(p["taste"], p["items"])
        # p["node"] is what is to be predicted (0: none): take its share out of h_i, and out of the sum of shares.
        return (dot(p["taste"], p["items"]) - p["own"].gather(1, p["node"])) / (1 - p["share"].gather(1, p["node"]))

    def fit(self, cohort: Cohort) -> None:
        assert cohort.history is not None
        history, rows = cohort.history, cohort.rows
        leaf = {name: cohort.params[name].detach().requires_grad_() for name in ("user", *_LAYERS)}
        leaf["items"] = table = cohort.tables["items"].detach().requires_grad_()
        held = cohort.own_rows()
        node = torch.zeros_like(rows.ids)  # of each row in its device's graph: 0 for none, items count from 1
        node[held[history.real]] = history.real.cumsum(1)[history.real]
        slots = rows.slots if self.target == "ranking" else held
        around = surroundings(history, cohort.params["anonymous"][0], self.neighbours)
        layers = leaf["gat"], leaf["from"], leaf["to"]
        taste, share, own = attend(layers, leaf["user"], embedding(held, table), *around)
        p = {"taste": taste, "share": share, "own": own, "items": embedding(slots, table), "node": node[slots]}
        loss = self.error(self.score(p), cohort, history)
        cohort.losses.append(loss.detach())
        cohort.outbox = dict(zip(leaf, torch.autograd.grad(loss.sum(), list(leaf.values())), strict=True))
        m, v, t = (cohort.params[f"user/{part}"] for part in "mvt")
        Adam().step_(cohort.params["user"], cohort.outbox.pop("user"), m, v, t, self.lr)

    def error(self, score: Tensor, cohort: Cohort, history: History) -> Tensor:
        """Each device's mean cross-entropy over its samples, or squared error over its ratings, [C]."""
        if self.target == "ratings":
            return mean(history.counts, (score - history.ratings) ** 2)
        cross_entropy = binary_cross_entropy_with_logits(score, cohort.samples.labels, reduction="none")
        return mean(cohort.samples.counts, cohort.emphasised(cross_entropy, cohort.rows.slots))

    def fused_form(self, n_items: int) -> Form | None:
        if self.target == "ratings":
            return None
        return GraphScore(
            table="items",
            layers=_LAYERS,
            vectors="anonymous",
            user="user",
            rate=self.lr,
            neighbours=self.neighbours,
            pseudo=self.pseudo,
            clip=self.clip,
            noise=self.laplace,
        )

    def download_bytes(self, cohort: Cohort) -> Tensor | None:
        """Rows with their codes, layers, and the vectors of the anonymous users."""
        assert cohort.history is not None
        users = (cohort.history.peers(self.neighbours) >= 0).flatten(1).sum(1)
        return 4 * (cohort.rows.counts(len(cohort)) * (1 + self.dim) + (self.dim + 2 + users) * self.dim)

    def message(self, cohort: Cohort, shared: Params) -> Params:
        rows, key = cohort.rows, cohort.samples.key
        sent = cohort.outbox | {"items": pseudo_rows(cohort.outbox["items"], rows, key)}
        if self.laplace:
            sent = {name: self.noisy(value, place, rows, key, name) for place, (name, value) in enumerate(sent.items())}
        return sent | {"anonymous": cohort.params["user"]}

    def noisy(self, value: Tensor, place: int, rows: Rows, key: Tensor, name: str) -> Tensor:
        """Clipped to +-delta, plus Laplace noise; that of item rows is numbered by item."""
        device = torch.arange(len(key), device=key.device)
        owner, row = (rows.owner, rows.ids) if name == "items" else (device, torch.zeros_like(device))
        noise = laplace(Simulated(key), owner, streams.NOISE + (place << 36), row, value[0].numel())
        return value.clamp(-self.clip, self.clip).add_(noise.view_as(value), alpha=self.laplace)

    def receive(self, users: Tensor, ids: Tensor, owner: Tensor, message: Params, shared: Params) -> Params | None:
        items, fresh = torch.zeros_like(shared["items"]), torch.zeros_like(shared["anonymous"])
        fresh[users] = message["anonymous"] - shared["anonymous"][users]
        made = {"items": items.index_add_(0, ids, message["items"]), "anonymous": fresh}
        return made | {name: message[name].sum(0) for name in _LAYERS}

    def server_start(self, shared: Params) -> Params:
        return server_moments({name: shared[name] for name in ("items", *_LAYERS)})

    def server_step(self, shared: Params, mean: Params, memory: Params) -> Params:
        shared = {**shared, "anonymous": shared["anonymous"] + mean["anonymous"]}
        return server_adam(shared, {name: mean[name] for name in ("items", *_LAYERS)}, memory, self.server_lr)


def pseudo_items(key: Tensor, count: int, n_items: int) -> Tensor:
    """[C, count] items drawn at random, with replacement, to hide a device's own among them."""
    draw = streams.COVER + torch.arange(count, device=key.device)
    drawn: Tensor = streams.below(streams.bits(key[:, None], draw), draw.new_tensor(n_items))
    return drawn


def pseudo_rows(values: Tensor, rows: Rows, key: Tensor) -> Tensor:
    """Values [U, width] to send, in which each row that no sample has a slot for is given those of one of its device's
    other rows, at random: the same distribution as theirs."""
    real = torch.zeros_like(rows.ids).index_fill_(0, rows.slots.flatten(), 1).bool()
    counts = torch.bincount(rows.owner[real], minlength=len(key))
    owner, ids = rows.owner[~real], rows.ids[~real]
    pick = streams.below(streams.bits(key[owner], streams.COVER + (1 << 32) + ids), counts[owner])
    like = real.nonzero().squeeze(1)[(counts.cumsum(0) - counts)[owner] + pick]
    return values.index_copy(0, (~real).nonzero().squeeze(1), values[like])
