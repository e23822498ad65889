"""Rounds of methods whose devices send gradients of a network, by the GPU's kernels: phase after phase."""

from __future__ import annotations

from collections.abc import Iterator
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

BASE, PRIVATE, SHARED = range(3)
UP = 16.0
_W4 = {"num_warps": 4, "num_stages": 1}
CONFIG: dict[str, Any] = {
    "through": {"TILE": 64, "SIZE": 64, **_W4},
    "slope_above": {"TILE": 64, "HIGH": 64, "WIDE": 64, **_W4},
    "slope": {"TILE": 64, "HIGH": 64, "WIDE": 64, **_W4},
    "leave": {"TILE": 64, "SPLIT": 2, **_W4},
    "enter": {"TILE": 64, "SPLIT": 2, **_W4},
    "deliver": {"TILE": 64, "SPLIT": 2, **_W4},
}


def config(name: str, kind: int = 0) -> dict[str, Any]:
    return CONFIG.get(f"{name}{kind}", CONFIG[name])


class PhasesRound(NeuralRound):
    """A round of a method whose devices send gradients of a network."""

    def __init__(self, form: NeuralScore, inputs: RoundInputs) -> None:
        super().__init__(form, inputs)
        # Rows that are not moved meet the same first layer on all devices: their products with it are taken once.
        self.known = first_products(inputs.state, form)
        self.schedule: Schedule | None = None

    def reserve(self, schedule: Schedule) -> None:
        self.schedule = schedule

    def launch(self, programs: int, drawn: Drawn, longest: int, asked: Asked, judged: bool, outcome: Outcome) -> None:
        assert self.schedule is not None
        outcome.figures.zero_()
        self.layer_totals.append(torch.zeros_like(self.flat))
        for begin, end, rows in self.parts(self.schedule.known):
            part = slice(begin, end)
            some = Drawn(
                *(each[part].clone() for each in drawn[:5]),  # a kernel is compiled anew for places not aligned
                drawn.samples,
                drawn.order,
            )
            self.play_part(some, rows, outcome.total, outcome.figures[:, part])

    def parts(self, lengths: list[int]) -> Iterator[tuple[int, int, int]]:
        """Devices, from one to another, that fit in memory together, and the number of their rows."""
        n_items = len(self.rows)
        row = 4 * (sum(self.shape.sizes[:2]) + self.shape.sizes[-1] + sum(self.shape.sizes[1:3]) + 4)
        device = 4 * (2 * self.shape.top[3] + n_items)
        begin = rows = size = 0
        for number, length in enumerate(lengths):
            own = min(length, n_items)
            if size + own * row + device > GPU_MEMORY and number > begin:
                yield begin, number, rows
                begin, rows, size = number, 0, 0
            rows, size = rows + own, size + own * row + device
        yield begin, len(lengths), rows

    def play_part(self, drawn: Drawn, count: int, total: Tensor, figures: Tensor) -> None:
        form, method, shape, device = self.form, self.method, self.shape, self.device
        devices, (n_items, width) = len(drawn.users), self.rows.shape
        product, dim, wide = shape.product, shape.sizes[0], shape.sizes[1]
        deep = len(shape.sizes) > 2
        free = shape.top[3] - shape.at[0]
        bounds = drawn.counts.clamp(max=n_items)
        several = method.epochs > 1
        lift = float(method.batch)
        ends = self.floats(count, wide)
        rows = gpu_phases.Rows(
            first=bounds.cumsum(0, dtype=torch.int64) - bounds,
            counts=self.zeros(devices),
            codes=self.zeros(count),
            shares=self.floats(count),
            errors=self.floats(count),
            later=self.floats(count),
            middle=self.floats(count, shape.sizes[2]) if deep else ends,
            hidden=self.floats(count, wide),
            pulls=self.floats(count, dim),
            ends=ends,
            kept=self.floats(count, width) if several else ends,
        )
        server = Server(self.rows, self.flat, UP * self.known)
        emphasised = form.emphasis is not None
        weights = self.zeros(devices, n_items, dtype=torch.float32)
        emphases = self.floats(devices, n_items if emphasised else 0)
        kept = [taken(self.state.private, names, drawn.users) for names in names_kept(form)]
        vectors, m, v = kept[:3]
        steps = kept[3][:, :1]
        user = self.flat[: dim * wide].view(dim, wide)
        bias = self.flat[shape.at[1] : shape.at[1] + wide]
        top = self.flat[shape.top[0] : shape.top[0] + product]
        layers = self.floats(devices, free)
        nets = self.floats(devices, free)
        tallies = aligned(2 + len(self.layers), devices, device)
        held_vectors, held_pulls = self.floats(method.epochs, devices, width), self.floats(method.epochs, devices, wide)

        def sums() -> gpu_phases.Sums:
            one = aligned(3, devices, device)
            return gpu_phases.Sums(
                torch.zeros(devices, wide, device=device), self.floats(devices, product), *one, layers
            )

        def slope_of(values: gpu_phases.Sums) -> Tensor:
            return torch.cat([top * values.mix, values.pull @ user.T], 1)

        def through(kind: int, offsets: Tensor, owns: Tensor, pairs: Tensor, scales: Tensor, into: gpu_phases.Sums) -> None:
            gpu_phases.through[(devices,)](
                server, rows, into, UP * offsets, owns, pairs, nets, scales, lift, SHAPE=shape, PASS=kind,
                **{**config("through", kind), "SIZE": min(config("through", kind)["SIZE"], shape.wide[1])},
            )  # fmt: skip
            if kind == PRIVATE:
                return
            moved = kind == SHARED
            if deep:
                tiles = config("slope_above", kind)
                gpu_phases.slope_above[(devices, -(-wide // tiles["HIGH"]), -(-shape.sizes[2] // tiles["WIDE"]))](
                    server, rows, layers, UP * offsets, lift, SHAPE=shape, MOVED=moved, **tiles
                )
            tiles = config("slope", kind)
            gpu_phases.slope[(devices, -(-dim // tiles["HIGH"]), -(-wide // tiles["WIDE"]))](
                server, rows, layers, into.pull, scales, lift, SHAPE=shape, MOVED=moved, **tiles
            )
            layers[:, dim * wide : dim * wide + wide] = into.pull
            place = shape.top[0] - shape.at[0]
            layers[:, place : place + product] = vectors[:, :product] * into.mix
            layers[:, shape.top[1] - shape.at[0]] = into.errors

        for epoch in range(method.epochs):
            order = drawn.order[epoch] if len(drawn.order) else drawn.samples
            gpu_phases.gather[(devices,)](
                drawn, rows, order, weights, self.emphasis(), emphases, method.batch, n_items, EPOCH=epoch,
                EMPHASISED=emphasised, SWEEP=1024,
            )  # fmt: skip
            p, q = vectors[:, :product], vectors[:, product:]
            offsets = torch.addmm(bias, q, user)
            pairs = top * p
            base = sums()
            none = base.losses
            through(BASE, offsets, pairs, pairs, none, base)
            tiles = config("leave")
            far = torch.zeros(devices, device=device)
            gpu_phases.leave[(devices, tiles["SPLIT"])](
                server, rows, far, SHAPE=shape, **tiles
            )
            squares = far + base.squares * pairs.square().sum(1) + torch.linalg.vector_norm(layers, dim=1).square()
            squares += base.pull.square().sum(1) * q.square().sum(1)
            scales = form.rho_shared / squares.sqrt().clamp(min=1e-12)
            torch.addcmul(self.flat[shape.at[0] :], layers, scales[:, None], out=nets)
            figures[0] += base.losses

            slope = slope_of(base)
            up = form.rho_private / slope.norm(dim=1).clamp(min=1e-12)
            moved = torch.addcmul(vectors, slope, up[:, None])
            mine = sums()
            through(PRIVATE, torch.addmm(bias, moved[:, product:], user), top * moved[:, :product], pairs, none, mine)
            slope = slope_of(mine)

            tiles = config("enter")
            gpu_phases.enter[(devices, tiles["SPLIT"])](
                server, rows, nets, scales, SHAPE=shape, **tiles
            )
            lifted = offsets + (scales * (1 + q.square().sum(1)))[:, None] * base.pull
            tops = nets[:, shape.top[0] - shape.at[0] : shape.top[0] - shape.at[0] + product]
            final = sums()
            through(SHARED, lifted, tops * p, pairs, scales, final)
            tiles = config("deliver")
            gpu_phases.deliver[(devices, tiles["SPLIT"])](
                rows, nets, tops * p, drawn.keys, laplace_quantiles(device), total, tallies[0], tallies[1],
                form.laplace, SHAPE=shape, BEFORE=epoch > 0, LAST=epoch == method.epochs - 1,
                NOISY=form.laplace > 0, **tiles,
            )  # fmt: skip
            if several:
                gathered = layers.clone() if epoch == 0 else gathered.add_(layers)
            else:
                gathered = layers
            held_vectors[epoch], held_pulls[epoch] = vectors, final.pull

            steps = steps + 1
            m = Adam.beta1 * m + (1 - Adam.beta1) * slope
            v = Adam.beta2 * v + (1 - Adam.beta2) * slope.square()
            root = (v / (1 - Adam.beta2**steps)).sqrt() + Adam.eps
            vectors = vectors - form.rate * m / (1 - Adam.beta1**steps) / root
        figures[1], figures[2] = method.epochs, rows.counts
        group = 64
        for number in range(len(shape.ends) - 1):
            size = shape.ends[number + 1] - shape.ends[number]
            block = 1024 if size > 256 else 256
            gpu_phases.send[(-(-size // block), -(-devices // group))](
                gathered, held_vectors, held_pulls, drawn.keys, laplace_quantiles(device), self.layer_totals[-1],
                tallies[2 + number], form.laplace, devices, method.epochs, SHAPE=shape, NUMBER=number,
                NOISY=form.laplace > 0, BLOCK=block, GROUP=group,
            )  # fmt: skip
        figures[3:] = torch.stack(tallies)
        kept = [vectors, m, v, steps.expand(-1, kept[3].shape[1])]
        for names, value in zip(names_kept(form), kept, strict=True):
            put(self.state.private, names, drawn.users, value)


def aligned(count: int, size: int, device: torch.device) -> tuple[Tensor, ...]:
    """Vectors of zeros, each of which begins where a kernel's other vectors do."""
    return tuple(each[:size] for each in torch.zeros(count, -(-size // 4) * 4, device=device))


def neural_round(form: NeuralScore, inputs: RoundInputs) -> NeuralRound:
    """A round of a method whose score is a network."""
    return PhasesRound(form, inputs) if form.gradients else NeuralRound(form, inputs)
