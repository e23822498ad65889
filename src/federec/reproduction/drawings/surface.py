"""The loss around a trained model, in two random directions (Li et al., NeurIPS 2018).

A direction is random normal. Each filter of it - an item's row, a user's vector, the weights of one unit - is scaled
to the length of that filter in the model; biases stay. So a step of 1 moves every filter by its own length, whatever
the scale of a method's parameters. The loss is the mean cross-entropy of a fixed sample of training samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from federec.cohort.draw import Devices
from federec.cohort.draw import draw as draw_samples
from federec.cohort.layers import Params
from federec.evaluation.protocols import protocol
from federec.methods.base import DeviceMethod
from federec.reproduction.drawings.base import Drawing, Request, Rows, column, groups
from federec.reproduction.drawings.look import WIDTH, Look, label
from federec.reproduction.drawings.training import trained
from federec.runtimes.run import Run

METHODS = ("fedrecgel", "fedncf")
POINTS = 51
"""Points along each direction."""
RADIUS = 1.0
DEVICES = 128
SAMPLES = 32
"""Training samples of each of these devices at most."""


@dataclass(frozen=True)
class Sampled:
    """A model's parameters for a fixed sample of training samples, stacked over devices."""

    method: DeviceMethod
    values: Params
    """Item rows of the samples [C, B, dim], users' parameters [C, ...] and layers [...]."""
    labels: Tensor
    real: Tensor
    """[C, B]: False for padding."""
    layers: frozenset[str]

    def loss(self, values: Params) -> float:
        """Mean cross-entropy of the samples with these parameters."""
        devices = len(self.labels)
        stacked = {n: v.expand(devices, *v.shape) if n in self.layers else v for n, v in values.items()}
        scores = self.method.score(stacked)
        losses = binary_cross_entropy_with_logits(scores, self.labels, reduction="none")
        return float(losses[self.real].mean())


def sampled(run: Run, devices: int = DEVICES, samples: int = SAMPLES) -> tuple[Sampled, Tensor, Tensor]:
    """A finished run's best model for samples of devices drawn at random; and the users [C] and items [C, B]."""
    method, state = run.method, run.point.best_state
    assert isinstance(method, DeviceMethod) and state is not None and not state.stores
    everyone = Devices.of(run.config.split_of(run.data), protocol(run.config.protocol).close_held_out)
    learners = everyone.ptr.diff().nonzero().flatten()
    generator = torch.Generator().manual_seed(run.config.seed)
    users = learners[torch.randperm(len(learners), generator=generator)[:devices]]
    # Negatives of a round that was not played: drawn as in training, but not those that the model saw last.
    drawn = draw_samples(everyone, users, run.config.seed, (run.config.rounds or 0) + 1, method.negatives)
    order = drawn.order(0)[:, :samples]
    items, labels = drawn.items.gather(1, order), drawn.labels.gather(1, order)
    real = torch.arange(items.shape[1]) < drawn.counts[:, None]
    declared = method.shared()
    values = {name: state.shared[name][items] if p.rows else state.shared[name] for name, p in declared.items()}
    values |= {name: state.private[name][users] for name in method.private()}
    layers = frozenset(name for name, param in declared.items() if not param.rows)
    return Sampled(method, values, labels, real, layers), users, items


def direction(run: Run, users: Tensor, items: Tensor, number: int) -> Params:
    """A random filter-normalised direction at the sampled parameters: an item has one direction for all devices."""
    method, state = run.method, run.point.best_state
    assert isinstance(method, DeviceMethod) and state is not None
    generator = torch.Generator().manual_seed(1000 * run.config.seed + number)
    found = {}
    for name, param in method.shared().items():
        moved = normalised(state.shared[name], generator, by_row=param.rows)
        found[name] = moved[items] if param.rows else moved
    for name in method.private():
        found[name] = normalised(state.private[name], generator, by_row=True)[users]
    return found


def normalised(values: Tensor, generator: torch.Generator, by_row: bool) -> Tensor:
    """Random numbers, each filter as long as that of the values: a row, or a unit's weights [inputs, unit]. 0 for a
    layer's biases."""
    if values.dim() == 1:
        return torch.zeros_like(values)
    random = torch.randn(values.shape, generator=generator)
    over = tuple(range(1, values.dim())) if by_row else (0,)
    length, own = (torch.linalg.vector_norm(each, dim=over, keepdim=True) for each in (values, random))
    scaled: Tensor = random * length / own.clamp(min=1e-12)
    return scaled


