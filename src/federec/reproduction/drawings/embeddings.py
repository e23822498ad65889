"""Item embeddings as one device sees them: the user's items among all others, on a plane by t-SNE."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from federec.cohort.draw import Devices
from federec.errors import needs
from federec.evaluation.protocols import protocol
from federec.federation.device import stack
from federec.methods.base import DeviceMethod
from federec.reproduction.drawings.base import Drawing, Request, Rows, column, groups
from federec.reproduction.drawings.look import Look, legend, panels
from federec.reproduction.drawings.training import trained
from federec.runtimes.run import Run

METHODS = ("fedmf", "fedncf", "fedrecon", "pfedrec")
ADDITIVE = ("C (shared)", "D_i (private)", "C + D_i")
NEIGHBOURS = 10


def data(request: Request) -> Rows:
    """Coordinates of all items for one user, by method."""
    return _mapped(request, {method: seen(trained(request, method)) for method in METHODS})


def additive_data(request: Request) -> Rows:
    """The same for the parts of FedRAP's item rows."""
    run = trained(request, "fedrap")
    state, user, items = run.point.best_state, *_user(run)
    assert state is not None
    everything = torch.arange(run.data.n_items)[None]
    own = state.stores["own"].take(torch.tensor([user]), torch.zeros(1, 1, dtype=torch.int64), everything)[0]
    common = state.shared["common"]
    tables = dict(zip(ADDITIVE, (common, own, common + own), strict=True))
    return _mapped(request, {name: (table, items) for name, table in tables.items()})


def seen(run: Run) -> tuple[Tensor, Tensor]:
    """The item table [n_items, width] that one user's device ranks with in the best round, and the user's training
    items. Rows that a device tunes in the round are recomputed from the state that the round began with."""
    method, state, (user, items) = run.method, run.point.best_state, _user(run)
    assert isinstance(method, DeviceMethod) and state is not None
    table = method.item_vectors(state.shared)
    assert table is not None
    if method.view == "own":
        devices = Devices.of(run.config.split_of(run.data), protocol(run.config.protocol).close_held_out)
        cohort = stack(method, state, devices, torch.tensor([user]), run.config.seed, run.point.best.round)
        method.fit(cohort)
        table = table.clone()
        table[cohort.rows.ids] = torch.cat([*cohort.tables.values()], 1)
    return table, items


def _user(run: Run) -> tuple[int, Tensor]:
    """The user with more training items than three quarters of the others, and these items."""
    split = run.config.split_of(run.data)
    counts = np.diff(split.ptr)
    user = int(np.argsort(counts, kind="stable")[int(0.75 * (len(counts) - 1))])
    return user, torch.from_numpy(split.train[split.ptr[user] : split.ptr[user + 1]]).long().unique()


def purity(table: Tensor, items: Tensor) -> float:
    """The fraction of the user's items among the nearest neighbours of each of them, by cosine."""
    unit = torch.nn.functional.normalize(table, dim=1)
    near = unit[items] @ unit.T
    near[torch.arange(len(items)), items] = -torch.inf  # an item is no neighbour of itself
    found = near.topk(min(NEIGHBOURS, len(table) - 1), dim=1).indices
    return float(torch.isin(found, items).float().mean())


def _mapped(request: Request, tables: Mapping[str, tuple[Tensor, Tensor]]) -> Rows:
    tsne = needs("sklearn.manifold").TSNE
    rows: Rows = []
    for name, (table, items) in tables.items():
        request.say(f"t-SNE  {name}")
        perplexity = min(30.0, (len(table) - 1) / 3)
        places = tsne(random_state=request.seed, perplexity=perplexity, init="pca", n_jobs=1).fit_transform(table)
        known, pure = set(items.tolist()), round(purity(table, items), 2)
        for item, (x, y) in enumerate(places.tolist()):
            place = {"x": float(f"{x:.3g}"), "y": float(f"{y:.3g}")}
            rows.append({"panel": name, "item": item, **place, "positive": int(item in known), "purity": pure})
    return rows


def draw(rows: Rows, look: Look) -> Figure:
    """A panel for each table: the user's items over all others. Coordinates of t-SNE have no unit."""
    found = groups(rows, "panel")
    columns = 2 if len(found) == 4 else len(found)
    figure, axes = panels(len(found), 4.2 if columns == 2 else 3.9, columns)
    for each, (name, points) in zip(axes, found.items(), strict=True):
        kinds = (("other items", 0, look.faint, 8), ("the user's training items", 1, look.palette[1], 26))
        for words, positive, colour, size in kinds:
            chosen = [row for row in points if row["positive"] == positive]
            each.scatter(column(chosen, "x"), column(chosen, "y"), size, colour, label=words, rasterized=True)
        each.set(title=name, xticks=(), yticks=(), xlabel="t-SNE 1", ylabel="t-SNE 2")
        for spine in each.spines.values():
            spine.set_visible(True)
    legend(figure, axes[0], 2)
    return figure


def caption(rows: Rows) -> str:
    found = groups(rows, "panel")
    positives = sum(int(row["positive"]) for row in next(iter(found.values())))
    items = len(next(iter(found.values())))
    figures = ", ".join(f"{name} {float(points[0]['purity']):.0%}" for name, points in found.items())
    return (
        f"All {items} items as one device holds them, with the {positives} training items of its user. The fraction of "
        f"the user's own items among the {NEIGHBOURS} nearest neighbours of each of them (by cosine, before t-SNE) is "
        f"{figures}; by chance it is {positives / items:.0%}. The device has just trained on these items, so that the "
        "figure shows what it remembers, not how it ranks new items."
    )


EMBEDDINGS = Drawing(
    "embeddings",
    "PFedRec, Fig. 2",
    "t-SNE of item embeddings, one user's items against all others, by method",
    data,
    draw,
    caption,
)
ADDITIVE_EMBEDDINGS = Drawing(
    "additive-embeddings",
    "FedRAP, Fig. 5",
    "t-SNE of FedRAP's shared, private and added item rows of one user",
    additive_data,
    draw,
    caption,
)
