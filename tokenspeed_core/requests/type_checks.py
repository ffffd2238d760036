# SPDX-License-Identifier: MIT
"""What the parts of a request are made of.

Types are only a promise where a request comes from Python. A value of another type would fail deep
in the loop, and end the engine for everybody, so it refuses its request instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real

from attrs import frozen

from tokenspeed_hookspecs import AddRequest, LogprobOptions, SamplingParams


@frozen
class _Kind:
    """What a value may be, in words and as a check; `sure` are classes that always fit."""

    words: str
    fits: Callable[[object], bool]
    sure: frozenset[type] = frozenset()


def type_problem(request: AddRequest) -> str | None:
    """Name the first part of a request that is of a wrong type, or None."""
    problem = _wrong(request, _REQUEST) or _wrong(request.sampling, _SAMPLING)
    if problem is None and request.logprobs is not None:
        return _wrong(request.logprobs, _LOGPROBS)
    return problem


def _wrong(part: object, kinds: Mapping[str, _Kind]) -> str | None:
    for name, kind in kinds.items():
        value = getattr(part, name)
        # Asking an abstract class costs several times what the look-up does.
        if value.__class__ not in kind.sure and not kind.fits(value):
            text = repr(value)
            shown = text if len(text) <= 80 else text[:77] + "..."
            return f"{name} must be {kind.words}, got {shown}"
    return None


def _one(kind: type, words: str, *sure: type) -> _Kind:
    return _Kind(words, lambda value: isinstance(value, kind), frozenset((kind, *sure)))


def _one_or_none(kind: type, words: str, *sure: type) -> _Kind:
    one = _one(kind, words, *sure)
    return _Kind(f"{words} or None", one.fits, one.sure | {type(None)})


def _all_are(values: object, kind: type) -> bool:
    """Ask once a type, not once a value: a prompt may be long."""
    if isinstance(values, str | bytes) or not isinstance(values, list | tuple | Iterable):
        return False
    return all(issubclass(each, kind) for each in set(map(type, values)))


def _are_texts(value: object) -> bool:
    return isinstance(value, str) or _all_are(value, str)


def _are_ids(value: object) -> bool:
    return _all_are(value, Integral)


def _is_bias(value: object) -> bool:
    if not isinstance(value, Mapping):
        return value is None
    return _are_ids(value.keys()) and _all_are(value.values(), Real)


def _are_features(value: object) -> bool:
    return isinstance(value, Mapping) and _all_are(value.keys(), str)


_WHOLE = _one(Integral, "a whole number", int)
_WHOLE_OR_NONE = _one_or_none(Integral, "a whole number", int)
_NUMBER = _one(Real, "a number", int, float)
_IDS = _Kind("whole numbers", _are_ids)

_REQUEST = {
    "request_id": _one(str, "a text"),
    "prompt_ids": _IDS,
    "sampling": _one(SamplingParams, "SamplingParams"),
    "logprobs": _one_or_none(LogprobOptions, "LogprobOptions"),
    "features": _Kind("a mapping from names", _are_features),
}
_SAMPLING = {
    "max_new_tokens": _WHOLE_OR_NONE,
    "min_new_tokens": _WHOLE,
    "temperature": _NUMBER,
    "top_k": _WHOLE,
    "top_p": _NUMBER,
    "min_p": _NUMBER,
    "frequency_penalty": _NUMBER,
    "presence_penalty": _NUMBER,
    "repetition_penalty": _NUMBER,
    "logit_bias": _Kind("a mapping from token ids to numbers", _is_bias),
    "stop": _Kind("texts", _are_texts),
    "stop_token_ids": _IDS,
    "seed": _WHOLE_OR_NONE,
    "stream_interval": _WHOLE_OR_NONE,
}
_LOGPROBS = {"start": _WHOLE_OR_NONE, "top": _WHOLE}
