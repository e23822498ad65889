"""Products of matrices, by SciPy's BLAS. numba's `np.dot` calls the same function, but counts references to arrays,
which kernels do not (`kernels.compiling`)."""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic
from numba.np.linalg import ensure_blas

from federec.kernels.compiling import jit

_FLOAT = 4  # bytes
_LONG, _INT, _CHAR, _BYTES = ir.IntType(64), ir.IntType(32), ir.IntType(8), ir.IntType(8).as_pointer()
_GEMM = ir.FunctionType(
    _INT,
    [
        *(_CHAR, _CHAR, _CHAR),  # kind of numbers; is the first matrix turned, the second one
        *(_LONG, _LONG, _LONG),  # m, n, k
        *(_BYTES, _BYTES, _LONG),  # scale of the product, first matrix, its width
        *(_BYTES, _LONG),  # second matrix
        *(_BYTES, _BYTES, _LONG),  # scale of what is there before, result
    ],
)


def _gemm(_: Any, x: Any, y: Any, out: Any, before: Any) -> Any:
    """x y plus `before` times `out`, into `out`. All may be parts of larger matrices, which lie row by row in memory;
    factors also column by column."""
    for matrix, layouts in ((x, "CFA"), (y, "CFA"), (out, "CA")):
        if matrix.ndim != 2 or matrix.dtype != types.float32 or matrix.layout not in layouts:
            raise TypingError(f"a matrix is two-dimensional, of numbers of 32 bits; {matrix} is something else")
    ensure_blas()

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def taken(place: int) -> tuple[Any, ...]:
            """Is the matrix turned, its width in memory, its numbers, its shape."""
            array = context.make_array(signature.args[place])(context, builder, arguments[place])
            shape, steps = (cgutils.unpack_tuple(builder, both) for both in (array.shape, array.strides))
            by_rows = builder.icmp_signed("==", steps[1], ir.Constant(_LONG, _FLOAT))
            letter = builder.select(by_rows, ir.Constant(_CHAR, ord("n")), ir.Constant(_CHAR, ord("t")))
            step, least = (builder.select(by_rows, *both) for both in (steps, shape[::-1]))
            step = builder.sdiv(step, ir.Constant(_LONG, _FLOAT))
            width = builder.select(builder.icmp_signed("<", step, least), least, step)  # a single row may have any
            return letter, width, builder.bitcast(array.data, _BYTES), shape

        def kept(value: Any) -> Any:
            return builder.bitcast(cgutils.alloca_once_value(builder, value), _BYTES)

        (turned_x, width_x, x_, (m, k)), (turned_y, width_y, y_, (_, n)), (_, width, out_, _) = map(taken, range(3))
        one, scale = kept(ir.Constant(ir.FloatType(), 1.0)), kept(arguments[3])
        # BLAS counts by columns, so that to it all three matrices are turned, and the second one comes first.
        given = (ir.Constant(_CHAR, ord("s")), turned_y, turned_x, n, m, k, one, y_, width_y, x_, width_x, scale)
        builder.call(cgutils.get_or_insert_function(builder.module, _GEMM, "numba_xxgemm"), (*given, out_, width))
        return context.get_dummy_value()

    return types.void(x, y, out, types.float32), code


_product: Any = intrinsic(_gemm)


@jit
def multiply(x: Any, y: Any, out: Any) -> None:
    """x y into `out`. Numbers that are neighbours in a row of `out`, and in a row or a column of the factors, must be
    neighbours in memory: BLAS knows no other matrices, and this is not checked."""
    _product(x, y, out, np.float32(0.0))


@jit
def add_product(x: Any, y: Any, total: Any) -> None:
    """Add x y to the total, with matrices as for `multiply`."""
    _product(x, y, total, np.float32(1.0))
