"""Rounds of methods whose devices send gradients of a network, by the GPU's kernels: phase after phase, for as many
devices at a time as fit in memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from federec.cohort.optim import Adam
from federec.federation.device import GPU_MEMORY
from federec.federation.fused_base import RoundInputs
from federec.federation.fused_gpu import Schedule, laplace_quantiles
from federec.federation.fused_gpu_neural import NeuralRound, first_products
from federec.federation.fused_neural import names_kept, put, taken
from federec.kernels import gpu_phases
from federec.kernels.gpu import Drawn, Outcome
from federec.kernels.gpu_linear import Asked
from federec.kernels.gpu_network import Server
from federec.methods.forms import NeuralScore

log = logging.getLogger("federec")

WIDEST = 128
"""Units of the widest layer that the kernels have registers for."""
_SWEEP = 1024  # samples that a program looks at together
_GROUP = 64  # devices whose layers a program adds up
_PLAIN: dict[str, Any] = {"TILE": 64, "num_warps": 4, "num_stages": 1}
_HALVED: dict[str, Any] = {**_PLAIN, "SPLIT": 2}  # two programs a device
# Of a gradient, by one program: the first layer's as a whole, so that rows and errors are read once
_FIRST: dict[str, Any] = {"TILE": 16, "HIGH": 128, "WIDE": 128, "num_warps": 8, "num_stages": 1}
_ABOVE: dict[str, Any] = {"TILE": 32, "HIGH": 128, "WIDE": 64, "num_warps": 4, "num_stages": 1}
_SIZES = {gpu_phases.BASE: 32, gpu_phases.PRIVATE: 128, gpu_phases.SHARED: 64}
"""Units of the first layer that each pass takes at a time."""


class PhasesRound(NeuralRound):
    """A round of a method whose devices send gradients of a network. Rows and layers do not step within it."""

    lengths: list[int]
    """Samples of the devices that play."""

    def __init__(self, form: NeuralScore, inputs: RoundInputs) -> None:
        super().__init__(form, inputs)
        # Rows that are not moved meet the same first layer on all devices: their products with it are taken once.
        self.known = gpu_phases.UP * first_products(inputs.state, form)

    def reserve(self, schedule: Schedule) -> None:
        self.lengths = schedule.known

    def launch(self, programs: int, drawn: Drawn, longest: int, asked: Asked, judged: bool, outcome: Outcome) -> None:
        outcome.figures.zero_()
        self.layer_totals.append(torch.zeros_like(self.flat))
        for begin, end, rows in self.parts():
            # Copies: a kernel is compiled anew for arrays that begin elsewhere than others do.
            users, places, keys, first, counts = (each[begin:end].clone() for each in drawn[:5])
            own = Drawn(users, places, keys, first, counts, drawn.samples, drawn.order)
            _Part(self, own, rows).play(outcome.total, outcome.figures[:, begin:end])

    def figures_of_all(self) -> Tensor:
        """As in the base. A number too large for half precision leaves a NaN in what devices send or keep
        (`kernels.gpu_phases`): then losses are NaN, too, and the first such round is told."""
        learned = self.total, *self.layer_totals, *(self.state.private[name] for name in self.form.users)
        fine = torch.stack([each.isfinite().all() for each in learned]).all()
        figures = super().figures_of_all()
        figures[0].masked_fill_(~fine, torch.nan)
        figures = figures.cpu()  # the only time that the host waits
        if not figures[0].isfinite().all() and self.rows.isfinite().all():
            log.warning(
                "round %d: '%s' diverges, or has numbers above %s, which need --engine torch on a GPU",
                self.round,
                self.method.name,
                f"{gpu_phases.LARGEST:,}",
            )
        return figures

    def parts(self) -> Iterator[tuple[int, int, int]]:
        """Devices, from one to another, that fit in memory together, and how many rows they have at most."""
        n_items, shape = len(self.rows), self.shape
        row = shape.sizes[0] + 2 * shape.sizes[1] + sum(shape.sizes[2:3]) + 5
        row += (self.method.epochs > 1) * self.rows.shape[1]
        device = 2 * shape.top[3] + n_items
        # Few parts: at the end of each kernel processors wait for its last devices
        memory = max(GPU_MEMORY, torch.cuda.get_device_properties(self.device).total_memory // 12)
        begin = rows = size = 0
        for number, length in enumerate(self.lengths):
            own = min(length, n_items)
            if begin < number and 4 * (size + own * row + device) > memory:
                yield begin, number, rows
                begin, rows, size = number, 0, 0
            rows, size = rows + own, size + own * row + device
        yield begin, len(self.lengths), rows


class _Part:
    """Devices that play together."""

    def __init__(self, round_: PhasesRound, drawn: Drawn, count: int) -> None:
        self.round, self.drawn, self.shape, self.form = round_, drawn, round_.shape, round_.form
        shape, form, method, floats = round_.shape, round_.form, round_.method, round_.floats
        self.devices, (self.n_items, width) = len(drawn.users), round_.rows.shape
        self.product, self.dim, self.wide = shape.product, *shape.sizes[:2]
        self.epochs, self.lift = method.epochs, float(min(method.batch, round_.lengths[0]))
        """Gradients are about one over the size of a batch: `lift` times that, half precision holds them well."""
        self.values = shape.top[3] - shape.at[0]
        """Of all layers but U."""
        bounds, ends = drawn.counts.clamp(max=self.n_items), floats(count, self.wide)
        self.rows = gpu_phases.Rows(
            first=bounds.cumsum(0, dtype=torch.int64) - bounds,
            counts=round_.zeros(self.devices),
            codes=round_.zeros(count),
            shares=floats(count),
            errors=floats(count),
            later=floats(count),
            middle=floats(count, shape.sizes[2]) if self.deep else ends,
            hidden=floats(count, self.wide),
            pulls=floats(count, self.dim),
            ends=ends,
            kept=floats(count, width) if self.epochs > 1 else ends,
        )
        self.server = Server(round_.rows, round_.flat, round_.known)
        self.weights = round_.zeros(self.devices, self.n_items, dtype=torch.float32)
        self.emphases = floats(self.devices, self.n_items if form.emphasis else 0)
        self.layers, self.nets = floats(self.devices, self.values), floats(self.devices, self.values)
        """Gradients of layers; layers moved uphill."""
        self.user = round_.flat[: self.dim * self.wide].view(self.dim, self.wide)
        self.bias = round_.flat[shape.at[1] : shape.at[1] + self.wide]
        self.top = round_.flat[shape.top[0] : shape.top[0] + self.product]

    @cached_property
    def deep(self) -> bool:
        """There is a layer above the first."""
        return len(self.shape.sizes) > 2

    def play(self, total: Tensor, figures: Tensor) -> None:
        """All epochs of the devices: adds what they send of rows to `total`, and fills in their figures."""
        private, names = self.round.state.private, names_kept(self.form)
        vectors, m, v, t = (taken(private, each, self.drawn.users) for each in names)
        steps = t[:, 0].contiguous()  # the counts of all names are the same
        tallies = self.vectors(2 + len(self.round.layers))
        sent: list[tuple[Tensor, Tensor]] = []
        gradients = torch.zeros_like(self.layers) if self.epochs > 1 else self.layers
        for epoch in range(self.epochs):
            self.gather(epoch)
            losses, slope, pull, owns = self.gradients(vectors)
            self.deliver(epoch, owns, total, *tallies[:2])
            if self.epochs > 1:
                gradients += self.layers
            sent.append((vectors.clone(), pull))
            figures[0] += losses
            Adam().step_(vectors, slope, m, v, steps, self.form.rate)
        self.send(gradients, sent, tallies[2:])
        figures[1], figures[2], figures[3:] = self.epochs, self.rows.counts, torch.stack(tallies)
        for each, value in zip(names, (vectors, m, v, steps[:, None].expand_as(t)), strict=True):
            put(private, each, self.drawn.users, value)

    def gather(self, epoch: int) -> None:
        """The rows of the devices and their weights."""
        emphasised = self.form.emphasis is not None
        gpu_phases.gather[(self.devices,)](
            self.drawn,
            self.rows,
            self.drawn.order[epoch],
            self.weights,
            self.round.emphasis(),
            self.emphases,
            self.round.method.batch,
            self.n_items,
            AGAIN=epoch > 0,
            EMPHASISED=emphasised,
            SWEEP=_SWEEP,
        )

    def gradients(self, vectors: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The three passes. Returns losses, the gradients of p and q, and of those that are sent the sums of d_0 and
        what errors are multiplied by for those of v; the rest stays with the rows and layers."""
        form, product = self.form, self.product
        p, q = vectors[:, :product], vectors[:, product:]
        offsets, pairs, norms = torch.addmm(self.bias, q, self.user), self.top * p, q.square().sum(1)

        base = self.sums()
        self.through(gpu_phases.BASE, base, offsets, pairs, pairs, base.losses)
        self.slopes(base, p, offsets, base.losses, False)
        (far,) = self.vectors(1)
        gpu_phases.leave[(self.devices, 2)](self.server, self.rows, far, SHAPE=self.shape, **_HALVED)
        squares = far + base.squares * pairs.square().sum(1) + base.pull.square().sum(1) * norms
        squares += torch.linalg.vector_norm(self.layers, dim=1).square()
        scales = form.rho_shared / squares.sqrt().clamp(min=1e-12)
        torch.addcmul(self.round.flat[self.shape.at[0] :], self.layers, scales[:, None], out=self.nets)

        own, slope = self.sums(), self.slope(base)
        moved = slope * (form.rho_private / slope.norm(dim=1).clamp(min=1e-12))[:, None] + vectors
        uphill = torch.addmm(self.bias, moved[:, product:], self.user)
        self.through(gpu_phases.PRIVATE, own, uphill, self.top * moved[:, :product], pairs, scales)

        gpu_phases.enter[(self.devices, 2)](self.server, self.rows, self.nets, scales, SHAPE=self.shape, **_HALVED)
        shared, place = self.sums(), self.shape.top[0] - self.shape.at[0]
        uphill = offsets + (scales * (1 + norms))[:, None] * base.pull
        owns = self.nets[:, place : place + product] * p
        self.through(gpu_phases.SHARED, shared, uphill, owns, pairs, scales)
        self.slopes(shared, p, uphill, scales, True)
        return base.losses, self.slope(own), shared.pull, owns

    def through(
        self, which: int, into: gpu_phases.Sums, offsets: Tensor, owns: Tensor, pairs: Tensor, scales: Tensor
    ) -> None:
        """A pass, with what users bring to the first layer and h p; rows v lie `scales` times their errors in the base
        pass along `pairs`."""
        gpu_phases.through[(self.devices,)](
            self.server,
            self.rows,
            into,
            gpu_phases.UP * offsets,
            owns,
            pairs,
            self.nets,
            scales,
            self.lift,
            SHAPE=self.shape,
            PASS=which,
            SIZE=min(_SIZES[which], self.shape.wide[1]),
            **_PLAIN,
        )

    def slopes(self, found: gpu_phases.Sums, p: Tensor, offsets: Tensor, scales: Tensor, moved: bool) -> None:
        """The gradients of layers after a pass, those above W_1 apart."""
        shape, start = self.shape, self.shape.at[0]
        inputs, last = (self.server, self.rows, self.layers), {"SHAPE": shape, "MOVED": moved}
        if self.deep:
            blocks = _blocks(self.wide, shape.sizes[2], _ABOVE)
            gpu_phases.slope_above[(self.devices, *blocks)](
                *inputs, gpu_phases.UP * offsets, self.lift, **last, **_ABOVE
            )
        blocks = _blocks(self.dim, self.wide, _FIRST)
        gpu_phases.slope[(self.devices, *blocks)](*inputs, found.pull, scales, self.lift, **last, **_FIRST)
        self.layers[:, shape.at[1] - start : shape.at[1] - start + self.wide] = found.pull
        self.layers[:, shape.top[0] - start : shape.top[0] - start + self.product] = p * found.mix
        self.layers[:, shape.top[1] - start] = found.errors

    def slope(self, found: gpu_phases.Sums) -> Tensor:
        """The gradient of p and q after a pass with the server's layers."""
        return torch.cat([self.top * found.mix, found.pull @ self.user.T], 1)

    def deliver(self, epoch: int, owns: Tensor, total: Tensor, changed: Tensor, filled: Tensor) -> None:
        """Send the gradients of rows, or keep them for the epochs that follow."""
        gpu_phases.deliver[(self.devices, 2)](
            self.rows,
            self.nets,
            owns,
            self.drawn.keys,
            laplace_quantiles(self.round.device),
            total,
            changed,
            filled,
            self.form.laplace,
            SHAPE=self.shape,
            BEFORE=epoch > 0,
            LAST=epoch == self.epochs - 1,
            NOISY=self.form.laplace > 0,
            **_HALVED,
        )

    def send(self, gradients: Tensor, sent: list[tuple[Tensor, Tensor]], filled: tuple[Tensor, ...]) -> None:
        """Send the gradients of layers."""
        vectors, pulls = (torch.stack(each) for each in zip(*sent, strict=True))
        for number, (begin, end) in enumerate(zip(self.shape.ends, self.shape.ends[1:], strict=False)):
            block = 1024 if end - begin > 256 else 256
            gpu_phases.send[(-(-(end - begin) // block), -(-self.devices // _GROUP))](
                gradients,
                vectors,
                pulls,
                self.drawn.keys,
                laplace_quantiles(self.round.device),
                self.round.layer_totals[-1],
                filled[number],
                self.form.laplace,
                self.devices,
                self.epochs,
                SHAPE=self.shape,
                NUMBER=number,
                NOISY=self.form.laplace > 0,
                BLOCK=block,
                GROUP=_GROUP,
            )

    def sums(self) -> gpu_phases.Sums:
        """Where a pass puts its sums."""
        pull, mix = self.round.floats(self.devices, self.wide), self.round.floats(self.devices, self.product)
        losses, errors, squares = self.vectors(3)
        return gpu_phases.Sums(pull, mix, losses, errors, squares, self.layers)

    def vectors(self, count: int) -> tuple[Tensor, ...]:
        """So many zeros of each device, aligned as other arrays are."""
        zeros = torch.zeros(count, -(-self.devices // 4) * 4, device=self.round.device)
        return tuple(each[: self.devices] for each in zeros)


def _blocks(high: int, wide: int, each: dict[str, Any]) -> tuple[int, int]:
    """How many blocks a matrix has."""
    return -(-high // each["HIGH"]), -(-wide // each["WIDE"])


def neural_round(form: NeuralScore, inputs: RoundInputs) -> NeuralRound:
    """A round of a method whose score is a network."""
    return PhasesRound(form, inputs) if form.gradients else NeuralRound(form, inputs)
