"""Products of matrices in kernels: against NumPy, and what is refused."""

import numba
import numpy as np
import pytest

from federec.kernels.compiling import kernel
from federec.kernels.matrices import add_product, multiply


@pytest.fixture
def kernels(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def whole(x, y, out):
        multiply(x, y, out)

    def added(x, y, out):
        add_product(x, y, out)

    return kernel(whole), kernel(added)


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 4, 5), (3, 1, 1), (0, 4, 5), (200, 128, 96)], ids=str)
def test_products_are_those_of_numpy_however_factors_lie(kernels, shape):
    m, k, n = shape
    whole, added = kernels
    random = np.random.default_rng(0)
    x, y = (random.standard_normal(size).astype(np.float32) for size in ((m, k), (k, n)))
    for first in (x, np.asfortranarray(x)):
        for second in (y, np.asfortranarray(y)):
            out = np.full((m, n), np.nan, np.float32)  # what was there before plays no part
            whole(first, second, out)
            np.testing.assert_allclose(out, x @ y, rtol=1e-4, atol=1e-5)
            added(first, second, out)
            np.testing.assert_allclose(out, 2 * (x @ y), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 1, 5), (4, 1, 1), (1, 4, 1), (0, 4, 5), (70, 32, 90)], ids=str)
def test_matrices_may_be_parts_of_larger_ones(kernels, shape):
    m, k, n = shape
    whole, added = kernels
    random = np.random.default_rng(0)
    large = [random.standard_normal((100, 100)).astype(np.float32) for _ in range(2)]
    for x in (large[0][3 : 3 + m, 5 : 5 + k], large[0].T[3 : 3 + m, 5 : 5 + k]):
        for y in (large[1][2 : 2 + k, 7 : 7 + n], large[1].T[2 : 2 + k, 7 : 7 + n]):
            table = np.full((100, 100), 9, np.float32)
            whole(x, y, table[1 : 1 + m, 4 : 4 + n])
            added(x, y, table[1 : 1 + m, 4 : 4 + n])
            np.testing.assert_allclose(table[1 : 1 + m, 4 : 4 + n], 2 * (x @ y), rtol=1e-4, atol=1e-4)
            table[1 : 1 + m, 4 : 4 + n] = 9
            assert (table == 9).all()


def test_other_matrices_are_refused(kernels):
    x, y, out = (np.ones((4, 4), np.float32) for _ in range(3))
    for given in ((x[0], y, out), (x, y[None], out), (x.astype(np.float64), y, out), (x, y, np.asfortranarray(out))):
        with pytest.raises(numba.errors.TypingError, match="a matrix is two-dimensional"):
            kernels[0](*given)


def test_kernels_cannot_make_arrays(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))

    def makes(out):
        out[0] = np.ones(3).sum()

    with pytest.raises(numba.errors.TypingError, match="Only accept returning of array passed into the function"):
        kernel(makes)(np.zeros(1))
