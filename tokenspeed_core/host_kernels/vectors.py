# SPDX-License-Identifier: MIT
"""Numbers and vectors at addresses, for kernels: what numba's arrays do too slowly or not at all.

bfloat16, which numba does not know, is the upper half of a float32. All offsets count elements, all
addresses bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from attrs import frozen
from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

Emitter = Callable[..., Any]
_F32, _I16, _I32, _I64 = ir.FloatType(), ir.IntType(16), ir.IntType(32), ir.IntType(64)
_FAST = ("reassoc", "contract", "nsz")
_PREFETCH_LINE = 64  # bytes


def intrinsic(typed: Callable[..., Any]) -> Emitter:
    """A function of kernels whose code we emit: `typed` gives its signature and what emits it."""
    made: Emitter = extending.intrinsic(typed)
    return made


@frozen
class ElementType:
    """How numbers lie in memory: `bits` 16 for bfloat16, 32 for float32."""

    bits: int

    @property
    def nbytes(self) -> int:
        """Bytes of one."""
        return self.bits // 8

    @property
    def stored(self) -> ir.Type:
        """The type of one in memory."""
        return _F32 if self.bits == 32 else _I16

    def widened(self, b: ir.IRBuilder, value: ir.Value) -> ir.Value:
        """A stored number as float32."""
        return value if self.bits == 32 else b.bitcast(b.shl(b.zext(value, _I32), _I32(16)), _F32)

    def read_vector(self, b: ir.IRBuilder, address: ir.Value, count: int) -> ir.Value:
        """`count` numbers in a row as a vector of float32."""
        if self.bits == 32:
            return load(b, address, ir.VectorType(_F32, count), align=4)
        wide = ir.VectorType(_I32, count)
        found = b.zext(load(b, address, ir.VectorType(_I16, count), align=2), wide)
        return b.bitcast(b.shl(found, ir.Constant(wide, [16] * count)), ir.VectorType(_F32, count))

    def rounded(self, b: ir.IRBuilder, value: ir.Value) -> ir.Value:
        """A float32 as it is stored: to the nearest, halves to even; what is no number stays so."""
        if self.bits == 32:
            return value
        whole = b.bitcast(value, _I32)
        upper = b.lshr(whole, _I32(16))
        up = b.add(whole, b.add(_I32(0x7FFF), b.and_(upper, _I32(1))))
        is_number = b.fcmp_ordered("ord", value, value)
        return b.trunc(b.select(is_number, b.lshr(up, _I32(16)), _I32(0x7FC0)), _I16)


BFLOAT16, FLOAT32 = ElementType(16), ElementType(32)


@cache
def reader(kind: ElementType) -> Emitter:
    """`read(address, offset)`: the number there, as float32."""

    @intrinsic
    def read(_context: object, address: Any, offset: Any) -> Any:
        def emit(_: object, b: ir.IRBuilder, __: object, given: list[ir.Value]) -> ir.Value:
            return kind.widened(b, b.load(_element(b, *given, kind=kind.stored)))

        return types.float32(types.int64, types.int64), emit

    return read


@cache
def writer(kind: ElementType) -> Emitter:
    """`write(address, offset, value)`: store a float32 there."""

    @intrinsic
    def write(_context: object, address: Any, offset: Any, value: Any) -> Any:
        def emit(context: Any, b: ir.IRBuilder, __: object, given: list[ir.Value]) -> ir.Value:
            address, offset, value = given
            b.store(kind.rounded(b, value), _element(b, address, offset, kind=kind.stored))
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, types.float32), emit

    return write


def _integer_reader(kind: ir.IntType) -> Emitter:
    @intrinsic
    def read(_context: object, address: Any, offset: Any) -> Any:
        def emit(_: object, b: ir.IRBuilder, __: object, given: list[ir.Value]) -> ir.Value:
            found = b.load(_element(b, *given, kind=kind))
            return found if kind.width == 64 else b.sext(found, _I64)

        return types.int64(types.int64, types.int64), emit

    return read


int32_at, int64_at = _integer_reader(_I32), _integer_reader(_I64)


@intrinsic
def to_nearest(_context: object, x: Any) -> Any:
    """A float32 rounded to a whole number, halves to even."""

    def emit(_: object, b: ir.IRBuilder, __: object, given: list[ir.Value]) -> ir.Value:
        kind = ir.FunctionType(_F32, [_F32])
        return b.call(cgutils.get_or_insert_function(b.module, kind, "llvm.rint.f32"), given)

    return types.float32(types.float32), emit


@intrinsic
def held_between(_context: object, x: Any, least: Any, most: Any) -> Any:
    """A float32 held between two others; the first of them where it is no number."""

    def emit(_: object, b: ir.IRBuilder, __: object, given: list[ir.Value]) -> ir.Value:
        x, least, most = given
        x = b.select(b.fcmp_ordered(">", x, least), x, least)
        return b.select(b.fcmp_ordered("<", x, most), x, most)

    return types.float32(types.float32, types.float32, types.float32), emit


@intrinsic
def power_of_two(_context: object, exponent: Any) -> Any:
    """2 to an int32 from -126 to 127, as float32."""

    def emit(_: object, b: ir.IRBuilder, __: object, given: list[ir.Value]) -> ir.Value:
        return b.bitcast(b.shl(b.add(given[0], _I32(127)), _I32(23)), _F32)

    return types.float32(types.int32), emit


@frozen
class HeadVectors:
    """What `count` query heads do with one position's key or value of `dim` numbers.

    Queries, sums and weights are float32, a head after the other; those of scores and weights are
    `pitch` apart.
    """

    score: Emitter  # (queries, key, scores, pitch): store a score for each head
    add: Emitter  # (sums, values, weights, pitch): add four positions' values, weighted
    add_one: Emitter  # the same for one position
    prefetch: Emitter  # (address): a position is needed soon


@cache
def head_vectors(dim: int, count: int, kind: ElementType) -> HeadVectors:
    """The operations on heads of one size."""

    @intrinsic
    def score(_context: object, queries: Any, key: Any, scores: Any, pitch: Any) -> Any:
        def emit(context: Any, b: ir.IRBuilder, _: object, given: list[ir.Value]) -> ir.Value:
            queries, key, scores, pitch = given
            found = kind.read_vector(b, key, dim)
            for head in range(count):
                mine = FLOAT32.read_vector(b, offset_by(b, queries, _I64(head * dim), size=4), dim)
                total = _total(b, b.fmul(mine, found, flags=_FAST), dim)
                place = offset_by(b, scores, b.mul(pitch, _I64(head)), size=4)
                b.store(total, b.inttoptr(place, _F32.as_pointer()))
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), emit

    @intrinsic
    def prefetch(_context: object, address: Any) -> Any:
        def emit(context: Any, b: ir.IRBuilder, _: object, given: list[ir.Value]) -> ir.Value:
            byte = ir.IntType(8).as_pointer()
            kind_of = ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
            fetch = cgutils.get_or_insert_function(b.module, kind_of, "llvm.prefetch.p0")
            for offset in range(0, dim * kind.nbytes, _PREFETCH_LINE):
                line = b.inttoptr(offset_by(b, given[0], _I64(offset), size=1), byte)
                b.call(fetch, [line, _I32(0), _I32(3), _I32(1)])  # to read, into the nearest cache
            return context.get_dummy_value()

        return types.void(types.int64), emit

    return HeadVectors(score, _adder(dim, count, kind, 4), _adder(dim, count, kind, 1), prefetch)


def _adder(dim: int, count: int, kind: ElementType, positions: int) -> Emitter:
    @intrinsic
    def add(_context: object, sums: Any, values: Any, weights: Any, pitch: Any) -> Any:
        def emit(context: Any, b: ir.IRBuilder, _: object, given: list[ir.Value]) -> ir.Value:
            sums, values, weights, pitch = given
            places = [offset_by(b, sums, _I64(head * dim), size=4) for head in range(count)]
            totals = [FLOAT32.read_vector(b, place, dim) for place in places]
            for position in range(positions):
                mine = offset_by(b, values, _I64(position * dim), size=kind.nbytes)
                found = kind.read_vector(b, mine, dim)
                for head in range(count):
                    at = b.add(b.mul(pitch, _I64(head)), _I64(position))
                    weight = load(b, offset_by(b, weights, at, size=4), _F32)
                    part = b.fmul(repeated(b, weight, dim), found, flags=_FAST)
                    totals[head] = b.fadd(totals[head], part, flags=_FAST)
            for place, total in zip(places, totals, strict=True):
                b.store(total, b.inttoptr(place, total.type.as_pointer())).align = 4
            return context.get_dummy_value()

        return types.void(*[types.int64] * 4), emit

    return add


def _element(b: ir.IRBuilder, address: ir.Value, offset: ir.Value, *, kind: ir.Type) -> ir.Value:
    """A pointer that a loop's offset moves: only so does the compiler see what a loop touches."""
    return b.gep(b.inttoptr(address, kind.as_pointer()), [offset])


