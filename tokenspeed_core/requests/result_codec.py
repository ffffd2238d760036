# SPDX-License-Identifier: MIT
"""A forward's result as bytes, for the pipeline stages that did not sample.

What is absent stays absent: no alternatives and empty ones are different answers.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt
from attrs import asdict

from tokenspeed_core.errors import EngineError
from tokenspeed_hookspecs import Alternatives, FinishKind, FinishReason, ForwardResult

_Array = tuple[str, list[int], bytes]
_Ranked = tuple[_Array, _Array]
_Reason = dict[str, int | str | None]


class _Encoded(msgspec.Struct, array_like=True):
    """The result's fields, arrays as (dtype, shape, bytes)."""

    tokens: _Array
    lengths: _Array | None
    logprobs: _Array | None
    alternatives: _Ranked | None
    prompt_logprobs: _Array | None
    prompt_alternatives: _Ranked | None
    nan_rows: list[int]
    endings: list[tuple[int, _Reason]]
    compiles: int
    compile_seconds: float


def encode(result: ForwardResult) -> bytes:
    """The result as one payload."""
    return msgspec.msgpack.encode(
        _Encoded(
            _packed(np.asarray(result.tokens, dtype=np.int64)),
            _optional(result.lengths, np.int64),
            _optional(result.logprobs, np.float64),
            _ranked(result.alternatives),
            _optional(result.prompt_logprobs, np.float32),
            _ranked(result.prompt_alternatives),
            [int(row) for row in result.nan_rows],
            [(row, _fields(reason)) for row, reason in result.endings.items()],
            result.compiles,
            result.compile_seconds,
        )
    )


def decode(payload: bytes) -> ForwardResult:
    """The result of a payload. EngineError if it does not decode."""
    try:
        found = msgspec.msgpack.decode(payload, type=_Encoded)
        return ForwardResult(
            _array(found.tokens).tolist(),
            None if found.lengths is None else _array(found.lengths).tolist(),
            None if found.logprobs is None else _array(found.logprobs).tolist(),
            _alternatives(found.alternatives),
            None if found.prompt_logprobs is None else _array(found.prompt_logprobs),
            _alternatives(found.prompt_alternatives),
            found.nan_rows,
            {row: _reason(fields) for row, fields in found.endings},
            found.compiles,
            found.compile_seconds,
        )
    except (msgspec.MsgspecError, ValueError, TypeError) as error:
        raise EngineError(
            f"a forward's result of {len(payload)} bytes does not decode ({error}); the pipeline's "
            "stages run different versions"
        ) from error


def _packed(values: npt.NDArray[Any]) -> _Array:
    return values.dtype.str, list(values.shape), values.tobytes()


def _optional(values: Any, dtype: type[np.generic]) -> _Array | None:
    return None if values is None else _packed(np.asarray(values, dtype=dtype))


def _ranked(found: Alternatives | None) -> _Ranked | None:
    if found is None:
        return None
    return _packed(np.asarray(found.logprobs)), _packed(np.asarray(found.token_ids))


def _array(packed: _Array) -> npt.NDArray[Any]:
    dtype, shape, data = packed
    if np.dtype(dtype).kind not in "if":
        raise ValueError(f"an array of {dtype!r}")
    return np.frombuffer(data, dtype=dtype).reshape(shape)


def _alternatives(found: _Ranked | None) -> Alternatives | None:
    return None if found is None else Alternatives(_array(found[0]), _array(found[1]))


def _fields(reason: FinishReason) -> _Reason:
    return {**asdict(reason), "kind": reason.kind.value}


def _reason(fields: _Reason) -> FinishReason:
    return FinishReason(**cast("dict[str, Any]", {**fields, "kind": FinishKind(fields["kind"])}))
