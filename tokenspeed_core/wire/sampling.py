# SPDX-License-Identifier: MIT
"""Sampling parameters as the wire's array of 29.

`is_normalized` says which of two forms came. Normalised: the derived fields are final, `top_k` of
2^30 means all, stop strings are in `stop_strs`. Otherwise it is the caller's own: -1 means all,
stop strings are in `stop`, a temperature near 0 is greedy.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tokenspeed_core.requests.sampling_checks import GREEDY_BELOW
from tokenspeed_core.wire.packing import WireError, tensors_in
from tokenspeed_hookspecs import SamplingParams

TOP_K_ALL = 1 << 30
SAME_NAME = (
    "max_new_tokens",
    "temperature",
    "top_p",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "min_new_tokens",
    "ignore_eos",
    "stream_interval",
    "seed",
)
# What plugins understand, in fields of its own for other senders' sake.
FEATURES = (
    "json_schema",
    "regex",
    "ebnf",
    "structural_tag",
    "thinking_budget",
    "custom_params",
)


class SamplingArray(msgspec.Struct, array_like=True):
    """The fields in their order. Text trimming is the front end's; those flags are not read."""

    max_new_tokens: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    json_schema: Any = None
    regex: Any = None
    ebnf: Any = None
    structural_tag: Any = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    thinking_budget: Any = None
    custom_params: Any = None
    stream_interval: int | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    logprobs: int | None = None
    n: int = 1
    stop_strs: list[str] = []
    stop_str_max_len: int = 0
    is_normalized: bool = False


def sampling_array(sampling: SamplingParams, features: dict[str, object]) -> SamplingArray:
    """The wire's form; takes the features that have a field of their own out of `features`."""
    array = SamplingArray(**{name: getattr(sampling, name) for name in SAME_NAME})
    for name in FEATURES:
        if features.get(name) is not None:
            setattr(array, name, features.pop(name))
    if sampling.stop_token_ids:
        array.stop_token_ids = [*sampling.stop_token_ids]
    if sampling.logit_bias is not None:
        array.logit_bias = {str(int(token)): bias for token, bias in sampling.logit_bias.items()}
    stop = [sampling.stop] if isinstance(sampling.stop, str) else [*sampling.stop]
    if stop or sampling.temperature < GREEDY_BELOW:
        array.stop, array.top_k = stop or None, sampling.top_k
    else:
        array.is_normalized = True
        array.top_k = TOP_K_ALL if sampling.top_k == -1 else sampling.top_k
    return array


def sampling_params(array: SamplingArray, features: dict[str, object]) -> SamplingParams:
    """The contract's form; adds what the core itself cannot do to `features`, by field name."""
    for name in (*FEATURES, "logprobs"):
        value = getattr(array, name)
        if value is not None:
            features[name] = tensors_in(value)
    if array.n != 1:
        features["n"] = array.n
    return SamplingParams(
        top_k=-1 if array.top_k >= TOP_K_ALL else array.top_k,
        stop=_stops(array),
        stop_token_ids=tuple(array.stop_token_ids or ()),
        logit_bias=_bias(array.logit_bias),
        **{name: getattr(array, name) for name in SAME_NAME},
    )


def _stops(array: SamplingArray) -> tuple[str, ...]:
    if array.is_normalized or array.stop is None:
        return tuple(array.stop_strs)
    return (array.stop,) if isinstance(array.stop, str) else tuple(array.stop)


def _bias(bias: dict[str, float] | None) -> dict[int, float] | None:
    if bias is None:
        return None
    try:
        return {_token_id(token): value for token, value in bias.items()}
    except ValueError as error:
        raise WireError(f"logit_bias: expected token ids as keys: {error}") from error


def _token_id(text: str) -> int:
    """A number that msgpack can carry on, as to the other ranks."""
    number = int(text)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"got {text:.40}")
    return number
