"""Rounds and scores of methods with graph attention on the devices, by the CPU kernel."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from federec import streams
from federec.cohort.draw import Devices
from federec.cohort.layers import Params
from federec.cohort.optim import Adam
from federec.federation.fused_base import Emphasising, FusedRound, Integers, RoundInputs, histories
from federec.federation.state import State
from federec.federation.threads import borrowed, even_parts, on_threads, one_blas_thread
from federec.kernels.cpu import Outcome, Parts, Players
from federec.kernels.graph import Graph, Plan, Server, graph_results, graph_round, make_attention, make_workspace
from federec.methods.base import DeviceMethod
from federec.methods.forms import GraphScore
from federec.stages.noise import quantiles


class GraphRound(FusedRound):
    """A round of a method with graph attention. Devices rank when it is over: `play` scores nothing."""

    def __init__(self, form: GraphScore, inputs: RoundInputs) -> None:
        self.form, self.layers = form, (*form.layers, form.vectors, "peers")
        self.graph, self.server = graph_of(form, inputs.devices), server_of(form, inputs.state)
        self.dim = self.server.rows.shape[1]
        super().__init__(inputs, *self.server.rows.shape, values=(self.dim + 2) * self.dim)
        self.fresh = torch.zeros_like(self.state.shared[form.vectors])
        """How the vectors that users send differ from those that they sent before."""

    def learn(self, players: Players, ptr: Integers, outcome: Outcome) -> None:
        form, method, users = self.form, self.method, torch.from_numpy(players.users)
        n_items, longest = self.devices.n_items, int(np.diff(self.graph.ptr).max())
        plan = Plan(
            negatives=method.negatives,
            pseudo=min(form.pseudo, n_items),
            clip=np.float32(form.clip),
            noise=np.float32(form.noise),
            quantiles=quantiles().numpy(),
        )
        devices, learned_from = self.devices, histories(self.devices)
        emphasising, matching = Emphasising(form.emphasis, self.devices), matching_keys(users)
        vector = self.state.private[form.user][users]
        gradient = torch.zeros_like(vector)

        sizes = n_items, self.most(), longest, form.neighbours, self.dim

        def play(parts: Parts) -> None:
            with borrowed(devices, make_workspace, *sizes) as work:
                graph_round(
                    *(parts, plan, work, emphasising.arrays(len(work.ids)), learned_from, self.graph, self.server),
                    *(players, matching, vector.numpy(), gradient.numpy(), outcome),
                )

        with one_blas_thread():
            on_threads(ptr, play)
        m, v, t = (self.state.private[f"{form.user}/{part}"][users] for part in "mvt")
        Adam().step_(vector, gradient, m, v, t, form.rate)
        for part, value in (("", vector), ("/m", m), ("/v", v), ("/t", t)):
            self.state.private[form.user + part][users] = value
        outcome.sent[:, 6] = (vector != 0).sum(1).numpy()
        self.fresh[users] = vector - self.state.shared[form.vectors][users]

    def change(self) -> Params:
        d = self.dim
        rows, sums = self.sums.close()
        gat, *attention = sums.split([d * d, d, d])
        layers = dict(zip(self.form.layers, (gat.view(d, d), *attention), strict=True))
        return {self.form.table: rows, **layers, self.form.vectors: self.fresh}

    def traffic(self, total: Params) -> tuple[Tensor, Tensor]:
        """Up: rows, layers and the user's vector; down: rows with their codes, layers and the vectors of peers."""
        d, format_ = self.dim, self.link.channel.format
        held, rows, values, *layers, peers = torch.from_numpy(np.concatenate(self.sent)).unbind(1)
        up = format_.changes(rows, values, d, self.devices.n_items)
        for filled, size in zip(layers, (d * d, d, d, d), strict=True):
            up = up + format_.layer(filled, size)
        return up, 4 * (held * (1 + d) + (d + 2 + peers) * d)


def graph_of(form: GraphScore, devices: Devices) -> Graph:
    """Who has which items, for the kernel."""
    count, pairs = len(devices), devices.pairs
    user_ptr = torch.searchsorted(pairs, torch.arange(devices.n_items + 1) * count)
    users = (pairs % count).int()
    arrays = (array.numpy() for array in (devices.distinct_ptr, devices.distinct, user_ptr, users))
    return Graph(form.neighbours, *arrays)


def server_of(form: GraphScore, state: State) -> Server:
    """What all devices have in common, for the kernel."""
    rows, vectors = (state.shared[name] for name in (form.table, form.vectors))
    weight, start, end = (state.shared[name] for name in form.layers)
    square, outward, inward = weight @ weight.T, weight @ start, weight @ end
    scores = rows @ outward, rows @ inward, vectors @ inward
    values = rows, vectors, weight, start, end, square, outward, inward, rows @ square, *scores
    return Server(*(value.contiguous().numpy() for value in values))


def matching_keys(users: Tensor) -> np.ndarray:
    """Keys by which the users' peers are drawn."""
    keys: Tensor = streams.keys(0, streams.ONCE, users)
    return keys.numpy().view(np.uint64)


def graph_scores(
    form: GraphScore, method: DeviceMethod, state: State, devices: Devices, users: Tensor, items: Tensor
) -> Tensor:
    """Scores [C, K] of items [C, K] with the server's rows."""
    graph, server = graph_of(form, devices), server_of(form, state)
    vectors, out = state.shared[form.vectors][users], torch.zeros(len(users), server.rows.shape[1])
    longest, matching = int(np.diff(graph.ptr).max()), matching_keys(users)

    def attend(parts: Parts) -> None:
        with borrowed(devices, make_attention, longest, form.neighbours, out.shape[1]) as attention:
            graph_results(parts, attention, graph, server, users.numpy(), matching, vectors.numpy(), out.numpy())

    on_threads(even_parts(len(users)), attend)
    rows = state.shared[form.table]
    same = items.stride(0) == 0  # everybody scores the same items
    asked = rows[items[0]].expand(len(users), -1, -1) if same else rows[items]
    return method.score({"taste": out @ torch.from_numpy(server.square), "items": asked})
