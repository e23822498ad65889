"""The loss around a trained model, in two random directions (Li et al., NeurIPS 2018).

A direction is random normal. Each filter of it - an item's row, a user's vector, the weights of one unit - is scaled
to the length of that filter in the model; biases stay. So a step of 1 moves every filter by its own length, whatever
the scale of a method's parameters. The loss is the mean cross-entropy of a fixed sample of training samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from federec.cohort.draw import Devices
from federec.cohort.draw import draw as draw_samples
from federec.cohort.layers import Params
from federec.evaluation.protocols import protocol
from federec.methods.base import DeviceMethod
from federec.reproduction.drawings.base import Drawing, Request, Rows, column, groups
from federec.reproduction.drawings.look import WIDTH, Look
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
    """A line of panels for each data set: surfaces, then contour maps, with one scale for both methods."""
    sets, methods = groups(rows, "data"), list(groups(rows, "method"))
    figure = Figure(figsize=(WIDTH, 0.4 + 2.4 * len(sets)), layout="constrained")
    lines = figure.subfigures(len(sets), 1, squeeze=False)
    for line, (name, points) in zip(lines[:, 0], sets.items(), strict=True):
        line.supylabel(name, fontweight="bold", fontsize=14)
        heights = column(points, "loss")
        low, high = min(heights), max(heights)
        norm = LogNorm(low, high)
        own = groups(points, "method")
        maps = [line.add_subplot(1, 2 * len(methods), len(methods) + place + 1) for place in range(len(methods))]
        for place, method in enumerate(methods):
            size = len({row["x"] for row in own[method]})
            grid = Grid(*(np.reshape(column(own[method], key), (size, size)) for key in ("x", "y", "loss")))
            above = line.add_subplot(1, 2 * len(methods), place + 1, projection="3d")
            _surface(above, grid, norm, look)
            filled = _contours(maps[place], grid, norm, look)
            for axes in (above, maps[place]):
                axes.set_title(method if line is lines[0, 0] else "")
        maps[0].set_ylabel("direction 2")
        maps[1].set_yticklabels(())
        bar = line.colorbar(filled, ax=maps, ticks=np.geomspace(low, high, 4), format="%.2f", aspect=12, shrink=0.85)
        bar.ax.minorticks_off()
        bar.set_label("loss, nats")
    return figure


class Grid(NamedTuple):
    """Steps along both directions and the loss there, each [points, points]."""

    x: NDArray[np.float64]
    y: NDArray[np.float64]
    loss: NDArray[np.float64]


def ends(norm: LogNorm) -> tuple[float, float]:
    """The smallest and the largest loss of a scale."""
    assert norm.vmin is not None and norm.vmax is not None
    return norm.vmin, norm.vmax


def _surface(axes: Any, grid: Grid, norm: LogNorm, look: Look) -> None:
    """The loss as height. The maps beside it have the scale of the directions."""
    size = len(grid.x)
    axes.plot_surface(*grid, cmap=look.surface, norm=norm, rasterized=True, rcount=size, ccount=size)
    axes.set(xticks=(-1, 0, 1), yticks=(-1, 0, 1), xticklabels=(), yticklabels=(), zlim=ends(norm))
    axes.set_xlabel("direction 1", labelpad=-13, fontsize=11)
    axes.set_ylabel("direction 2", labelpad=-13, fontsize=11)
    axes.locator_params(axis="z", nbins=3)
    axes.tick_params(axis="z", pad=0)
    axes.set_box_aspect(None, zoom=1.12)
    for axis in (axes.xaxis, axes.yaxis, axes.zaxis):
        axis.set_pane_color(look.ground)


def _contours(axes: Axes, grid: Grid, norm: LogNorm, look: Look) -> Any:
    """Lines of equal loss; a cross marks the model. Levels grow by a factor."""
    levels = np.geomspace(*ends(norm), 13)
    filled = axes.contourf(*grid, levels, cmap=look.surface, norm=norm)
    filled.set_rasterized(True)
    axes.contour(*grid, levels, colors="#ffffff", linewidths=0.8)
    axes.plot([0], [0], marker="+", markersize=12, color=look.palette[1], markeredgewidth=3)
    axes.set(xticks=(-1, 0, 1), yticks=(-1, 0, 1), aspect="equal", xlabel="direction 1")
    axes.grid(False)
    return filled


def rise(points: Rows, radius: float = 0.5) -> tuple[float, float]:
    """The loss at the model itself, and the mean rise over the points within a radius."""
    centre = min(points, key=lambda row: float(row["x"]) ** 2 + float(row["y"]) ** 2)
    start = float(centre["loss"])
    near = [float(r["loss"]) for r in points if float(r["x"]) ** 2 + float(r["y"]) ** 2 <= radius**2 + 1e-9]
    return start, sum(near) / len(near) - start


def caption(rows: Rows) -> str:
    first, second = groups(rows, "method")
    told = []
    for name, points in groups(rows, "data").items():
        (start, low), (other, high) = (rise(own) for own in groups(points, "method").values())
        told.append(f"{low:.3f} against {high:.3f} on {name} (at the model itself {start:.3f} against {other:.3f})")
    return (
        f"The loss of {first} and {second} around the trained model, which the cross marks. Within half a step it "
        f"rises on average by {', '.join(told)}: the smaller the rise, the flatter. One step moves every item row, "
        "user vector and unit by its own length in a random direction. The two are different networks, so this does "
        "not show that flatness comes from sharpness-aware steps."
    )


LOSS_SURFACE = Drawing(
    "loss-surface",
    "FedRecGEL, Fig. 1 and 3",
    "training loss around the trained model in two random directions, FedRecGEL against FedNCF",
    data,
    draw,
    caption,
    sets=("ml-100k", "filmtrust", "lastfm-2k", "amazon-video"),
)
