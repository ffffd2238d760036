# SPDX-License-Identifier: MIT
"""From the fields of a body to what the engine is asked for, with each refusal naming its field."""

from __future__ import annotations

from collections.abc import Sequence

from tokenspeed_hookspecs import SamplingParams
from tokenspeed_openai.deployment import Limits
from tokenspeed_openai.errors import ApiError, invalid
from tokenspeed_openai.requests import Generation
from tokenspeed_openai.texts import Prompt

MAX_ENGINE_REQUESTS = 4096
SEEDS = 1 << 64


def stops_of(body: Generation) -> tuple[str, ...]:
    """The stop strings; they are looked for in the text here, not by the engine."""
    if body.stop is None:
        return ()
    return (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)


def sampling_of(body: Generation, limits: Limits, *, max_tokens: int | None) -> SamplingParams:
    """How the engine draws; None and absent fields have OpenAI's defaults."""
    min_tokens = body.min_tokens or 0
    if max_tokens is not None and min_tokens > max_tokens:
        raise invalid(f"min_tokens must be at most {max_tokens}, got {min_tokens}", "min_tokens")
    stop_token_ids = body.stop_token_ids or ()
    check_vocabulary(stop_token_ids, limits, field="stop_token_ids")
    return SamplingParams(
        max_new_tokens=max_tokens,
        min_new_tokens=min_tokens,
        temperature=_or(body.temperature, 1.0),
        top_k=body.top_k or -1,
        top_p=_or(body.top_p, 1.0),
        min_p=_or(body.min_p, 0.0),
        frequency_penalty=_or(body.frequency_penalty, 0.0),
        presence_penalty=_or(body.presence_penalty, 0.0),
        repetition_penalty=_or(body.repetition_penalty, 1.0),
        logit_bias=_biases(body, limits),
        stop_token_ids=tuple(stop_token_ids),
        ignore_eos=body.ignore_eos or False,
        seed=body.seed,
    )


def seed_of(body: Generation, choice: int) -> int | None:
    """Each choice of a prompt draws by a seed of its own, the first by the one that was given."""
    if body.seed is None:
        return None
    return (body.seed + choice + SEEDS // 2) % SEEDS - SEEDS // 2


def check_count(prompts: int, *, choices: int, field: str) -> None:
    """Refuse no prompt at all, and more than the engine should be asked at once."""
    if not prompts:
        raise invalid(f"{field} must not be an empty list", field)
    if prompts * choices > MAX_ENGINE_REQUESTS:
        raise invalid(
            f"{prompts} prompts with {choices} choices each are more than the "
            f"{MAX_ENGINE_REQUESTS} completions one request may ask for",
            field,
        )


def check_prompts(prompts: Sequence[Prompt], limits: Limits, *, field: str) -> None:
    """Refuse what no engine of this deployment can take."""
    for prompt in prompts:
        length = len(prompt.token_ids)
        if not length:
            raise invalid(f"{field} must not be empty", field)
        if length >= limits.max_model_len:
            raise _too_long(f"the prompt has {length}", limits, field=field)
        check_vocabulary(prompt.token_ids, limits, field=field)


def check_budget(
    prompts: Sequence[Prompt], limits: Limits, *, max_tokens: int | None, field: str
) -> None:
    """Refuse a budget that the longest prompt leaves no room for."""
    longest = max(len(prompt.token_ids) for prompt in prompts)
    if max_tokens is not None and longest + max_tokens > limits.max_model_len:
        raise _too_long(
            f"the prompt has {longest} and {field} asks for {max_tokens} more",
            limits,
            field=field,
        )


def check_vocabulary(token_ids: Sequence[int], limits: Limits, *, field: str) -> None:
    """Refuse ids that are no tokens of the model."""
    if token_ids and max(token_ids) >= limits.vocab_size:
        raise invalid(
            f"{field} must be token ids in [0, {limits.vocab_size - 1}], got {max(token_ids)}",
            field,
        )


def _too_long(what: str, limits: Limits, *, field: str) -> ApiError:
    return ApiError(
        400,
        f"This model's context holds {limits.max_model_len} tokens, but {what}",
        param=field,
        code="context_length_exceeded",
    )


def _biases(body: Generation, limits: Limits) -> dict[int, float] | None:
    if not body.logit_bias:
        return None
    wrong = next((key for key in body.logit_bias if not (key.isascii() and key.isdigit())), None)
    if wrong is not None:
        raise invalid(f"logit_bias must have token ids as keys, got {wrong[:80]!r}", "logit_bias")
    biases = {int(key[:20]): bias for key, bias in body.logit_bias.items()}
    check_vocabulary(tuple(biases), limits, field="logit_bias")
    return biases


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
