"""Rounds and scores of methods whose score is a network, by the CPU kernel."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from federec.cohort.draw import Devices
from federec.cohort.layers import Params
from federec.cohort.optim import Adam
from federec.federation.fused import asked as request_of
from federec.federation.fused import mixing_note, mixing_of
from federec.federation.fused_base import Emphasising, Floats, FusedRound, Integers, RoundInputs, histories, noise_of
from federec.federation.state import State
from federec.federation.threads import aside, borrowed, even_parts, in_slices, on_threads, one_blas_thread
from federec.kernels.cpu import Outcome, Parts, Players
from federec.kernels.network import Items, Net, Shape, Users, make_net, make_tile, network_scores, personal_scores
from federec.kernels.network_plgc import make_network_mix
from federec.kernels.neural import Own, Plan, Server, neural_round, neural_workspace
from federec.kernels.reach import make_narrow
from federec.methods.base import DeviceMethod
from federec.methods.forms import NeuralScore

_LANES = 16  # units that a processor takes at once
_LEAST = 1 << 23  # products of numbers that are worth a thread
_SAMPLE = 256  # users by whom units are ordered


class NeuralRound(FusedRound):
    """A round of a method whose score is a network. Where devices rank with the server's rows they do when it is over:
    `play` scores nothing."""

    least = 0.125  # a sample takes sixteen times as long as one of a linear score, or longer

    def __init__(self, form: NeuralScore, inputs: RoundInputs) -> None:
        self.form, self.layers = form, () if form.dual else form.layers
        self.shape, self.net = network(inputs.state, form)
        self.rows = item_rows(inputs.state, form)
        super().__init__(inputs, *self.rows.shape, values=0 if form.dual else len(self.net.flat))
        # Rows that are not moved meet the same first layer on all devices: their products with it are taken once.
        same = len(self.rows) if form.gradients and not form.dual else 0
        self.known = first_products(self.state.shared[form.tables[-1]][:same], self.net)
        self.bounds = aside(self._bounds)  # found while users are dealt to threads

    def _bounds(self) -> tuple[Floats, np.float32]:
        """The largest value of each unit of the known products, and the length of the longest x."""
        highest = self.known.amax(0) if len(self.known) else self.known.new_zeros(0)
        return highest.numpy(), np.float32(self.rows[:, self.shape.product :].norm(dim=1).max())

    def learn(self, players: Players, ptr: Integers, outcome: Outcome) -> None:
        form, method = self.form, self.method
        plan = Plan(
            negatives=method.negatives,
            batch=method.batch,
            epochs=method.epochs,
            moves=not form.gradients,
            dual=form.dual,
            rate=np.float32(form.rate),
            item_rate=np.float32(form.item_rate),
            layer_rate=np.float32(form.layer_rate),
            rho_shared=np.float32(form.rho_shared),
            rho_private=np.float32(form.rho_private),
            beta1=np.float32(Adam.beta1),
            beta2=np.float32(Adam.beta2),
            eps=np.float32(Adam.eps),
        )
        # Rows of one step on all samples have patterns in common, those of a batch hardly any. Where there is but one
        # layer, all would have the same.
        most, merge = self.most(), form.gradients and len(self.shape.hidden) > 1
        step = most if form.gradients else method.batch
        ends = np.cumsum([self.state.shared[name].numel() for name in self.layers], dtype=np.int64)
        server = Server(self.rows.numpy(), self.net.flat, ends, self.known.numpy(), *self.bounds())
        own = own_values(self.state, form)
        devices, mixing = self.devices, mixing_of(self.state, form.mixing)
        known, emphasising = histories(devices), Emphasising(form.emphasis, devices)

        def play(parts: Parts) -> None:
            with (
                borrowed(devices, neural_workspace, devices.n_items, most, step, self.shape, merge) as workspace,
                borrowed(devices, make_narrow, self.shape) as narrow,
            ):
                held, rows = len(workspace.table), len(workspace.batch.rows)
                mix = make_network_mix(mixing, held, rows, self.shape.dim, self.shape.hidden[-1])
                emphasis = emphasising.arrays(held)
                some, noise = narrow if merge else None, noise_of(form.laplace)
                neural_round(parts, plan, noise, workspace, some, mix, emphasis, known, server, players, own, outcome)

        with one_blas_thread():
            on_threads(ptr, play)

    def change(self) -> Params:
        tables = [self.state.shared[name] for name in self.form.tables]
        layers = [self.state.shared[name] for name in self.layers]
        rows_sum, layers_sum = self.sums.close()
        rows = rows_sum.split([table.shape[1] for table in tables], 1)
        parts = layers_sum.split([layer.numel() for layer in layers])
        shaped = (part.view(layer.shape) for part, layer in zip(parts, layers, strict=True))
        return dict(zip((*self.form.tables, *self.layers), (*rows, *shaped), strict=True))

    def notes(self) -> Params:
        return mixing_note(self.state, self.form.mixing, self.users)


def network(state: State, form: NeuralScore) -> tuple[Shape, Net]:
    """The server's network, for a kernel; all 0 where devices have their own."""
    *product, dim = (state.shared[name].shape[1] for name in form.tables)
    layers = [(state.private if form.dual else state.shared)[name] for name in form.layers]
    shape = Shape(sum(product), dim, tuple(bias.shape[-1] for bias in layers[1:-2:2]))
    net = make_net(shape)
    if not form.dual:
        net.flat[:] = torch.cat([layer.flatten() for layer in layers]).numpy()
    return shape, net


