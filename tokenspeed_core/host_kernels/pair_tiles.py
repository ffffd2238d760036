# SPDX-License-Identifier: MIT
"""A tile of a product in bfloat16: a few rows by a block of columns, in registers.

The processor multiplies pairs of bfloat16 numbers and adds both products to a float32
(VDPBF16PS of AVX512-BF16; what is too small to be a normal number counts as zero). So a weight lies
in blocks of `COLUMNS` columns; in a block a pair of inputs follows the other, each for all columns,
and a tile reads it from start to end, once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import frozen
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import config, types
from numba.core import cgutils

from tokenspeed_core.host_kernels.vectors import intrinsic, load, offset_by, repeated

COLUMNS = 32
# 16 sums of 32 registers, which is enough that no product waits for the one before it.
MOST_ROWS = 8
_LANES = 16  # float32 numbers, or pairs of bfloat16, of a register
_VECTORS = COLUMNS // _LANES
_WHOLE, _HALF, _PAIR = 64, 32, 4  # bytes of a register, of as many bfloat16 numbers, of a pair
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_FLOATS = ir.VectorType(ir.FloatType(), _LANES)


class _BFloat(ir.Type):  # type: ignore[misc]  # llvmlite has no types
    """LLVM's bfloat, which llvmlite does not name."""

    def __str__(self) -> str:
        return "bfloat"


_PAIRS = ir.VectorType(_BFloat(), 2 * _LANES)
_HALVES = ir.VectorType(_BFloat(), _LANES)


def has_pair_products() -> bool:
    """Whether this processor multiplies pairs, and numba was not told to compile for another one.

    Told so, it would end the process: for a step that the other does not have there is no code.
    """
    is_told = config.CPU_NAME is not None or config.CPU_FEATURES is not None
    if is_told or not config.ENABLE_AVX:
        return False
    return bool(get_host_cpu_features().get("avx512bf16"))


@intrinsic
def multiply_tile(_context: object, arguments: Any, block: Any, row: Any, rows: Any) -> Any:
    """Multiply `rows` rows, 1 to `MOST_ROWS`, from `row` on by the block's columns.

    `arguments` is the address of a kernel's: the addresses of `x` bfloat16 [n, 2 x pairs], of
    the weight bfloat16 [blocks, pairs, COLUMNS, 2], of what each sum starts with, float32
    [blocks x COLUMNS], and of `out` bfloat16 [n, blocks x COLUMNS]; then `pairs` and `blocks`.

    A sum runs over the pairs in order, of a pair the second product first, whatever `rows` is.
    """

    def emit(context: Any, b: ir.IRBuilder, _: object, given: list[ir.Value]) -> ir.Value:
        arguments, block, row, rows = given
        tile = _Tile.at(b, arguments, block=block, row=row)
        after = b.append_basic_block("multiplied")
        choice = b.switch(rows, after)
        for count in range(1, MOST_ROWS + 1):
            case = b.append_basic_block("rows")
            choice.add_case(_I64(count), case)
            b.position_at_end(case)
            tile.multiply(count)
            b.branch(after)
        b.position_at_end(after)
        return context.get_dummy_value()

    counts = [types.int64] * 3
    return types.void(types.CPointer(types.int64), *counts), emit


@frozen(eq=False, kw_only=True)
class _Tile:
    """Where a tile begins: addresses, and bytes from one row to the next; and how many pairs."""

    b: ir.IRBuilder
    x: ir.Value
    x_pitch: ir.Value
    weight: ir.Value
    start: ir.Value
    out: ir.Value
    out_pitch: ir.Value
    pairs: ir.Value

    @classmethod
    def at(cls, b: ir.IRBuilder, arguments: ir.Value, *, block: ir.Value, row: ir.Value) -> _Tile:
        x, weight, start, out, pairs, blocks = (
            b.load(b.gep(arguments, [_I64(i)])) for i in range(6)
        )
        x_pitch, out_pitch = b.mul(pairs, _I64(_PAIR)), b.mul(blocks, _I64(_VECTORS * _HALF))
        return cls(
            b=b,
            x=b.add(x, b.mul(row, x_pitch)),
            x_pitch=x_pitch,
            weight=offset_by(b, weight, b.mul(block, pairs), size=_VECTORS * _WHOLE),
            start=offset_by(b, start, block, size=_VECTORS * _WHOLE),
            out=b.add(b.add(out, b.mul(row, out_pitch)), b.mul(block, _I64(_VECTORS * _HALF))),
            out_pitch=out_pitch,
            pairs=pairs,
        )

    def multiply(self, rows: int) -> None:
        b = self.b
        starts = [_vector(b, self.start, i, kind=_FLOATS) for i in range(_VECTORS)]
        totals = _for_each(b, self.pairs, self._with_pair, carried=starts * rows)
        for i, total in enumerate(totals):
            line = b.add(self.out, b.mul(self.out_pitch, _I64(i // _VECTORS)))
            at = offset_by(b, line, _I64(i % _VECTORS), size=_HALF)
            rounded = _call(b, "cvtneps2bf16", _HALVES, given=[total])
            b.store(rounded, b.inttoptr(at, _HALVES.as_pointer())).align = 2

    def _with_pair(self, pair: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
        """The sums, a row's after the other's, with one pair of inputs more."""
        b = self.b
        mine = offset_by(b, self.weight, pair, size=_VECTORS * _WHOLE)
        weights = [_vector(b, mine, i, kind=_PAIRS) for i in range(_VECTORS)]
        found = []
        for i in range(0, len(totals), _VECTORS):
            line = b.add(self.x, b.mul(self.x_pitch, _I64(i // _VECTORS)))
            word = load(b, offset_by(b, line, pair, size=_PAIR), _I32, align=2)
            inputs = b.bitcast(repeated(b, word, _LANES), _PAIRS)
            for total, weight in zip(totals[i : i + _VECTORS], weights, strict=True):
                found.append(_call(b, "dpbf16ps", _FLOATS, given=[total, inputs, weight]))
        return found


def _for_each(
    b: ir.IRBuilder,
    count: ir.Value,
    body: Callable[[ir.Value, list[ir.Value]], list[ir.Value]],
    *,
    carried: list[ir.Value],
) -> list[ir.Value]:
    """What is left of `carried` once `body` replaced it for each of `count` numbers, at least
    one."""
    before, loop = b.block, b.append_basic_block("pairs")
    b.branch(loop)
    b.position_at_end(loop)
    index = b.phi(_I64)
    held = [b.phi(value.type) for value in carried]
    results = body(index, list(held))
    following = b.add(index, _I64(1))
    for phi, first, later in zip(
        [index, *held], [_I64(0), *carried], [following, *results], strict=True
    ):
        phi.add_incoming(first, before)
        phi.add_incoming(later, b.block)
    after = b.append_basic_block("summed")
    b.cbranch(b.icmp_signed("<", following, count), loop, after)
    b.position_at_end(after)
    return results


def _vector(b: ir.IRBuilder, address: ir.Value, index: int, *, kind: ir.Type) -> ir.Value:
    return load(b, b.add(address, _I64(index * _WHOLE)), kind, align=4)


def _call(b: ir.IRBuilder, name: str, result: ir.Type, *, given: list[ir.Value]) -> ir.Value:
    kind = ir.FunctionType(result, [value.type for value in given])
    whole = f"llvm.x86.avx512bf16.{name}.512"
    return b.call(cgutils.get_or_insert_function(b.module, kind, whole), given)
