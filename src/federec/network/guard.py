"""What a server refuses: an update must be what was asked for, and nothing that a stranger sends stops the server."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

REASONS = ("malformed", "replay", "duplicate", "catalogue", "dtype", "shape", "non-finite", "norm")


@dataclass(frozen=True)
class Rejection:
    """Why an update is not taken in."""

    reason: str
    """One of `REASONS`; of a reply that holds no update: `late`, `failed` or `version`."""
    detail: str


@dataclass(frozen=True)
class Expected:
    """The update that the server waits for."""

    run: str
    round: int
    catalogue: str
    """Its version."""
    items: int
    """How many it has."""
    rows: Mapping[str, tuple[int, ...]]
    """Item table -> shape of a row."""
    layers: Mapping[str, tuple[int, ...]]
    """Layer -> its shape."""
    ids: NDArray[np.int64] | None = None
    """The rows that the node was sent, which are those that it sends back; None means any."""
    devices: int = 1
    """Users that the sender hosts, at most."""
    max_norm: float | None = None
    """Of one user's message."""


def check(
    sender: object, metadata: object, arrays: object, expected: Expected, answered: Collection[object]
) -> Rejection | None:
    """Why the update of a sender is refused, None where it is as expected. `answered` are the senders whose update of
    this round was taken in. The metadata are run, round, catalogue, number of users, and sums of metrics over them with
    how many were summed; arrays are `ids`, `rows:NAME` and `layers:NAME`. Never raises, whatever it is given."""
    try:
        if not isinstance(metadata, Mapping) or not isinstance(arrays, Mapping):
            return Rejection("malformed", "it holds no metadata or no arrays")
        return next(_faults(sender, metadata, arrays, expected, answered), None)
    except Exception as error:
        return Rejection("malformed", f"{type(error).__name__}: {error}"[:200])


def _faults(
    sender: object,
    metadata: Mapping[Any, Any],
    arrays: Mapping[Any, Any],
    expected: Expected,
    answered: Collection[object],
) -> Iterator[Rejection]:
    """Whatever is wrong, what says most about the sender first."""
    run, round_, catalogue, devices = (metadata.get(name) for name in ("run", "round", "catalogue", "devices"))
    if type(run) is not str or type(round_) is not int or type(catalogue) is not str or type(devices) is not int:
        yield Rejection("malformed", "run, round, catalogue or number of users is missing")
        return
    if (run, round_) != (expected.run, expected.round):
        yield Rejection("replay", f"it is for round {round_} of run '{run}'"[:200])
    if sender in answered:
        yield Rejection("duplicate", "its update of this round is there already")
    if catalogue != expected.catalogue:
        yield Rejection("catalogue", f"it has {catalogue}, not {expected.catalogue}"[:200])
    if not 1 <= devices <= expected.devices:
        yield Rejection("malformed", f"it speaks for {devices} users, not for 1 to {expected.devices}")
    yield from _sum_faults(metadata.get("sums", {}), devices)
    yield from _array_faults(arrays, devices, expected)


def _sum_faults(sums: Mapping[str, tuple[float, int]], devices: int) -> Iterator[Rejection]:
    for name, (total, count) in sums.items():
        if not math.isfinite(total):
            yield Rejection("non-finite", f"its sum of '{name}' is not a number"[:200])
        elif count < 0 or (name.startswith(("valid ", "test ")) and not 0 <= total <= count + 1e-6 <= devices + 1e-6):
            yield Rejection("malformed", f"its '{name}' sums up to {total} over {count} of {devices} users"[:200])


def _array_faults(arrays: Mapping[Any, Any], devices: int, expected: Expected) -> Iterator[Rejection]:
    shapes = {f"layers:{name}": tuple(shape) for name, shape in expected.layers.items()}
    if expected.rows:
        ids = arrays.get("ids")
        count = len(ids) if isinstance(ids, np.ndarray) and ids.ndim == 1 else 0
        shapes |= {"ids": (count,)} | {f"rows:{name}": (count, *shape) for name, shape in expected.rows.items()}
    if missing := sorted(shapes.keys() - arrays.keys()):
        yield Rejection("malformed", f"'{missing[0]}' is missing")
    if more := sorted(map(str, arrays.keys() - shapes.keys() - {"ids"})):
        yield Rejection("malformed", f"'{more[0]}' was not asked for"[:200])
    if not expected.rows and len(arrays.get("ids", ())):
        yield Rejection("malformed", "it names rows, which were not asked for")
    values = {name: arrays[name] for name in shapes}
    if not all(isinstance(value, np.ndarray) for value in values.values()):
        yield Rejection("malformed", "what should be arrays is not")
    for name, value in values.items():
        wanted = np.dtype(np.int64 if name == "ids" else np.float32)
        if value.dtype != wanted:
            yield Rejection("dtype", f"'{name}' is {value.dtype}, not {wanted}")
        if value.shape != shapes[name]:
            yield Rejection("shape", f"'{name}' is {value.shape}, not {shapes[name]}")
    if expected.rows:
        ids = values.pop("ids")
        if expected.ids is not None and not np.array_equal(ids, expected.ids):
            yield Rejection("shape", "its rows are not those that it was sent")
        if len(ids) and (ids[0] < 0 or ids[-1] >= expected.items or bool((np.diff(ids) <= 0).any())):
            yield Rejection("shape", f"its rows are not items in ascending order, below {expected.items}")
    for name, value in values.items():
        if not bool(np.isfinite(value).all()):
            yield Rejection("non-finite", f"'{name}' has values that are not numbers")
    norm = math.sqrt(sum(float(np.square(value, dtype=np.float64).sum()) for value in values.values()))
    if expected.max_norm is not None and norm > expected.max_norm * devices:
        yield Rejection("norm", f"its norm is {norm:.4g}, over {expected.max_norm:g} for each of {devices} users")
