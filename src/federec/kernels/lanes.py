"""Sixteen numbers at once: a line of memory as one value of a kernel.

The compiler does as much for long loops by itself. But it unrolls a loop over a row so that each turn takes 64 numbers,
and what is left of a row, often all of it, goes through slower code."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic, models, register_model

from federec.kernels.machine import pointer

LINE = 16
"""Numbers of 32 bits in a line of memory."""

_VECTOR = ir.VectorType(ir.FloatType(), LINE)
_NONE = ir.Constant(_VECTOR, [0.0] * LINE)
_INT = ir.IntType(32)
_FLOAT = 4  # bytes
_FUSED = ("contract",)  # a product and a sum may become one instruction


class _Lanes(types.Type):
    """The type of such a value."""


class _Model(models.PrimitiveModel):
    """How it is kept: in one register, or in as many as the processor needs."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


register_model(_Lanes)(_Model)
_lanes = _Lanes("lanes")


def _pointer(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    """To the first of the numbers."""
    table = signature.args[0]
    if table.layout != "C" or table.dtype != types.float32:
        raise TypingError(f"lanes are numbers of 32 bits side by side; {table} is something else")
    return builder.bitcast(pointer(context, builder, signature, arguments), _VECTOR.as_pointer())


def _read(_: Any, table: Any, row: Any, column: Any) -> Any:

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(_pointer(context, builder, signature, arguments), align=_FLOAT)

    return _lanes(table, row, column), code


def _write(_: Any, table: Any, row: Any, column: Any, value: Any) -> Any:

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[3], _pointer(context, builder, signature, arguments), align=_FLOAT)
        return context.get_dummy_value()

    return types.void(table, row, column, value), code


def _plus(_: Any, a: Any, b: Any) -> Any:
    return _lanes(a, b), lambda context, builder, signature, arguments: builder.fadd(*arguments, flags=_FUSED)


def _minus(_: Any, a: Any, b: Any) -> Any:
    return _lanes(a, b), lambda context, builder, signature, arguments: builder.fsub(*arguments, flags=_FUSED)


def _times(_: Any, a: Any, scale: Any) -> Any:

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        first = builder.insert_element(_NONE, arguments[1], ir.Constant(_INT, 0))
        spread = builder.shuffle_vector(first, _NONE, ir.Constant(ir.VectorType(_INT, LINE), [0] * LINE))
        return builder.fmul(arguments[0], spread, flags=_FUSED)

    return _lanes(a, scale), code


def _filled(_: Any, a: Any) -> Any:

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        differs = builder.bitcast(builder.fcmp_unordered("!=", arguments[0], _NONE), ir.IntType(LINE))
        return builder.zext(builder.ctpop(differs), ir.IntType(64))

    return types.int64(a), code


def _larger(_: Any, a: Any, b: Any) -> Any:

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", *arguments, flags=("fast",)), *arguments)

    return _lanes(a, b), code


def _largest(_: Any, a: Any) -> Any:

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        name, kind = "llvm.vector.reduce.fmax.v16f32", ir.FunctionType(ir.FloatType(), [_VECTOR])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments, fastmath=("fast",))

    return types.float32(a), code


read: Any = intrinsic(_read)
"""`read(table, row, column)`: the sixteen numbers of a row that begin with that column."""

write: Any = intrinsic(_write)
"""`write(table, row, column, lanes)`: the same, the other way."""

plus: Any = intrinsic(_plus)
minus: Any = intrinsic(_minus)

times: Any = intrinsic(_times)
"""`times(lanes, scale)`: each number by the same one."""

larger: Any = intrinsic(_larger)
"""Of each place, the larger of two numbers."""

largest: Any = intrinsic(_largest)
"""The largest of the numbers."""

filled: Any = intrinsic(_filled)
"""How many of the numbers are not 0."""
