# SPDX-License-Identifier: MIT
"""The bodies this server answers with."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from tokenspeed_openai.errors import ErrorDetail

FinishWord = Literal["stop", "length", "abort", "tool_calls"]


class PromptDetails(Struct):
    """What of a prompt came from the prefix cache; in SGLang's words from which tier of it, where
    not all was on the device."""

    cached_tokens: int = 0
    cached_tokens_details: dict[str, int] | UnsetType = UNSET


class Usage(Struct, kw_only=True):
    """Tokens of a request, summed over its choices; a shared prompt counts once."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptDetails


class CompletionLogprobs(Struct, kw_only=True):
    """Scores of a completion's tokens, a list entry each; None for a prompt's first token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class CompletionChoice(Struct, kw_only=True):
    """One completion; `stop_reason` is the stop string or token, or why it was aborted."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishWord | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class Completion(Struct, kw_only=True):
    """The answer to `POST /v1/completions`, and each event of its stream."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    object: Literal["text_completion"] = "text_completion"
    usage: Usage | UnsetType | None = UNSET


class Score(Struct, kw_only=True):
    """A token with its logprob; `bytes` are its own, which need not be whole characters."""

    token: str
    logprob: float
    bytes: list[int]


class TokenScore(Score, kw_only=True):
    """A token of an answer, and the most likely ones at its place."""

    top_logprobs: list[Score]


class ChatLogprobs(Struct, kw_only=True):
    """Scores of an answer's tokens."""

    content: list[TokenScore]
    refusal: None = None


class CalledFunction(Struct, kw_only=True, omit_defaults=True):
    """A function with its arguments as JSON text, or more of that text."""

    name: str | None = None
    arguments: str


class CallDelta(Struct, kw_only=True, omit_defaults=True):
    """A call of a tool, or more of the one with this index."""

    index: int
    function: CalledFunction
    id: str | None = None
    type: Literal["function"] | None = None


class Call(Struct, kw_only=True):
    """A call of a tool."""

    id: str
    function: CalledFunction
    type: Literal["function"] = "function"


class AnswerMessage(Struct, kw_only=True):
    """What the model said, and thought before; calls of tools may be all of it."""

    content: str | None
    reasoning_content: str | UnsetType = UNSET
    role: Literal["assistant"] = "assistant"
    refusal: None = None
    tool_calls: list[Call] | UnsetType = UNSET


class ChatChoice(Struct, kw_only=True):
    """One answer; `stop_reason` is the stop string or token, or why it was aborted."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishWord | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(Struct, kw_only=True):
    """The answer to `POST /v1/chat/completions`."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    object: Literal["chat.completion"] = "chat.completion"
    usage: Usage | None = None
    prompt_token_ids: list[int] | UnsetType = UNSET


class Delta(Struct, kw_only=True, omit_defaults=True):
    """What a chunk adds to an answer."""

    role: Literal["assistant"] | None = None
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[CallDelta] | None = None


class ChunkChoice(Struct, kw_only=True):
    """A chunk's part of one answer."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishWord | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(Struct, kw_only=True):
    """Each event of a streamed answer."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    usage: Usage | UnsetType | None = UNSET


class ModelCard(Struct, kw_only=True):
    """A model that is served."""

    id: str
    created: int
    root: str
    max_model_len: int
    object: Literal["model"] = "model"
    owned_by: str = "tokenspeed"


class ModelList(Struct, kw_only=True):
    """The models that are served: one."""

    data: list[ModelCard]
    object: Literal["list"] = "list"


class Tokens(Struct, kw_only=True):
    """The answer to `POST /tokenize`."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class Text(Struct, kw_only=True):
    """The answer to `POST /detokenize`."""

    prompt: str


class Version(Struct, kw_only=True):
    """The engine's version, and this server's."""

    version: str
    server: str


class Health(Struct, kw_only=True):
    """Whether requests can run."""

    status: Literal["ok", "failed"]
    reason: str | None = None


class Reply(Struct, kw_only=True):
    """One engine's reply to a control operation."""

    success: bool
    message: str = ""
    values: dict[str, Any] = {}


class Replies(Struct, kw_only=True, omit_defaults=True):
    """Every engine's reply, in their order; `error` tells of the first that refused."""

    replies: list[Reply]
    error: ErrorDetail | None = None


class EngineState(Struct, kw_only=True):
    """An engine, and how busy it was last; lengths in tokens."""

    index: int
    model: str
    version: str
    dtype: str
    max_model_len: int
    max_num_seqs: int
    page_size: int
    features: list[str]
    running: int
    waiting: int
    active_pages: int
    total_pages: int


class Counted(Struct, kw_only=True):
    """What this server has seen since its start; `finished` counts choices by finish reason."""

    requests: int
    choices: int
    open_choices: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    finished: dict[str, int]


class Stats(Struct, kw_only=True):
    """What runs now, and what was counted; a `failure` says why nothing runs any more."""

    model: str
    uptime_s: float
    failure: str | None
    engines: list[EngineState]
    counters: Counted


class PluginState(Struct, kw_only=True):
    """A plugin: loaded, or why not."""

    name: str
    state: str
    version: str
    source: str
    reasons: list[str]
    hooks: list[str]


class PhaseHooks(Struct, kw_only=True):
    """The plugins behind each hook of a phase, in the order they are called."""

    phase: str
    hooks: dict[str, list[str]]


class Composition(Struct, kw_only=True):
    """What the engine is composed of."""

    model: str
    plugins: list[PluginState]
    hooks: list[PhaseHooks]