def item_rows(state: State, form: NeuralScore) -> Tensor:
    """The server's rows v and x side by side."""
    return torch.cat([state.shared[name] for name in form.tables], 1)


def own_values(state: State, form: NeuralScore) -> Own:
    """Views of what all devices keep besides rows."""
    kinds: list[tuple[Floats, ...]] = []
    for names in names_kept(form):
        views = [state.private[name].view(len(state.private[name]), -1).numpy() for name in names]
        if len(views) == 1:  # there is no p
            views.insert(0, np.zeros((len(views[0]), int(names[0].endswith("/t"))), np.float32))
        kinds.append(tuple(views))
    nothing = (np.zeros((0, 0), np.float32),) * 2
    m, v, t = kinds[1:] or [nothing] * 3
    return Own(kinds[0], m, v, t, own_layers(state, form))


def own_layers(state: State, form: NeuralScore) -> tuple[Floats, ...]:
    """Views [N, values] of all devices' own layers; without rows where layers are shared."""
    if not form.dual:
        return tuple(np.zeros((0, 0), np.float32) for _ in form.layers)
    return tuple(state.private[name].view(len(state.private[name]), -1).numpy() for name in form.layers)


def judging(state: State, form: NeuralScore, users: Tensor) -> Tensor:
    """All that these users score with besides item rows, side by side."""
    return taken(state.private, (*form.users, *form.layers), users)


