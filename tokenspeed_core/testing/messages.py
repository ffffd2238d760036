# SPDX-License-Identifier: MIT
"""Short ways to write the messages a test sends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenspeed_hookspecs import AddRequest, LogprobOptions, SamplingParams


def request(
    request_id: str,
    prompt: int | Sequence[int],
    *,
    budget: int | None = None,
    logprobs: LogprobOptions | None = None,
    **sampling: Any,  # the fields of SamplingParams
) -> AddRequest:
    """A streaming request; a prompt given as a length is 1, 2, ... of that length."""
    prompt_ids = list(range(1, prompt + 1)) if isinstance(prompt, int) else list(prompt)
    params = SamplingParams(max_new_tokens=budget, **sampling)
    return AddRequest(request_id, prompt_ids, params, logprobs=logprobs)


def telling_tokens(count: int) -> list[int]:
    """The first tokens every request of a scripted plane is given: 1000, 1001, ..."""
    return list(range(1000, 1000 + count))
