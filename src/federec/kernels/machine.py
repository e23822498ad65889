"""Instructions of the processor that numba has no function for."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_LONG, _INT, _BYTES = ir.IntType(64), ir.IntType(32), ir.IntType(8).as_pointer()


def _count_on(_: Any, counter: Any) -> Any:

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.atomic_rmw("add", array.data, ir.Constant(_LONG, 1), "acq_rel")

    return types.int64(counter), code


def pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """To the value at a place in a table: the first three arguments are the table, a row and a column."""
    table = signature.args[0]
    array = context.make_array(table)(context, builder, arguments[0])
    place = [context.cast(builder, arguments[i], signature.args[i], types.int64) for i in (1, 2)]
    return cgutils.get_item_pointer(context, builder, table, array, place)


def _fetch(_: Any, table: Any, row: Any, column: Any) -> Any:

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value = pointer(context, builder, signature, arguments)
        kind = ir.FunctionType(ir.VoidType(), [_BYTES, _INT, _INT, _INT])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        read, level, data = (ir.Constant(_INT, number) for number in (0, 2, 1))
        builder.call(function, [builder.bitcast(value, _BYTES), read, level, data])
        return context.get_dummy_value()

    return types.void(table, row, column), code


count_on: Any = intrinsic(_count_on)
"""`count_on(counter)`: the number in counter[0], int64, to which 1 is added. No two threads get the same, and whoever
comes later sees all that earlier ones wrote before."""

fetch: Any = intrinsic(_fetch)
"""`fetch(table, row, column)`: begin to load the line of memory with that value into the second cache, which can wait
for more lines at a time than the first one."""
