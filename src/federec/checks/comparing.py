"""What all checks need: saying that something does not hold, comparing tensors, and small data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from federec.data.interactions import Interactions
from federec.data.split import Split, leave_one_out


class Broken(AssertionError):
    """A property that does not hold. The text says what was seen instead."""


def must(holds: bool, otherwise: str) -> None:
    """Break off where something does not hold."""
    if not holds:
        raise Broken(otherwise)


def close(actual: Tensor, expected: Tensor, what: str, tolerance: float) -> float:
    """The largest difference relative to the largest value; it must be within the tolerance."""
    must(actual.shape == expected.shape, f"{what}: shape {[*actual.shape]} instead of {[*expected.shape]}")
    actual, expected = actual.double(), expected.double()
    must(bool((actual.isfinite() == expected.isfinite()).all()), f"{what}: is not finite, or only one of the two is")
    actual, expected = (value.where(value.isfinite(), value.new_zeros(())) for value in (actual, expected))
    if not expected.numel():
        return 0.0
    scale = float(expected.abs().max()) + 1e-3
    difference = float((actual - expected).abs().max()) / scale
    must(difference <= tolerance, f"{what}: differs by {difference:.2g} of its largest value")
    return difference


def split_of(histories: Sequence[NDArray[np.int64]], n_items: int) -> Split:
    """Leave-one-out of histories given oldest first: the last item is the test, the one before it validation."""
    lengths = [len(history) for history in histories]
    data = Interactions(
        name="small",
        users=np.repeat(np.arange(len(histories)), lengths).astype(np.int32),
        items=np.concatenate(histories).astype(np.int32),
        user_ids=np.arange(len(histories)),
        item_ids=np.arange(n_items),
        times=np.concatenate([np.arange(n) for n in lengths]).astype(np.float64),
    )
    return leave_one_out(data)


def random_split(users: int = 12, items: int = 40, least: int = 3, most: int = 20, seed: int = 0) -> Split:
    """Users with `least` to `most` random distinct items."""
    rng = np.random.default_rng(seed)
    return split_of([rng.permutation(items)[: rng.integers(least, most + 1)] for _ in range(users)], items)


def uneven_split(few_items: bool) -> Split:
    """Devices of very different lengths. Few items: one device has them all and draws no negatives. Many items: most
    rows belong to one device."""
    rng = np.random.default_rng(1)
    lengths = [30, 1, 2, 3, 9, 9, 9, 8, 10, 14, 15, 15] if few_items else [1, 2, 3, 4, 8, 8, 8, 9, 9]
    n_items = 30 if few_items else 500
    return split_of([rng.permutation(n_items)[:n] for n in lengths], n_items)


def perturbed(values: dict[str, Tensor], scale: float) -> dict[str, Tensor]:
    """With every real number moved at random."""
    generator = torch.Generator().manual_seed(5)
    moved = {}
    for name, value in values.items():
        noise = torch.randn(value.shape, generator=generator) * scale
        moved[name] = value + noise.to(value) if value.is_floating_point() else value
    return moved
