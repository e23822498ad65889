"""What the page needs of a run: its shared parameters in few bytes, and how a new device begins and learns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from federec.errors import UserError
from federec.export.precision import Precision, stored
from federec.federation.state import State
from federec.methods.base import DeviceMethod, Method
from federec.methods.ease import EASE
from federec.methods.fedease import FedEASE
from federec.methods.forms import LinearScore
from federec.web.plans import form_of, plan_of

NEIGHBOURS = 200
"""Weights that an item keeps where the method has one for each pair of items: the largest by absolute value."""


@dataclass(frozen=True)
class PageModel:
    """A model as the page reads it."""

    settings: dict[str, Any]
    """Plain values: the kind of model and how a device learns."""
    tensors: dict[str, NDArray[Any]]


def page_model(method: Method, shared: dict[str, Tensor], rounds: int, seed: int, precision: Precision) -> PageModel:
    """The model of a run whose best round is `rounds`; a method that the page cannot play is refused."""
    if precision == "float16":
        raise UserError("a page reads tables of int8 or float32; use --precision int8")
    if isinstance(method, FedEASE | EASE):
        return _neighbours(method, shared, rounds, precision)
    n_items = len(next(iter(shared.values()))) if shared else 0
    form = form_of(method, n_items)
    assert isinstance(method, DeviceMethod)
    start = State.start(method, n_items, 1, seed)
    tables = {"items": form.table} if isinstance(form, LinearScore) else {"common": form.common, "own": form.own}
    tensors: dict[str, NDArray[Any]] = {}
    for role, name in tables.items():
        if name is not None:
            tensors |= _table(role, shared[name] if name in shared else start.stores[name].start, precision)
    parts = [start.private[name][0].flatten() for name in (form.weight, form.bias) if name]
    tensors["start"] = torch.cat(parts).numpy()
    plans = [plan_of(method, form, round_) for round_ in range(1, rounds + 1)]
    settings = {
        "kind": "linear" if isinstance(form, LinearScore) else "additive",
        "dim": start.private[form.weight][0].numel(),
        "view": method.view,
        "plans": plans if any(plan != plans[0] for plan in plans) else plans[:1],
        "sends": form.table if isinstance(form, LinearScore) else form.common,
    }
    return PageModel(settings, tensors)


def _table(role: str, table: Tensor, precision: Precision) -> dict[str, NDArray[Any]]:
    try:
        return {f"{role}.{part}": array for part, array in stored(table.float().cpu().numpy(), precision).items()}
    except ValueError as error:
        raise UserError(f"the run's model cannot become a page: {error}; train again with smaller steps") from None


def _neighbours(method: FedEASE | EASE, shared: dict[str, Tensor], round_: int, precision: Precision) -> PageModel:
    """An item-item model: for each item its neighbours and their weights."""
    weights = shared["weights"].float().cpu()
    ids, values = nearest(weights, NEIGHBOURS)
    codes = np.int16 if len(weights) < 2**15 else np.int32
    settings: dict[str, Any] = {"kind": "neighbours", "recency": 0.0, "floor": 0.0, "window": 0.0, "sends": None}
    if isinstance(method, FedEASE):
        trial = method.trial(round_)
        settings |= {"recency": trial.recency, "floor": method.floor, "window": trial.window, "sends": "gram"}
    return PageModel(settings, {"ids": ids.numpy().astype(codes), **_table("weights", values, precision)})


def nearest(weights: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The largest weights of each row by absolute value: codes [n, most] and weights [n, most]."""
    ids = weights.abs().topk(min(most, weights.shape[1]), dim=1).indices.sort(dim=1).values
    return ids, weights.gather(1, ids)
