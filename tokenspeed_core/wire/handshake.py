# SPDX-License-Identifier: MIT
"""The messages of the handshake: msgpack maps, whose unknown keys are ignored."""

from __future__ import annotations

from typing import Any

import msgspec
from attrs import frozen

from tokenspeed_core.wire.packing import WireError, decoder_of, pack, unpack
from tokenspeed_hookspecs import EngineInfo

HELLO = "HELLO"
READY = "READY"
# What our own client calls itself in INIT; a gateway says nothing.
OWN_DIALECT = "tokenspeed-core"
DTYPES = ("bfloat16", "float16", "float32")
MAX_INDEX = 0xFFFF


@frozen(kw_only=True)
class ParallelSizes:
    """How an engine's ranks are laid out, for the gateway's information."""

    world_size: int = 1
    data_parallel_size: int = 1
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    decode_context_parallel_size: int = 1
    data_parallel_rank: int = 0


@frozen
class Init:
    """Where the engine is to connect, and whether its front end is our own client."""

    input_address: str
    output_address: str
    is_own_client: bool = False


def pack_identity(engine_index: int) -> bytes:
    """An engine's routing identity: its index, two bytes, little-endian."""
    if not 0 <= engine_index <= MAX_INDEX:
        raise WireError(f"expected an engine index in [0, {MAX_INDEX}], got {engine_index}")
    return engine_index.to_bytes(2, "little")


def unpack_identity(identity: bytes) -> int:
    """The engine index of an identity."""
    if len(identity) != 2:
        raise WireError(f"expected an engine identity of 2 bytes, got {identity[:16]!r}")
    return int.from_bytes(identity, "little")


def pack_status(status: str) -> bytes:
    """Encode HELLO or READY."""
    message = {"status": status, "local": True, "headless": True, "parallel_config_hash": None}
    return pack(message, status)


def unpack_status(payload: bytes) -> str:
    """The status of a HELLO or READY."""
    status = unpack(_STATUS, payload, what="a handshake status").status
    if status not in (HELLO, READY):
        raise WireError(f"expected the status {HELLO} or {READY}, got {status!r:.80}")
    return status


def pack_init(init: Init) -> bytes:
    """Encode INIT."""
    message: dict[str, object] = {
        "addresses": {
            "inputs": [init.input_address],
            "outputs": [init.output_address],
            "coordinator_input": None,
            "coordinator_output": None,
            "frontend_stats_publish_address": None,
        },
        "parallel_config": {},
    }
    if init.is_own_client:
        message["dialect"] = OWN_DIALECT
    return pack(message, "INIT")


def unpack_init(payload: bytes) -> Init:
    """Decode INIT; the first input and output address count."""
    init = unpack(_INIT, payload, what="INIT")
    for name, found in (("inputs", init.addresses.inputs), ("outputs", init.addresses.outputs)):
        if not found:
            raise WireError(f"INIT: expected an address in {name!r}, got none")
    own = init.dialect == OWN_DIALECT
    return Init(init.addresses.inputs[0], init.addresses.outputs[0], own)


def pack_ready(info: EngineInfo, sizes: ParallelSizes) -> bytes:
    """Encode the ready response: the gateway's keys, then ours."""
    _check_dtype(info.dtype)
    message = {
        "max_model_len": info.max_model_len,
        "num_gpu_blocks": info.num_pages,
        "prefix_granularity": info.page_size,
        "dtype": info.dtype,
        "vllm_version": info.version,
        "dp_stats_address": None,
        "max_num_seqs": info.max_num_seqs,
        "max_num_batched_tokens": 0,
        "instance_id": "",
        "kv_cache_size_tokens": info.num_pages * info.page_size,
        "kv_cache_max_concurrency": None,
        "kv_events_config": info.details.get("kv_events"),
        **{name: getattr(sizes, name) for name in SIZES},
        "model": info.model,
        "vocab_size": info.vocab_size,
        "features": [*info.features],
        "details": info.details,
    }
    return pack(message, "the ready response")


def unpack_ready(payload: bytes, engine_index: int) -> EngineInfo:
    """Decode the ready response of the engine with this index."""
    found = unpack(_READY, payload, what="a ready response")
    _check_dtype(found.dtype)
    return EngineInfo(
        index=engine_index,
        model=found.model,
        max_model_len=found.max_model_len,
        vocab_size=found.vocab_size,
        page_size=found.prefix_granularity or found.block_size,
        num_pages=found.num_gpu_blocks,
        dtype=found.dtype,
        version=found.vllm_version,
        max_num_seqs=found.max_num_seqs,
        features=tuple(found.features),
        details=found.details,
    )


def _check_dtype(dtype: str) -> None:
    if dtype not in DTYPES:
        raise WireError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r:.80}")


class _Status(msgspec.Struct):
    status: str


class _Addresses(msgspec.Struct):
    inputs: list[str]
    outputs: list[str]


class _Init(msgspec.Struct):
    addresses: _Addresses
    dialect: Any = None


class _Ready(msgspec.Struct):
    max_model_len: int = 0
    num_gpu_blocks: int = 0
    prefix_granularity: int = 0
    block_size: int = 0
    dtype: str = "bfloat16"
    vllm_version: str = ""
    max_num_seqs: int = 0
    model: str = ""
    vocab_size: int = 0
    features: list[str] = []
    details: dict[str, Any] = {}


SIZES = (
    "world_size",
    "data_parallel_size",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "decode_context_parallel_size",
    "data_parallel_rank",
)
_STATUS = decoder_of(_Status)
_INIT = decoder_of(_Init)
_READY = decoder_of(_Ready)
