import numpy as np
import pytest

import federec as fr
from federec.methods.default import MOST_ITEMS, default_method
from federec.plugins.registry import build


def some(n_items, times):
    rows = np.arange(8, dtype=np.int32)
    known = rows.astype(np.float64) if times else None
    return fr.Interactions("some", rows // 4, rows, np.arange(2), np.arange(n_items), known)


@pytest.mark.parametrize("times", [False, True])
@pytest.mark.parametrize(("n_items", "name"), [(8, "fedease"), (MOST_ITEMS, "fedease"), (MOST_ITEMS + 1, "fedals")])
def test_the_size_of_the_catalogue_decides(n_items, name, times):
    chosen = default_method(some(n_items, times))
    assert chosen.name == name
    method = build(chosen.name, (), chosen.settings)
    assert "10,000 items" in chosen.why
    if isinstance(method, fr.FedEASE):
        assert method.most_rounds == (16 if times else 6)


def test_times_are_used_where_there_are_any():
    assert default_method(some(8, times=True)).settings["recency"] == [0.0, 2.0, 5.0, 10.0]
    assert default_method(some(8, times=False)).settings == {}