def offset_by(b: ir.IRBuilder, address: ir.Value, offset: ir.Value, *, size: int) -> ir.Value:
    """The address of the element `offset` from one, each of `size` bytes."""
    return b.add(address, b.mul(offset, _I64(size)))


def load(b: ir.IRBuilder, address: ir.Value, kind: ir.Type, *, align: int | None = None) -> Any:
    """What lies at an address."""
    found = b.load(b.inttoptr(address, kind.as_pointer()))
    if align is not None:
        found.align = align  # a vector's own would be its size
    return found


def repeated(b: ir.IRBuilder, value: ir.Value, count: int) -> ir.Value:
    """A vector of `count` times the value."""
    nothing = ir.Constant(ir.VectorType(value.type, count), ir.Undefined)
    first = b.insert_element(nothing, value, _I32(0))
    return b.shuffle_vector(first, nothing, ir.Constant(ir.VectorType(_I32, count), [0] * count))


def _total(b: ir.IRBuilder, vector: ir.Value, count: int) -> ir.Value:
    kind = ir.FunctionType(_F32, [_F32, vector.type])
    name = f"llvm.vector.reduce.fadd.v{count}f32"
    add = cgutils.get_or_insert_function(b.module, kind, name)
    return b.call(add, [_F32(-0.0), vector], fastmath=("reassoc",))
