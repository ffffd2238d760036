# SPDX-License-Identifier: MIT
"""A value of a wrong type is its request's problem alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tokenspeed_core.requests.ingress import Admitted, IngressLimits, check
from tokenspeed_hookspecs import AddRequest, LogprobOptions, Refuse, SamplingParams

LIMITS = IngressLimits(
    vocab_size=1000, eos_token_ids=(2,), max_model_len=128, max_request_tokens=100
)

TOP_OF_WRONG_TYPE: dict[str, Any] = {"top": 1.5}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"temperature": "hot"}, "temperature must be a number, got 'hot'"),
        ({"top_k": 2.5}, "top_k must be a whole number, got 2.5"),
        ({"max_new_tokens": "5"}, "max_new_tokens must be a whole number or None, got '5'"),
        ({"seed": 1.5}, "seed must be a whole number or None"),
        ({"stop": [5]}, "stop must be texts, got [5]"),
        ({"stop_token_ids": 5}, "stop_token_ids must be whole numbers, got 5"),
        ({"logit_bias": {"a": 1.0}}, "logit_bias must be a mapping from token ids to numbers"),
        ({"logit_bias": [1]}, "logit_bias must be a mapping"),
    ],
)
def test_sampling_of_a_wrong_type_is_refused_by_name(change: dict[str, Any], text: str) -> None:
    """A sampling parameter of a wrong type refuses its request and names itself."""
    answer = check(AddRequest("r", [1], SamplingParams(**change)), LIMITS)
    assert isinstance(answer, Refuse)
    assert text in answer.message


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"request_id": 5}, "request_id must be a text, got 5"),
        ({"prompt_ids": [1, "a"]}, "prompt_ids must be whole numbers, got [1, 'a']"),
        ({"prompt_ids": [1, 2.0]}, "prompt_ids must be whole numbers"),
        ({"prompt_ids": b"abc"}, "prompt_ids must be whole numbers"),
        ({"prompt_ids": np.array([1.0])}, "prompt_ids must be whole numbers"),
        ({"sampling": {"top_k": 1}}, "sampling must be SamplingParams, got {'top_k': 1}"),
        ({"logprobs": True}, "logprobs must be LogprobOptions or None, got True"),
        ({"logprobs": LogprobOptions(**TOP_OF_WRONG_TYPE)}, "top must be a whole number, got 1.5"),
        ({"features": None}, "features must be a mapping from names, got None"),
    ],
)
def test_a_part_of_a_wrong_type_is_refused_by_name(change: dict[str, Any], text: str) -> None:
    """Any other part of a wrong type refuses the request as well."""
    answer = check(AddRequest(**({"request_id": "r", "prompt_ids": [1]} | change)), LIMITS)
    assert isinstance(answer, Refuse)
    assert text in answer.message


def test_numbers_of_numpy_are_numbers() -> None:
    """A prompt may be an array, and a parameter a numpy scalar."""
    scalars: dict[str, Any] = {"temperature": np.float32(0.5), "top_k": np.int64(3)}
    parts: dict[str, Any] = {
        "prompt_ids": np.array([1, 2]),
        "sampling": SamplingParams(**scalars),
    }
    assert isinstance(check(AddRequest("r", **parts), LIMITS), Admitted)
