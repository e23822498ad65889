"""Rounds and scores of methods whose score is a network, by the GPU's kernels."""

from __future__ import annotations

from itertools import accumulate

import torch
from torch import Tensor

from federec.cohort.draw import Devices
from federec.cohort.layers import Params
from federec.federation.fused_base import RoundInputs
from federec.federation.fused_gpu import GpuRound, laplace_quantiles, padded
from federec.federation.fused_neural import put, taken
from federec.federation.state import State
from federec.kernels import gpu_network
from federec.kernels.gpu import Drawn, Outcome
from federec.kernels.gpu_linear import Asked
from federec.kernels.gpu_network import Shape
from federec.methods import forms
from federec.methods.base import DeviceMethod
from federec.methods.forms import NeuralScore

WIDEST = 32
"""Units of the widest layer that the kernel has registers for."""
_SWEEP = 1024  # samples, or values of layers, that a program looks at together
_VALUES = 2048  # of rows that go through the network together


class NeuralRound(GpuRound):
    """A round of a method whose score is a network. Devices rank when it is over: `play` scores nothing."""

    def __init__(self, form: NeuralScore, inputs: RoundInputs) -> None:
        self.form, shared = form, inputs.state.shared
        self.rows = torch.cat([shared[name] for name in form.tables], 1)
        super().__init__(None, self.rows, inputs)
        self.layers = form.layers
        self.flat, self.shape = network(inputs.state, form)
        self.layer_totals = [torch.zeros_like(self.flat)]

    def launch(self, programs: int, drawn: Drawn, longest: int, asked: Asked, judged: bool, outcome: Outcome) -> None:
        form, method, shape = self.form, self.method, self.shape
        n_items, width = self.rows.shape
        most = min(longest, n_items, method.batch)
        sharp = form.rho_shared > 0 or form.rho_private > 0
        values = shape.ends[-1]
        buffers = gpu_network.Buffers(
            tables=self.floats(programs, n_items, width),
            marks=self.zeros(programs, n_items),
            weights=self.zeros(programs, n_items, dtype=torch.float32),
            emphasis=self.floats(programs, n_items if form.emphasis else 0),
            codes=self.zeros(programs, most),
            shares=self.floats(programs, most),
            errors=self.floats(programs, most),
            hidden=self.floats(programs, most, shape.sizes[1]),
            pulls=self.floats(programs, most, shape.sizes[0]),
            nets=self.floats(programs, values),
            gradients=self.floats(programs, values),
            uphill=self.floats(programs, values if sharp else 0),
            queue=self.zeros(1),
        )
        plan = gpu_network.Plan(
            batch=method.batch,
            epochs=method.epochs,
            rate=form.rate,
            item_rate=form.item_rate,
            layer_rate=form.layer_rate,
            rho_shared=form.rho_shared,
            rho_private=form.rho_private,
            laplace=form.laplace,
        )
        vectors = taken(self.state.private, form.users, drawn.users)
        totals = torch.zeros(programs, values, device=self.device)
        gpu_network.network_round[(programs,)](
            gpu_network.Server(self.rows, self.flat, self.flat),
            vectors,
            drawn,
            gpu_network.Outcome(outcome.total, totals, outcome.figures),
            self.emphasis(),
            laplace_quantiles(self.device),
            buffers,
            plan,
            devices=len(drawn.users),
            n_items=n_items,
            shuffled=drawn.order.shape[1],
            most=most,
            SHARP=sharp,
            NOISY=form.laplace > 0,
            EMPHASISED=form.emphasis is not None,
            SHAPE=shape,
            SWEEP=_SWEEP,
            **tiled(shape),
        )
        self.layer_totals.append(totals.sum(0))
        put(self.state.private, form.users, drawn.users, vectors)

    def change(self) -> Params:
        tables = [self.state.shared[name] for name in self.form.tables]
        layers = [self.state.shared[name] for name in self.layers]
        rows = self.total.split([table.shape[1] for table in tables], 1)
        parts = torch.stack(self.layer_totals).sum(0).split([layer.numel() for layer in layers])
        shaped = (part.view(layer.shape) for part, layer in zip(parts, layers, strict=True))
        return dict(zip((*self.form.tables, *self.layers), (*rows, *shaped), strict=True))

    def emphasis(self) -> gpu_network.Emphasis:
        """Of new positives, where there is any."""
        devices = self.devices
        if self.form.emphasis is None:
            return gpu_network.Emphasis(devices.distinct_ptr, devices.distinct, self.flat)
        weights = emphasis_of(self.form.emphasis, devices)
        return gpu_network.Emphasis(devices.distinct_ptr, devices.distinct, weights)


