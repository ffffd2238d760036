# SPDX-License-Identifier: MIT
"""`POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, frozen
from msgspec import UNSET
from starlette.requests import Request

from tokenspeed_hookspecs import LogprobOptions
from tokenspeed_openai.answers import AnswerReader
from tokenspeed_openai.bodies import decode, read_body
from tokenspeed_openai.choices import Piece
from tokenspeed_openai.conversations import conversation_prompt
from tokenspeed_openai.deployment import Deployment, Limits
from tokenspeed_openai.errors import invalid
from tokenspeed_openai.generation import Answer, Answering, Head, Wanted
from tokenspeed_openai.reasoning import Thinking
from tokenspeed_openai.requests import ChatRequest
from tokenspeed_openai.responses import (
    AnswerMessage,
    Call,
    CalledFunction,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatLogprobs,
    ChunkChoice,
    Delta,
    Usage,
)
from tokenspeed_openai.sampling import check_budget, check_prompts, sampling_of
from tokenspeed_openai.scores import ChatScores
from tokenspeed_openai.tools import JSON_FEATURE, TAG_FEATURE, ToolUse, tool_use

ANY_OBJECT: Mapping[str, object] = {"type": "object"}


@frozen
class ChatApi:
    """The endpoint."""

    deployment: Deployment

    async def complete(self, request: Request) -> Answer:
        """Answer a conversation."""
        deployment = self.deployment
        content = await read_body(request, deployment.options.max_body_bytes)
        limits = deployment.limits
        body, extras = decode(content, ChatRequest, features=limits.features)
        deployment.check_model(body.model)
        deployment.check_alive()
        if body.tool_choice == "none":
            body.tools = None
        tools = tool_use(body, limits.features)
        thinking = Thinking.of(body, parser=deployment.options.reasoning_parser)
        features = {**extras, **_form_features(body, limits), **(tools.features if tools else {})}
        features |= thinking.feature(features, limits.features)
        readers = _readers(body, features, tools=tools, thinking=thinking)
        reads_marks = bool(readers and readers[0].thoughts) and deployment.has_special_marks
        wanted = evolve(
            await self._wanted(body, variables=thinking.variables),
            features=features,
            reads_marks=reads_marks,
        )
        answering = Answering.begin(deployment, wanted, prefix="chatcmpl")
        scores = ChatScores(deployment.texts, body.top_logprobs or 0) if body.logprobs else None
        shape = ChatShape(wanted, answering.head, scores=scores, readers=readers)
        return await answering.answer(request, shape)

    async def _wanted(self, body: ChatRequest, *, variables: Mapping[str, Any]) -> Wanted:
        logprobs = _logprobs(body)
        limits, texts = self.deployment.limits, self.deployment.texts
        prompts = [await conversation_prompt(body, texts, variables=variables)]
        check_prompts(prompts, limits, field="messages")
        max_tokens, budget_field = body.max_completion_tokens, "max_completion_tokens"
        if max_tokens is None:  # its older name
            max_tokens, budget_field = body.max_tokens, "max_tokens"
        check_budget(prompts, limits, max_tokens=max_tokens, field=budget_field)
        sampling = sampling_of(body, limits, max_tokens=max_tokens)
        return Wanted(body=body, prompts=prompts, sampling=sampling, logprobs=logprobs)


class ChatShape:
    """The answers to one conversation, as OpenAI writes them."""

    def __init__(
        self,
        wanted: Wanted,
        head: Head,
        *,
        scores: ChatScores | None,
        readers: Sequence[AnswerReader],
    ) -> None:
        self._wanted = wanted
        self._head = head
        self._scores = scores
        self._readers = readers
        self._has_called = [False] * wanted.width
        options = wanted.body.stream_options
        # A client that asked for usage is told in each event that it is still to come.
        self._no_usage = None if options is not None and options.include_usage else UNSET

    def opening(self) -> Sequence[ChatChunk]:
        """Who speaks, for each answer."""
        parts = [
            ChunkChoice(index=index, delta=Delta(role="assistant", content=""))
            for index in range(self._wanted.width)
        ]
        return [self.event([part], None) for part in parts]

    def part(self, piece: Piece) -> ChunkChoice:
        """What a piece adds to its answer."""
        part = ChunkChoice(
            index=piece.index, delta=Delta(content=piece.text), finish_reason=piece.finish
        )
        if self._readers:
            self._read(part, piece)
        if self._scores is not None:
            part.logprobs = self._scores.add(piece.chunk)
        if piece.finish is not None:
            part.stop_reason = piece.stop_reason
        if self._wanted.body.return_token_ids:
            part.token_ids = piece.chunk.token_ids
        return part

    def _read(self, part: ChunkChoice, piece: Piece) -> None:
        index = piece.index
        is_last = piece.finish is not None
        part.delta = self._readers[index].read(piece.text, is_last=is_last)
        self._has_called[index] |= bool(part.delta.tool_calls)
        if self._has_called[index] and piece.finish == "stop":
            part.finish_reason = "tool_calls"

    def event(self, parts: Sequence[ChunkChoice], usage: Usage | None) -> ChatChunk:
        """An event of the stream."""
        return ChatChunk(choices=list(parts), usage=usage or self._no_usage, **self._head)

    def whole(self, parts: Sequence[ChunkChoice], usage: Usage) -> ChatCompletion:
        """The answer in one body."""
        choices: list[list[ChunkChoice]] = [[] for _ in range(self._wanted.width)]
        for part in parts:
            choices[part.index].append(part)
        whole = ChatCompletion(
            choices=[_joined(found) for found in choices], usage=usage, **self._head
        )
        if self._wanted.body.return_token_ids:
            whole.prompt_token_ids = list(self._wanted.prompts[0].token_ids)
        return whole


def _joined(parts: Sequence[ChunkChoice]) -> ChatChoice:
    last = parts[-1]
    text = "".join(part.delta.content or "" for part in parts)
    thought = "".join(part.delta.reasoning_content or "" for part in parts)
    message = AnswerMessage(content=text)
    if thought:
        message = AnswerMessage(content=text or None, reasoning_content=thought)
    if calls := _joined_calls(parts):
        message.content, message.tool_calls = text or None, calls
    choice = ChatChoice(
        index=last.index,
        message=message,
        finish_reason=last.finish_reason,
        stop_reason=last.stop_reason or None,
    )
    if last.logprobs is not None:
        scored = [part.logprobs.content for part in parts if part.logprobs is not None]
        choice.logprobs = ChatLogprobs(content=[entry for content in scored for entry in content])
    if last.token_ids is not UNSET:
        choice.token_ids = [token for part in parts for token in part.token_ids or ()]
    return choice


def _joined_calls(parts: Sequence[ChunkChoice]) -> list[Call]:
    calls: list[Call] = []
    for delta in (delta for part in parts for delta in part.delta.tool_calls or ()):
        if delta.id is not None:
            function = CalledFunction(name=delta.function.name, arguments="")
            calls.append(Call(id=delta.id, function=function))
        calls[delta.index].function.arguments += delta.function.arguments
    return calls


def _readers(
    body: ChatRequest,
    features: Mapping[str, object],
    *,
    tools: ToolUse | None,
    thinking: Thinking,
) -> list[AnswerReader]:
    """A reader for each answer; none where all is plain text."""
    if tools is None and thinking.reader(features) is None:
        return []
    return [
        AnswerReader(
            thoughts=thinking.reader(features),
            calls=tools.make_reader() if tools else None,
            tells_thoughts=body.include_reasoning is not False,
        )
        for _ in range(body.n or 1)
    ]


def _logprobs(body: ChatRequest) -> LogprobOptions | None:
    if body.top_logprobs and not body.logprobs:
        raise invalid("top_logprobs needs logprobs to be true", "top_logprobs")
    return LogprobOptions(top=body.top_logprobs or 0) if body.logprobs else None


def _form_features(body: ChatRequest, limits: Limits) -> dict[str, object]:
    """What an answer's form asks of a plugin; refused where none is there."""
    wanted = body.response_format
    if wanted is None or wanted.type == "text":
        return {}
    if body.tools:
        raise invalid("response_format and tools cannot both shape an answer", "response_format")
    needed = TAG_FEATURE if wanted.type == "structural_tag" else JSON_FEATURE
    if needed not in limits.features:
        raise invalid(
            f"response_format {wanted.type!r} needs a plugin that constrains the output, and this "
            "engine has none",
            "response_format",
        )
    if wanted.type == "structural_tag":
        given = {name: getattr(wanted, name) for name in ("structures", "triggers", "format")}
        return {TAG_FEATURE: {name: value for name, value in given.items() if value is not None}}
    if wanted.type == "json_object":
        return {JSON_FEATURE: ANY_OBJECT}
    if wanted.json_schema is None:
        raise invalid(
            "response_format 'json_schema' needs the schema", "response_format.json_schema"
        )
    return {JSON_FEATURE: wanted.json_schema.schema}
