# SPDX-License-Identifier: MIT
"""msgpack, with one error for everything that cannot be written or read.

Only plain values and raw tensor bytes travel. Extension types 1 and 2 are other engines' pickles;
they are refused in both directions, as is every other extension but the tensors' type 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple, TypeVar

import msgspec

MAX_REQUEST_BYTES = 64 << 20
MAX_CONTROL_BYTES = 1 << 30
TENSOR_EXTENSION = 3
# Deeper values are nobody's wish, and would exhaust the stack of whoever walks them.
MAX_DEPTH = 128
_SHOWN_BYTES = 16
T = TypeVar("T")


class WireError(ValueError):
    """A message is not what the wire says; the text tells what was expected and what came."""


class TensorBytes(bytes):
    """A tensor's raw little-endian bytes."""


class Tensor(NamedTuple):
    """A tensor on the wire: the name of its dtype, its shape, its bytes."""

    dtype: str
    shape: list[int]
    data: TensorBytes


def pack(message: object, what: str) -> bytes:
    """Encode a message; WireError if a value has no place on the wire."""
    try:
        return _ENCODER.encode(message)
    except (TypeError, OverflowError, RecursionError, UnicodeError, ValueError) as error:
        raise WireError(f"{what} cannot be sent: {error}") from error


def unpack(decoder: msgspec.msgpack.Decoder[T], payload: bytes | memoryview, *, what: str) -> T:
    """Decode a message; WireError if it is not of the decoder's type."""
    if len(payload) > MAX_CONTROL_BYTES:
        raise WireError(f"{what}: expected at most {MAX_CONTROL_BYTES} bytes, got {len(payload)}")
    try:
        return decoder.decode(payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        head = bytes(payload[:_SHOWN_BYTES]).hex(" ")
        raise WireError(
            f"{what}: {error} (got {len(payload)} bytes starting with {head or 'nothing'})"
        ) from error


def decoder_of(kind: type[T]) -> msgspec.msgpack.Decoder[T]:
    """A decoder for one kind of message."""
    return msgspec.msgpack.Decoder(kind, ext_hook=_extension)


def tensors_in(value: Any, frames: Sequence[bytes] = ()) -> Any:
    """Replace every `[dtype, shape, data]` in a decoded value by a Tensor.

    With `frames`, `data` may also be the index of one of them, counted from 1. WireError for a
    value that is nested too deeply.
    """
    return _with_tensors(value, frames, levels=MAX_DEPTH)


def _with_tensors(value: Any, frames: Sequence[bytes], *, levels: int) -> Any:
    if not isinstance(value, dict | list):
        return value
    if levels == 0:
        raise WireError(f"expected values of at most {MAX_DEPTH} levels, got deeper ones")
    if isinstance(value, dict):
        return {key: _with_tensors(each, frames, levels=levels - 1) for key, each in value.items()}
    data = _tensor_data(value, frames)
    if data is not None:
        return Tensor(value[0], value[1], data)
    return [_with_tensors(each, frames, levels=levels - 1) for each in value]


def _tensor_data(value: list[Any], frames: Sequence[bytes]) -> TensorBytes | None:
    if len(value) != 3 or not isinstance(value[0], str) or not isinstance(value[1], list):
        return None
    data = value[2]
    if isinstance(data, TensorBytes):
        return data
    if not frames or not isinstance(data, int):
        return None
    if not 1 <= data <= len(frames):
        raise WireError(f"a tensor is in frame {data}; expected one of 1 to {len(frames)}")
    return TensorBytes(frames[data - 1])


def _extension(code: int, data: memoryview) -> TensorBytes:
    if code != TENSOR_EXTENSION:
        raise WireError(f"expected extension type {TENSOR_EXTENSION} (a tensor), got type {code}")
    return TensorBytes(data)


def _plain(value: object) -> object:
    """What msgspec does not know by itself: numpy's numbers, and other people's containers."""
    if isinstance(value, TensorBytes):
        return msgspec.msgpack.Ext(TENSOR_EXTENSION, bytes(value))
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"values of type {type(value).__name__} are not sent, got {value!r:.80}")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)
