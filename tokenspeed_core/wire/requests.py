# SPDX-License-Identifier: MIT
"""A request as the wire's positional array, `TokenizedGenerateReqInput`.

Fields 1 to 23 are the gateway's, in its order. Ours follow: 24 is the data-parallel rank a client
pinned the request to, which its own client has already followed, and 25 is the map of features that
have no field of their own. A field the core cannot serve becomes a feature of its name, so that a
plugin may claim it, and the request is refused where none does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tokenspeed_core.wire.packing import decoder_of, pack, tensors_in, unpack
from tokenspeed_core.wire.sampling import SamplingArray, sampling_array, sampling_params
from tokenspeed_hookspecs import AddRequest, LogprobOptions

TAG = "TokenizedGenerateReqInput"
LEAST_FIELDS = 10
FEATURES = (
    "token_ids_logprob",
    "input_embeds",
    "session_params",
    "custom_logit_processor",
    "input_multi_ids",
    "input_extra_infos",
    "input_ids_unpadded",
    "multimodal_inputs",
    "validation_error",
)
BOOTSTRAP = ("host", "port", "room")


class RequestArray(msgspec.Struct, array_like=True, tag=TAG):
    """The fields in their order, after the tag."""

    rid: str
    http_worker_ipc: str | None = None
    input_text: str | None = None
    input_ids: list[int] | None = None
    sampling_params: SamplingArray = msgspec.field(default_factory=SamplingArray)
    return_logprob: bool = False
    logprob_start_len: int = -1
    top_logprobs_num: int = 0
    token_ids_logprob: Any = None
    stream: bool = False
    input_embeds: Any = None
    session_params: Any = None
    custom_logit_processor: Any = None
    return_hidden_states: bool = False
    created_time: float = 0.0
    bootstrap_host: str | None = None
    bootstrap_port: int | None = None
    bootstrap_room: int | None = None
    input_multi_ids: Any = None
    input_extra_infos: Any = None
    input_ids_unpadded: Any = None
    multimodal_inputs: Any = None
    validation_error: Any = None
    data_parallel_rank: int | None = None
    features: dict[str, Any] | None = None


def pack_request(request: AddRequest) -> bytes:
    """Encode a request, without the defaults at the end of its array."""
    features = dict(request.features)
    wanted = request.logprobs
    array = RequestArray(
        rid=request.request_id,
        input_ids=[*request.prompt_ids],
        sampling_params=sampling_array(request.sampling, features),
        return_logprob=wanted is not None,
        stream=request.stream,
    )
    if wanted is not None:
        array.logprob_start_len = -1 if wanted.start is None else wanted.start
        array.top_logprobs_num = wanted.top
    _spread(array, features)
    array.features = features or None
    return pack([TAG, *_without_tail(array)], f"request {request.request_id!r}")


def unpack_request(payload: bytes, frames: Sequence[bytes] = ()) -> AddRequest:
    """Decode a request; `frames` are the message's tensors."""
    array = unpack(_DECODER, payload, what="a request")
    features = _collect(array, frames)
    sampling = sampling_params(array.sampling_params, features)
    logprobs = None
    if array.return_logprob:
        start = None if array.logprob_start_len == -1 else array.logprob_start_len
        logprobs = LogprobOptions(start, array.top_logprobs_num)
    return AddRequest(
        array.rid,
        array.input_ids or [],
        sampling,
        stream=array.stream,
        logprobs=logprobs,
        features=features,
    )


def request_id_in(payload: bytes) -> str | None:
    """The id of a request that may not decode as a whole, or None if even that cannot be read."""
    try:
        found = unpack(_ANY, payload, what="a request")
    except ValueError:
        return None
    if not isinstance(found, list) or len(found) < 2 or not isinstance(found[1], str):
        return None
    return found[1]


def _spread(array: RequestArray, features: dict[str, object]) -> None:
    for name in FEATURES:
        if features.get(name) is not None:
            setattr(array, name, features.pop(name))
    place = features.get("bootstrap")
    if isinstance(place, dict) and set(place) == set(BOOTSTRAP) and any(place.values()):
        for name in BOOTSTRAP:
            setattr(array, f"bootstrap_{name}", place[name])
        del features["bootstrap"]


def _collect(array: RequestArray, frames: Sequence[bytes]) -> dict[str, object]:
    features: dict[str, object] = dict(tensors_in(array.features or {}))
    for name in FEATURES:
        value = getattr(array, name)
        if value is not None:
            features[name] = tensors_in(value, frames)
    place = {name: getattr(array, f"bootstrap_{name}") for name in BOOTSTRAP}
    if any(value is not None for value in place.values()):
        features["bootstrap"] = place
    if array.return_hidden_states:
        features["return_hidden_states"] = True
    return features


def _without_tail(array: RequestArray) -> list[object]:
    values = list(msgspec.structs.astuple(array))
    while len(values) > LEAST_FIELDS and values[-1] == _DEFAULTS[len(values) - 1]:
        values.pop()
    return values


_DEFAULTS = [each.default for each in msgspec.structs.fields(RequestArray)]
_DECODER = decoder_of(RequestArray)
_ANY: msgspec.msgpack.Decoder[Any] = decoder_of(object)
