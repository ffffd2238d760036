# SPDX-License-Identifier: MIT
"""The bodies that clients send, as msgspec structs: decoding checks types and ranges by them, and
the OpenAPI document is made of them.

`ChatRequest` and `CompletionRequest` take what OpenAI defines and this server can do, and below
that the fields vLLM added. Fields that mean nothing here are listed as such, so that clients which
always send them are served.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

MAX_CHOICES = 128
MAX_STOPS = 16
MAX_LOGPROBS = 20

TokenId = Annotated[int, Meta(ge=0, lt=1 << 31)]
Count = Annotated[int, Meta(ge=0, lt=1 << 31)]
Share = Annotated[float, Meta(ge=0, le=1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
# The lookahead keeps a line end out, which `$` would let through.
RequestId = Annotated[str, Meta(max_length=256, pattern=r"^[A-Za-z0-9._:-]+$(?!\n)")]
Stop = Annotated[str, Meta(min_length=1, max_length=1024)]


class StreamOptions(Struct, kw_only=True):
    """What a stream tells besides its text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Generation(Struct, kw_only=True):
    """What both kinds of request share."""

    model: str | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=MAX_STOPS)] | None = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    logit_bias: Annotated[dict[str, Bias], Meta(max_length=1024)] | None = None

    # Added by vLLM.
    top_k: Annotated[int, Meta(ge=-1, lt=1 << 31)] | None = None
    min_p: Share | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=2)] | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=1024)] | None = None
    skip_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    request_id: RequestId | None = None

    # Without effect here.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class CompletionRequest(Generation, kw_only=True):
    """`POST /v1/completions`. A prompt is a text or token ids, or a list of either."""

    prompt: str | list[str | TokenId | list[TokenId]]
    max_tokens: Count | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None


class TextPart(Struct, kw_only=True):
    """A part of a message; only text is understood."""

    type: Literal["text"]
    text: str


class ToolCallFunction(Struct, kw_only=True):
    """What an assistant called: a name, and its arguments as JSON text."""

    name: str
    arguments: str | dict[str, Any] = ""


class ToolCall(Struct, kw_only=True):
    """One call an assistant made earlier in the conversation."""

    function: ToolCallFunction
    id: str | None = None
    type: Literal["function"] = "function"


class ChatMessage(Struct, kw_only=True):
    """One message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None


class ToolFunction(Struct, kw_only=True):
    """A function that the model may call; `parameters` is the schema of its arguments."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Struct, kw_only=True):
    """A tool; the only kind is a function."""

    function: ToolFunction
    type: Literal["function"] = "function"


class JsonSchema(Struct, kw_only=True):
    """A named schema an answer must follow."""

    schema: dict[str, Any]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(Struct, kw_only=True):
    """The form of an answer: free text, any JSON object, JSON by a schema, or text with tags in it,
    as structures with triggers or as a format."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchema | None = None
    structures: list[dict[str, Any]] | None = None
    triggers: list[str] | None = None
    format: dict[str, Any] | None = None


class ChatRequest(Generation, kw_only=True):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1)]
    max_completion_tokens: Annotated[int, Meta(ge=1, lt=1 << 31)] | None = None
    max_tokens: Annotated[int, Meta(ge=1, lt=1 << 31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | Tool | None = None
    parallel_tool_calls: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    include_reasoning: bool | None = None  # vLLM's
    separate_reasoning: bool | None = None  # SGLang's


class TokenizeRequest(Struct, kw_only=True):
    """`POST /tokenize`: a text, or a conversation through the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    tools: list[Tool] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Struct, kw_only=True):
    """`POST /detokenize`."""

    tokens: list[TokenId]
    model: str | None = None


def field_names(of: type[Struct]) -> frozenset[str]:
    """The names a body may hold."""
    return frozenset(field.encode_name for field in msgspec.structs.fields(of))
