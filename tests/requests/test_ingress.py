# SPDX-License-Identifier: MIT
"""What a request must be before it may be registered."""

from __future__ import annotations

from typing import Any

import pytest

from tokenspeed_core.requests.ingress import Admitted, IngressLimits, check
from tokenspeed_core.requests.sampling_checks import normalised
from tokenspeed_hookspecs import AddRequest, LogprobOptions, Refuse, SamplingParams

LIMITS = IngressLimits(
    vocab_size=1000, eos_token_ids=(2,), max_model_len=128, max_request_tokens=100
)


def refusal(prompt: list[int], **fields: Any) -> str:
    """The text a request is refused with."""
    answer = check(AddRequest("r", prompt, **fields), LIMITS)
    assert isinstance(answer, Refuse), answer
    assert answer.status_code == 400
    return answer.message


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"top_p": 0.0}, "top_p must be in (0, 1], got 0.0."),
        ({"top_p": float("nan")}, "top_p must be a finite number"),
        ({"temperature": -1.0}, "temperature must be non-negative"),
        ({"min_p": 1.5}, "min_p must be in [0, 1]"),
        ({"top_k": 0}, "top_k must be -1 (off) or at least 1"),
        ({"frequency_penalty": 2.5}, "frequency_penalty must be in [-2, 2]"),
        ({"presence_penalty": -2.5}, "presence_penalty must be in [-2, 2]"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be in (0, 2]"),
        ({"max_new_tokens": -1}, "max_new_tokens must be at least 0"),
        ({"min_new_tokens": -1}, "min_new_tokens must be at least 0"),
        ({"min_new_tokens": 5, "max_new_tokens": 4}, "at most max_new_tokens (4), got 5"),
        ({"stop_token_ids": [1000]}, "stop_token_ids must be in [0, 999], got 1000"),
        ({"stop_token_ids": [-1]}, "stop_token_ids must be in [0, 999], got -1"),
        ({"stop_token_ids": [2**31 - 1]}, "stop_token_ids must be in [0, 999]"),
        ({"logit_bias": {1000: 1.0}}, "logit_bias keys must be in [0, 999], got 1000"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias keys must be in [0, 999], got -1"),
        ({"logit_bias": {5: float("inf")}}, "logit_bias values must be finite"),
        ({"stop": [""]}, "stop strings must not be empty"),
        ({"stream_interval": 0}, "stream_interval must be at least 1"),
        ({"seed": 2**63}, "seed must fit 64 bits"),
    ],
)
def test_bad_sampling_is_refused_by_name(change: dict[str, Any], text: str) -> None:
    """A sampling parameter outside its range refuses the request and names it (VAL-04, VAL-06)."""
    assert text in refusal([1], sampling=SamplingParams(**change))


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ([], "the prompt is empty"),
        ([5] * 128, "maximum input length"),
        ([5] * 100, "the cache's capacity for one request (99 tokens"),
        ([5, 1000], "inside the vocabulary [0, 999], got 1000"),
        ([-1, 5], "inside the vocabulary [0, 999], got -1"),
    ],
)
def test_a_bad_prompt_is_refused(prompt: list[int], text: str) -> None:
    """Empty, too long and out-of-vocabulary prompts are refused (VAL-01, VAL-03)."""
    assert text in refusal(prompt)


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        (LogprobOptions(start=-2), "must be -1 or >= 0, got -2"),
        (LogprobOptions(start=3), "(3) must be smaller than the prompt length (3)"),
        (LogprobOptions(top=21), "top_logprobs must be in [0, 20], got 21"),
        (LogprobOptions(top=-1), "top_logprobs must be in [0, 20], got -1"),
    ],
)
def test_logprob_wishes_are_checked(wanted: LogprobOptions, text: str) -> None:
    """A start outside the prompt and too many alternatives are refused (VAL-08)."""
    assert text in refusal([1, 2, 3], logprobs=wanted)


def test_scores_of_a_long_prompt_are_capped() -> None:
    """Positions times alternatives are bounded, whatever each alone may be (VAL-08)."""
    limits = IngressLimits(100, (), 10_000, 10_000, max_scored_values=1000)
    answer = check(AddRequest("r", [1] * 500, logprobs=LogprobOptions(0, top=20)), limits)
    assert isinstance(answer, Refuse)
    assert "one request may ask for" in answer.message


def test_a_feature_nobody_claims_is_refused() -> None:
    """A feature without a plugin refuses the request and names the feature."""
    assert "no plugin of this engine understands 'rhyme'" in refusal([1], features={"rhyme": 1})


@pytest.mark.parametrize(("asked", "budget"), [(None, 90), (100_000, 90), (7, 7), (0, 0)])
def test_the_budget_is_clamped_to_what_can_be_held(asked: int | None, budget: int) -> None:
    """A budget beyond the context or the cache is clamped, not refused."""
    sampling = SamplingParams(max_new_tokens=asked)
    answer = check(AddRequest("r", [1] * 10, sampling=sampling), LIMITS)
    assert isinstance(answer, Admitted)
    assert answer.budget == budget


@pytest.mark.parametrize(("start", "cap"), [(None, None), (-1, None), (0, 0), (4, 4), (9, None)])
def test_scored_positions_are_never_taken_from_the_cache(
    start: int | None, cap: int | None
) -> None:
    """A request that scores from s on may hit the prefix cache before s only (OUT-10)."""
    request = AddRequest("r", [1] * 10, logprobs=LogprobOptions(start))
    answer = check(request, LIMITS)
    assert isinstance(answer, Admitted)
    assert answer.max_cached_prefix == cap


def test_normalising_is_done_once() -> None:
    """A second pass changes nothing: greedy stays greedy and the seed stays."""
    once = normalised(SamplingParams(temperature=1e-9), "r")
    assert (once.temperature, once.top_k) == (1.0, 1)
    assert once.seed is not None
    assert normalised(once, "other") == once


def test_an_id_that_is_no_text_is_refused() -> None:
    """A lone surrogate in an id is refused before anything has to encode it (OUT-15)."""
    answer = check(AddRequest("a\ud800", [1]), LIMITS)
    assert isinstance(answer, Refuse)
    assert "not valid text" in answer.message