def first_products(rows: Tensor, net: Net) -> Tensor:
    """x W_0 of item rows x."""
    weights = torch.from_numpy(net.weights[0])
    products = rows.new_empty(len(rows), weights.shape[1])
    in_slices(len(rows), lambda some: torch.mm(rows[some], weights, out=products[some]), _LEAST // weights.numel())
    return products


def neural_scores(
    form: NeuralScore, method: DeviceMethod, state: State, devices: Devices, users: Tensor, items: Tensor
) -> Tensor:
    """Scores [C, K] of items [C, K] with the server's rows."""
    shape, net = network(state, form)
    if form.dual:
        return _personal_scores(form, state, shape, users, items)
    *product, rows = (state.shared[name] for name in form.tables)
    v, ask = product[0] if product else rows[:, :0], items
    if items.numel() < len(rows):  # else about all are asked for
        asked, ask = items.unique(return_inverse=True)
        rows, v = rows[asked], v[asked]
    *p, q = (_of(state.private[name], users) for name in form.users)
    products = first_products(rows, net)
    reach = Reach(products, q, net)
    above = net.weights[1] if len(net.weights) > 1 else net.top[shape.product : -1]
    above[:] = above[reach.order.numpy()]
    products = products.index_select(1, reach.order)
    wanted = Items(products.numpy(), v.numpy())
    values = p[0] if p else q[:, :0]
    asking = Users(values.numpy(), reach.offsets.numpy(), reach.widths.numpy(), ask.contiguous().numpy())
    out = np.empty(items.shape, np.float32)

    def score(parts: Parts) -> None:
        with borrowed(devices, make_tile, shape, 1) as tile:
            network_scores(parts, net, tile, wanted, asking, out)

    with one_blas_thread():
        on_threads(even_parts(len(users)), score)
    return torch.from_numpy(out)


def _personal_scores(form: NeuralScore, state: State, shape: Shape, users: Tensor, items: Tensor) -> Tensor:
    """`neural_scores` by each user's own layers."""
    request, rows, layers = request_of(users, items), item_rows(state, form).numpy(), own_layers(state, form)
    values = taken(state.private, form.users, users).numpy()

    def score(parts: Parts) -> None:
        nowhere = np.zeros(len(rows), np.int32)
        personal_scores(parts, make_net(shape), make_tile(shape), nowhere, rows, values, layers, request)

    with one_blas_thread():
        on_threads(even_parts(len(users)), score)
    return torch.from_numpy(request.scores)


class Reach:
    """Which units of the first layer users can activate with some item: a trained network has many that a user cannot.
    Sums over units, and their rounding, follow their order here."""

    def __init__(self, products: Tensor, users: Tensor, net: Net) -> None:
        """`products` [M, width]: x W_0 of the items; `users` [C, dim]: q."""
        weights, bias = torch.from_numpy(net.user), torch.from_numpy(net.biases[0])
        most = products.amax(0) if len(products) else torch.full_like(bias, -torch.inf)
        some = torch.addmm(bias, users[:: max(1, len(users) // _SAMPLE)], weights)
        self.order = _able(some, most).sum(0).argsort(descending=True, stable=True)
        """Units, those first that most of some users can activate."""
        weights, bias, most = weights[:, self.order], bias[self.order], most[self.order]
        places = torch.arange(1, len(bias) + 1, dtype=torch.int32)
        self.offsets = users.new_empty(len(users), len(bias))
        """[C, width] what each user brings to the units."""
        self.widths = torch.empty(len(users), dtype=torch.int32)
        """[C] how many of them each needs."""

        def fill(some: slice) -> None:
            torch.addmm(bias, users[some], weights, out=self.offsets[some])
            last = (_able(self.offsets[some], most) * places).amax(1)
            self.widths[some] = ((last + _LANES - 1) // _LANES * _LANES).clamp(1, len(bias))

        in_slices(len(users), fill, _LEAST // weights.numel())


def _able(offsets: Tensor, most: Tensor) -> Tensor:
    """Whether users can activate units; what is not a number is not hidden."""
    return ~(offsets + most <= 0)


def names_kept(form: NeuralScore) -> list[tuple[str, ...]]:
    """Names of what devices keep, kind by kind: values, and Adam's moments and counts of steps."""
    kinds = ("", "/m", "/v", "/t") if form.gradients else ("",)
    return [tuple(name + kind for name in form.users) for kind in kinds]


def taken(private: Params, names: tuple[str, ...], users: Tensor) -> Tensor:
    """Values of these users side by side, [C, width]."""
    return torch.cat([private[name][users].view(len(users), _size(private[name])) for name in names], 1)


def put(private: Params, names: tuple[str, ...], users: Tensor, values: Tensor) -> None:
    """The same back to where users keep them."""
    for name, part in zip(names, values.split([_size(private[name]) for name in names], 1), strict=True):
        private[name][users] = part.reshape(len(users), *private[name].shape[1:])


def _of(values: Tensor, users: Tensor) -> Tensor:
    """Values of these users, [C, width]; of all users, as they lie."""
    flat = values.view(len(values), _size(values))
    everybody = len(users) == len(values) and bool((users.diff() == 1).all())
    return flat if everybody else flat[users]


def _size(values: Tensor) -> int:
    """Numbers that each user has of these."""
    return values.shape[1:].numel()
