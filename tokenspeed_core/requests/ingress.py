# SPDX-License-Identifier: MIT
"""What a request must be before it may be registered.

Every rank of a replica runs these checks on the same message, so they read nothing local to a rank:
no clock, no cache. A refusal ends that request alone, with a text that says what is allowed.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from attrs import evolve, frozen

from tokenspeed_core.requests.sampling_checks import first_problem, normalised
from tokenspeed_core.requests.type_checks import type_problem
from tokenspeed_hookspecs import AddRequest, LogprobOptions, Refuse

CLIENT_ERROR = 400
UNBOUNDED_BUDGET = 1 << 30


@frozen
class IngressLimits:
    """What this engine can serve. Lengths in tokens; `max_request_tokens` is what the scheduler can
    ever admit; `max_scored_values` bounds prompt positions times alternatives of one request."""

    vocab_size: int
    eos_token_ids: tuple[int, ...]
    max_model_len: int
    max_request_tokens: int
    logprobs: bool = True
    top_logprobs_max: int = 20
    max_scored_values: int = 1 << 21
    has_tokenizer: bool = True
    features: Collection[str] = ()

    @property
    def max_prompt_len(self) -> int:
        """The longest prompt: room for one token must stay in the context and in the cache."""
        return min(self.max_model_len, self.max_request_tokens) - 1


@frozen
class Admitted:
    """A request that may be registered: normalised, with its budget in tokens.

    `max_cached_prefix` is the first position to score: a prefix hit may not reach past it.
    """

    request: AddRequest
    budget: int
    max_cached_prefix: int | None


def check(request: AddRequest, limits: IngressLimits) -> Admitted | Refuse:
    """Normalise a request and check it against the limits; the first failure wins."""
    wrong_type = type_problem(request)
    if wrong_type is not None:
        return Refuse(f"Invalid request: {wrong_type}", CLIENT_ERROR)
    request = evolve(request, sampling=normalised(request.sampling, request.request_id))
    problem = (
        _id_problem(request)
        or _prompt_problem(request, limits)
        or first_problem(request.sampling, limits.vocab_size)
        or _stop_problem(request, limits)
        or _logprob_problem(request, limits)
    )
    if problem is not None:
        return Refuse(f"Invalid request: {problem}", CLIENT_ERROR)
    unknown = next((name for name in request.features if name not in limits.features), None)
    if unknown is not None:
        known = ", ".join(sorted(limits.features)) or "none"
        return Refuse(
            f"Invalid request: no plugin of this engine understands {unknown!r} (understood: "
            f"{known}).",
            CLIENT_ERROR,
        )
    return Admitted(request, _budget(request, limits), _scored_from(request))


def _id_problem(request: AddRequest) -> str | None:
    try:
        request.request_id.encode()
    except UnicodeEncodeError as error:
        return f"the request id is not valid text: {error.reason} at character {error.start}"
    return None


def _prompt_problem(request: AddRequest, limits: IngressLimits) -> str | None:
    length = len(request.prompt_ids)
    if length == 0:
        return "the prompt is empty"
    if length > limits.max_model_len - 1:
        return (
            f"The input ({length} tokens) exceeds the engine's maximum input length "
            f"({limits.max_prompt_len} tokens)."
        )
    if length > limits.max_prompt_len:
        return (
            f"The input ({length} tokens) exceeds the cache's capacity for one request "
            f"({limits.max_prompt_len} tokens and one to generate)."
        )
    worst = _outside(request.prompt_ids, limits.vocab_size)
    if worst is not None:
        return f"prompt ids must be inside the vocabulary [0, {limits.vocab_size - 1}], got {worst}"
    return None


def _outside(token_ids: Sequence[int], vocab_size: int) -> int | None:
    low, high = min(token_ids), max(token_ids)
    if low < 0:
        return low
    return high if high >= vocab_size else None


def _stop_problem(request: AddRequest, limits: IngressLimits) -> str | None:
    if request.sampling.stop and not limits.has_tokenizer:
        return "stop strings need a tokenizer, and this engine has none; use stop_token_ids"
    return None


def _logprob_problem(request: AddRequest, limits: IngressLimits) -> str | None:
    wanted = request.logprobs
    if wanted is None:
        return None
    if not limits.logprobs:
        return "logprobs were requested but the engine was started without them"
    length = len(request.prompt_ids)
    start = wanted.start
    if start is not None and start < -1:
        return f"logprob_start_len must be -1 or >= 0, got {start}."
    if start is not None and start >= length:
        return f"logprob_start_len ({start}) must be smaller than the prompt length ({length})."
    if not 0 <= wanted.top <= limits.top_logprobs_max:
        return f"top_logprobs must be in [0, {limits.top_logprobs_max}], got {wanted.top}."
    scored = length - resolved_start(wanted, length)
    if scored * (wanted.top + 1) > limits.max_scored_values:
        return (
            f"{scored} prompt positions with {wanted.top} alternatives are more than the "
            f"{limits.max_scored_values} values one request may ask for."
        )
    return None


def resolved_start(wanted: LogprobOptions, prompt_len: int) -> int:
    """The first prompt position a request wants scored; by default the last one."""
    if wanted.start is None or wanted.start == -1:
        return prompt_len - 1
    return wanted.start


def _scored_from(request: AddRequest) -> int | None:
    """Where prompt rows start, or None for a request that needs none.

    The last position predicts the first output and is never a prompt row.
    """
    if request.logprobs is None:
        return None
    start = resolved_start(request.logprobs, len(request.prompt_ids))
    return start if start < len(request.prompt_ids) - 1 else None


def _budget(request: AddRequest, limits: IngressLimits) -> int:
    """The clamp also keeps the loop alive: the scheduler raises for more than it can hold."""
    asked = request.sampling.max_new_tokens
    length = len(request.prompt_ids)
    room = min(limits.max_model_len, limits.max_request_tokens) - length
    return max(0, min(UNBOUNDED_BUDGET if asked is None else asked, room))
