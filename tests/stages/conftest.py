"""Updates of random devices."""

import pytest
import torch

from federec.cohort.update import Update
from federec.stages.randomness import Simulated


def _random_update(devices=5, n_items=40, seed=0, scale=1.0):
    """Devices with 1 to 12 rows in tables of width 4 and 3, and a layer of 2 x 3."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, 13, (devices,), generator=generator)
    ids = torch.cat([torch.randperm(n_items, generator=generator)[:n].sort().values for n in counts.tolist()])

    def normal(*shape):
        return torch.randn(*shape, generator=generator) * scale

    rows = {"a": normal(len(ids), 4), "b": normal(len(ids), 3)}
    return Update(n_items, ids, counts, rows, {"net": normal(devices, 2, 3)})


@pytest.fixture(scope="session")
def random_update():
    return _random_update


@pytest.fixture
def update():
    return _random_update()


@pytest.fixture
def random():
    return Simulated.of(3, 1, torch.arange(5))


@pytest.fixture(scope="session")
def parts():
    """What each device of a cohort would send by itself: its update as a cohort of one."""

    def cut(update):
        ends = update.counts.cumsum(0).tolist()
        for device, (count, end) in enumerate(zip(update.counts.tolist(), ends, strict=True)):
            own = slice(end - count, end)
            yield Update(
                update.n_items,
                update.ids[own],
                update.counts[device : device + 1],
                {name: rows[own] for name, rows in update.rows.items()},
                {name: layer[device : device + 1] for name, layer in update.layers.items()},
            )

    return cut