def emphasis_of(form: forms.Emphasis, devices: Devices) -> Tensor:
    """The weight of each device's distinct items, oldest first: on average 1."""
    ptr = devices.distinct_ptr
    owner = torch.repeat_interleave(ptr.diff(), output_size=len(devices.distinct))
    age = ptr[owner + 1] - 1 - torch.arange(len(owner), device=ptr.device)
    weights = 0.5 ** (age / form.half_life) + form.least
    total = torch.zeros(len(devices), device=ptr.device).index_add_(0, owner, weights)
    return weights * (ptr.diff() / total)[owner]


def network(state: State, form: NeuralScore) -> tuple[Tensor, Shape]:
    """All layers of the server's network as one vector, and how they lie in it."""
    product, dim = (state.shared[name].shape[1] for name in (form.tables[0], form.tables[-1]))
    product *= len(form.tables) > 1
    layers = [state.shared[name] for name in form.layers]
    sizes = (dim, *(len(bias) for bias in layers[1:-2:2]))
    ends = (0, *accumulate(layer.numel() for layer in layers))
    at = [dim * sizes[1], *ends[1:-2]]  # the first weight is U and W_0
    shape = Shape(
        sizes=sizes,
        wide=tuple(padded(size) for size in sizes),
        product=product,
        pair=padded(product),
        at=(*at[:-1], at[-1] + product),
        top=(ends[-3], ends[-2], 0, ends[-1]),
        ends=ends,
    )
    return torch.cat([layer.flatten() for layer in layers]), shape


def tiled(shape: Shape) -> dict[str, int]:
    """How many rows a program takes through the network together, and how many warps do it."""
    tile = max(16, min(64, _VALUES // max(shape.wide)))
    return {"TILE": tile, "num_warps": tile // 16, "num_stages": 1}


def first_products(state: State, form: NeuralScore) -> Tensor:
    """x W_0 of all item rows x."""
    rows = state.shared[form.tables[-1]]
    return rows @ state.shared[form.layers[0]][-rows.shape[1] :]


def neural_scores(
    form: NeuralScore, method: DeviceMethod, state: State, devices: Devices, users: Tensor, items: Tensor
) -> Tensor:
    """Scores [C, K] of items [C, K] with the server's rows."""
    flat, shape = network(state, form)
    values = taken(state.private, form.users, users)
    weight, bias = state.shared[form.layers[0]], state.shared[form.layers[1]]
    offsets = torch.addmm(bias, values[:, shape.product :], weight[: shape.sizes[0]])
    rows = torch.cat([state.shared[name] for name in form.tables], 1)
    server = gpu_network.Server(rows, flat, first_products(state, form))
    out, asked, tiles = torch.empty(items.shape, device=users.device), items.shape[1], tiled(shape)
    precision = "ieee"
    if max(shape.wide) > WIDEST:  # tensor cores, as exact: three products of two parts
        tiles, precision = {"TILE": 64, "num_warps": 4, "num_stages": 1}, "tf32x3"
    with torch.cuda.device_of(users):
        gpu_network.network_scores[(len(users), -(-asked // tiles["TILE"]))](
            server, values, offsets, items.contiguous(), out, asked=asked, SHAPE=shape, PRECISION=precision, **tiles
        )
    return out