def surface(run: Run, points: int = POINTS, radius: float = RADIUS) -> Iterator[tuple[float, float, float]]:
    """(step along the first direction, along the second, loss) for every point of a square grid."""
    model, users, items = sampled(run)
    first, second = (direction(run, users, items, number) for number in (1, 2))
    steps = np.linspace(-radius, radius, points).tolist()
    with torch.no_grad():
        for x in steps:
            line = {name: value + x * first[name] for name, value in model.values.items()}
            for y in steps:
                yield x, y, model.loss({name: torch.add(v, second[name], alpha=y) for name, v in line.items()})


def data(request: Request) -> Rows:
    """The loss around the best round's model of each method."""
    rows: Rows = []
    for method in METHODS:
        run = trained(request, method)
        request.say(f"loss   {method}, {POINTS} x {POINTS} points")
        rows += [{"method": method, "x": x, "y": y, "loss": loss} for x, y, loss in surface(run)]
    return rows


def draw(rows: Rows, look: Look) -> Figure:
    """Above the surface of each method, below its contour map; one scale for all. Levels grow by a factor."""
    figure = Figure(figsize=(WIDTH, 8.6), layout="constrained")
    found = groups(rows, "method")
    heights = column(rows, "loss")
    low, high = min(heights), max(heights)
    levels, norm = np.geomspace(low, high, 13), LogNorm(low, high)
    for place, (method, points) in enumerate(found.items()):
        size = len({row["x"] for row in points})
        x, y, z = (np.reshape(column(points, name), (size, size)) for name in ("x", "y", "loss"))
        above: Any = figure.add_subplot(2, len(found), place + 1, projection="3d")
        above.plot_surface(x, y, z, cmap=look.surface, norm=norm, rasterized=True, rcount=size, ccount=size)
        above.set(xticks=(-1, 0, 1), yticks=(-1, 0, 1), zlim=(low, high), title=method)
        above.set(xlabel="direction 1", ylabel="direction 2", zlabel="loss, nats")
        above.locator_params(axis="z", nbins=4)
        above.zaxis.labelpad = 8
        above.set_box_aspect(None, zoom=0.82)
        for axis in (above.xaxis, above.yaxis, above.zaxis):
            axis.set_pane_color(look.ground)
        below = figure.add_subplot(2, len(found), len(found) + place + 1)
        below.contourf(x, y, z, levels, cmap=look.surface, norm=norm).set_rasterized(True)
        lines = below.contour(x, y, z, levels, colors="#ffffff", linewidths=0.8)
        below.clabel(lines, levels[1::2], fontsize=11, fmt="%.2f")
        below.plot([0], [0], marker="+", markersize=14, color=look.palette[1], markeredgewidth=3)
        below.set(xticks=(-1, -0.5, 0, 0.5, 1), yticks=(-1, -0.5, 0, 0.5, 1), aspect="equal")
        label(below, "steps in direction 1", "steps in direction 2")
        below.grid(False)
    return figure


def rise(points: Rows, radius: float = 0.5) -> tuple[float, float]:
    """The loss at the model itself, and the mean rise over the points within a radius."""
    centre = min(points, key=lambda row: float(row["x"]) ** 2 + float(row["y"]) ** 2)
    start = float(centre["loss"])
    near = [float(r["loss"]) for r in points if float(r["x"]) ** 2 + float(r["y"]) ** 2 <= radius**2 + 1e-9]
    return start, sum(near) / len(near) - start


def caption(rows: Rows) -> str:
    rises = {method: rise(points) for method, points in groups(rows, "method").items()}
    (flat, (start, least)), *_, (steep, (other, most)) = sorted(rises.items(), key=lambda pair: pair[1][1])
    compared = "higher" if start > other else "lower"
    return (
        f"Around its trained model (the cross) {flat} is flatter than {steep}: within half a step the loss rises by "
        f"{least:.3f} on average, against {most:.3f}. Its loss at the model itself is {compared}, {start:.3f} against "
        f"{other:.3f}. One step moves every item row, user vector and unit by its own length in a random direction. "
        "The two are different networks, so this does not show that flatness comes from sharpness-aware steps."
    )


LOSS_SURFACE = Drawing(
    "loss-surface",
    "FedRecGEL, Fig. 1 and 3",
    "training loss around the trained model in two random directions, FedRecGEL against FedNCF",
    data,
    draw,
    caption,
)
