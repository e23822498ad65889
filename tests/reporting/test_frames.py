import sys

import numpy as np
import polars
import pytest

from federec.reporting.frames import frame

COLUMNS = {
    "user": np.array(["Ольга", "é"], object),
    "position": np.array([1, 2]),
    "value": [0.5, None],
    "nothing": [None, None],
}


def test_frames_are_of_polars_where_pandas_is_not_imported(monkeypatch):
    monkeypatch.delitem(sys.modules, "pandas", raising=False)
    made = frame(COLUMNS)
    assert isinstance(made, polars.DataFrame) and made.columns == list(COLUMNS)
    assert made["user"].to_list() == ["Ольга", "é"] and made["value"].to_list() == [0.5, None]


def test_frames_are_of_pandas_where_that_is_imported():
    pandas = pytest.importorskip("pandas", reason="frames of pandas")
    made = frame(COLUMNS)
    assert isinstance(made, pandas.DataFrame) and list(made.columns) == list(COLUMNS)
    assert list(made["user"]) == ["Ольга", "é"] and made["value"].isna().tolist() == [False, True]
