import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from federec.export.precision import LARGEST, restored, stored

VALUES = st.floats(-(2.0**100), 2.0**100, width=32)
TABLES = arrays(np.float32, array_shapes(min_dims=2, max_dims=3, min_side=1, max_side=6), elements=VALUES)


@given(TABLES)
def test_float32_is_exact(table):
    assert np.array_equal(restored(stored(table, "float32")), table)


@given(TABLES)
def test_int8_is_off_by_at_most_half_a_scale(table):
    small = stored(table, "int8")
    back = restored(small)
    assert small["values"].dtype == np.int8 and small["scales"].shape == (len(table),)
    assert back.dtype == np.float32 and back.shape == table.shape
    assert np.abs(small["values"].astype(int)).max(initial=0) <= LARGEST
    largest = np.abs(table.astype(np.float64)).reshape(len(table), -1).max(1, initial=0)
    off = np.abs(back.astype(np.float64) - table).reshape(len(table), -1).max(1, initial=0)
    # A scale below the normal numbers of float32 is itself rounded, by up to the smallest of them.
    assert (off <= largest / LARGEST * 0.501 + LARGEST * 2e-45).all()


@given(TABLES)
def test_int8_is_symmetric(table):
    assert np.array_equal(restored(stored(-table, "int8")), -restored(stored(table, "int8")))


@given(arrays(np.float32, (3, 4), elements=st.floats(-60000, 60000, width=32)))
def test_float16_has_eleven_bits(table):
    back = restored(stored(table, "float16"))
    assert (np.abs(back - table) <= np.abs(table) * 2.0**-11 + 2.0**-25).all()


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_an_empty_table_stays_empty(precision, shape):
    assert restored(stored(np.empty(shape, np.float32), precision)).shape == shape


def test_rows_of_different_size_have_scales_of_their_own():
    table = np.array([[1e-6, -5e-7], [1000.0, 1.0], [0.0, 0.0]], np.float32)
    assert restored(stored(table, "int8")) == pytest.approx(table, rel=0.01, abs=4)
    assert restored(stored(table, "int8"))[0] == pytest.approx(table[0], rel=0.01)


@pytest.mark.parametrize("precision", ["float16", "int8"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_refused(precision, value):
    with pytest.raises(ValueError, match="not finite"):
        stored(np.array([[value, 1.0]], np.float32), precision)


def test_values_beyond_float16_are_refused():
    with pytest.raises(ValueError, match="use int8"):
        stored(np.array([[70000.0]], np.float32), "float16")
