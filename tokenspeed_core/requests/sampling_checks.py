# SPDX-License-Identifier: MIT
"""Sampling parameters: normalised once, then checked against what the engine can do."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from typing import Any

from attrs import evolve

from tokenspeed_hookspecs import SamplingParams

GREEDY_BELOW = 1e-6
_FINITE = (
    "temperature",
    "top_p",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)


def normalised(sampling: SamplingParams, request_id: str) -> SamplingParams:
    """Greedy becomes temperature 1 with top_k 1; a missing seed is derived from the id.

    The id gives the seed so that every rank, and every replay, samples alike.
    """
    changes: dict[str, Any] = {}
    if 0 <= sampling.temperature < GREEDY_BELOW:
        changes |= {"temperature": 1.0, "top_k": 1}
    if sampling.seed is None:
        changes["seed"] = zlib.crc32(request_id.encode("utf-8", "surrogatepass"))
    if isinstance(sampling.stop, str):
        changes["stop"] = (sampling.stop,)
    return evolve(sampling, **changes) if changes else sampling


def first_problem(sampling: SamplingParams, vocab_size: int) -> str | None:
    """What is wrong with the parameters, or None; they are normalised already."""
    return next(_problems(sampling, vocab_size), None)


def _problems(p: SamplingParams, vocab_size: int) -> Iterator[str]:
    for name in _FINITE:
        if not math.isfinite(getattr(p, name)):
            yield f"{name} must be a finite number, got {getattr(p, name)}."
    yield from _length_problems(p)
    yield from _filter_problems(p)
    for name in ("frequency_penalty", "presence_penalty"):
        if not -2 <= getattr(p, name) <= 2:
            yield f"{name} must be in [-2, 2], got {getattr(p, name)}."
    if not 0 < p.repetition_penalty <= 2:
        yield f"repetition_penalty must be in (0, 2], got {p.repetition_penalty}."
    if p.stream_interval is not None and p.stream_interval < 1:
        yield f"stream_interval must be at least 1, got {p.stream_interval}."
    if p.seed is not None and not -(2**63) <= p.seed < 2**63:
        yield f"seed must fit 64 bits, got {p.seed}."
    yield from _token_problems(p, vocab_size)


def _filter_problems(p: SamplingParams) -> Iterator[str]:
    if p.temperature < 0:
        yield f"temperature must be non-negative, got {p.temperature}."
    if not 0 < p.top_p <= 1:
        yield f"top_p must be in (0, 1], got {p.top_p}."
    if not 0 <= p.min_p <= 1:
        yield f"min_p must be in [0, 1], got {p.min_p}."
    if p.top_k != -1 and p.top_k < 1:
        yield f"top_k must be -1 (off) or at least 1, got {p.top_k}."


def _length_problems(p: SamplingParams) -> Iterator[str]:
    longest = p.max_new_tokens
    if longest is not None and longest < 0:
        yield f"max_new_tokens must be at least 0, got {longest}."
    if p.min_new_tokens < 0:
        yield f"min_new_tokens must be at least 0, got {p.min_new_tokens}."
    if longest is not None and p.min_new_tokens > longest:
        yield (
            f"min_new_tokens must be at most max_new_tokens ({longest}), got {p.min_new_tokens}."
        )


def _token_problems(p: SamplingParams, vocab_size: int) -> Iterator[str]:
    for token in p.stop_token_ids:
        if not 0 <= token < vocab_size:
            yield f"stop_token_ids must be in [0, {vocab_size - 1}], got {token}."
    for token, bias in (p.logit_bias or {}).items():
        if not 0 <= token < vocab_size:
            yield f"logit_bias keys must be in [0, {vocab_size - 1}], got {token}."
        if not math.isfinite(bias):
            yield f"logit_bias values must be finite numbers, got {bias} for token {token}."
    if any(text == "" for text in p.stop):
        yield "stop strings must not be empty."
