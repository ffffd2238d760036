# SPDX-License-Identifier: MIT
"""What completions and chat have in common: from prompts to a running request and its answer."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import Protocol, TypedDict, TypeVar

import msgspec
from attrs import evolve, field, frozen
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from tokenspeed_hookspecs import AddRequest, LogprobOptions, SamplingParams
from tokenspeed_openai.choices import Choice, Piece, Run
from tokenspeed_openai.deployment import Counters, Deployment
from tokenspeed_openai.errors import invalid
from tokenspeed_openai.requests import Generation, StreamOptions
from tokenspeed_openai.responses import PromptDetails, Usage
from tokenspeed_openai.sampling import seed_of, stops_of
from tokenspeed_openai.streams import DONE, EventStream, event, until_gone
from tokenspeed_openai.texts import Prompt, Texts

Answer = EventStream | Response
P = TypeVar("P")


class Head(TypedDict):
    """What every body and event of one answer begins with; the last arguments of their structs."""

    id: str
    created: int
    model: str


@frozen(kw_only=True)
class Wanted:
    """A request that was checked: what to ask the engine for."""

    body: Generation
    prompts: Sequence[Prompt]
    sampling: SamplingParams
    logprobs: LogprobOptions | None = None
    features: Mapping[str, object] = field(factory=dict)
    # Marks are read from the text, also where the vocabulary has them as special tokens.
    reads_marks: bool = False

    def is_told(self, piece: Piece) -> bool:
        """Whether a stream tells of a piece; a token may bring no text yet."""
        tells_tokens = self.logprobs is not None or self.body.return_token_ids
        return bool(piece.text or piece.finish or tells_tokens)

    @property
    def width(self) -> int:
        """Choices of each prompt."""
        return self.body.n or 1

    def choices(self, texts: Texts, request_id: str) -> list[Choice]:
        """An engine request for each choice, the choices of a prompt side by side."""
        stops = stops_of(self.body)
        count = len(self.prompts) * self.width
        found = []
        for index in range(count):
            prompt = self.prompts[index // self.width]
            request = AddRequest(
                f"{request_id}-{index}" if count > 1 else request_id,
                prompt.token_ids,
                evolve(self.sampling, seed=seed_of(self.body, index % self.width)),
                # Without streaming the engine tells seldom; a stop string is to be met at once.
                bool(self.body.stream or stops),
                self.logprobs,
                self.features,
            )
            skip_special = self.body.skip_special_tokens is not False and not self.reads_marks
            reader = texts.reader(skip_special=skip_special, stops=stops)
            found.append(Choice(index, request, reader))
        return found


class Tally:
    """The tokens of one answer."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._prompt_tokens = sum(len(prompt.token_ids) for prompt in wanted.prompts)
        self._completion = [0] * (len(wanted.prompts) * wanted.width)
        self._cached = [0] * len(self._completion)
        self._tiers: list[Mapping[str, int]] = [{} for _ in self._completion]

    def add(self, piece: Piece) -> None:
        """Take a piece's totals; the end of a request that never ran has none."""
        chunk = piece.chunk
        self._completion[piece.index] = max(chunk.completion_tokens, self._completion[piece.index])
        self._cached[piece.index] = max(chunk.cached_tokens, self._cached[piece.index])
        if chunk.details is not None and chunk.details.cached_by_tier:
            self._tiers[piece.index] = chunk.details.cached_by_tier

    def usage(self) -> Usage:
        """The totals so far; a prompt counts once, however many choices it has."""
        width, completion = self._wanted.width, sum(self._completion)
        firsts = range(0, len(self._cached), width)
        best = [max(range(at, at + width), key=self._cached.__getitem__) for at in firsts]
        cached = sum(self._cached[at] for at in best)
        return Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=completion,
            total_tokens=self._prompt_tokens + completion,
            prompt_tokens_details=PromptDetails(cached, self._by_tier(best)),
        )

    def _by_tier(self, chosen: Sequence[int]) -> dict[str, int] | UnsetType:
        """The cached tokens of some choices by tier, if any were below the device."""
        if not any(self._tiers[at] for at in chosen):
            return UNSET
        total = Counter[str]()
        for at in chosen:
            total.update(self._tiers[at] or {"device": self._cached[at]})
        return dict(total)

    def count(self, counters: Counters) -> None:
        """Add what the engine did for the prompts to the server's counters."""
        usage = self.usage()
        counters.prompt_tokens += usage.prompt_tokens
        counters.cached_tokens += usage.prompt_tokens_details.cached_tokens


class Shape(Protocol[P]):
    """One form of answer, made of parts that each tell what a piece added."""

    def opening(self) -> Sequence[msgspec.Struct]:
        """The events before the first part."""
        ...

    def part(self, piece: Piece) -> P:
        """What a piece adds; called with every piece, in order."""
        ...

    def event(self, parts: Sequence[P], usage: Usage | None) -> msgspec.Struct:
        """An event that tells of one part, or of none, and the usage where it is wanted."""
        ...

    def whole(self, parts: Sequence[P], usage: Usage) -> msgspec.Struct:
        """The answer in one body."""
        ...


@frozen
class Answering:
    """One request that is being answered."""

    deployment: Deployment
    wanted: Wanted
    run: Run
    head: Head

    @classmethod
    def begin(cls, deployment: Deployment, wanted: Wanted, *, prefix: str) -> Answering:
        """Name the answer and make its choices."""
        request_id = wanted.body.request_id or uuid.uuid4().hex
        run = Run(wanted.choices(deployment.texts, request_id), deployment.counters)
        head: Head = {
            "id": f"{prefix}-{request_id}",
            "created": int(time.time()),
            "model": deployment.model,
        }
        return cls(deployment, wanted, run, head)

    async def answer(self, request: Request, shape: Shape[P]) -> Answer:
        """The response: a stream if one is wanted."""
        rank = _rank(request)
        if self.wanted.body.stream:
            return EventStream(
                self._events(shape, rank), self._headers(), is_cutting=self.deployment.is_cutting
            )
        body = await until_gone(
            request.receive, self._whole(shape, rank), is_cutting=self.deployment.is_cutting
        )
        headers = {name.decode(): value.decode() for name, value in self._headers()}
        return Response(body, media_type="application/json", headers=headers)

    def _headers(self) -> list[tuple[bytes, bytes]]:
        return [(b"x-request-id", self.head["id"].encode())]

    async def _whole(self, shape: Shape[P], rank: int | None) -> bytes:
        tally, parts = Tally(self.wanted), []
        await self.run.start(self.deployment.client, rank=rank)
        async with aclosing(self.run.pieces()) as pieces:
            async for piece in pieces:
                tally.add(piece)
                parts.append(shape.part(piece))
        tally.count(self.deployment.counters)
        return msgspec.json.encode(shape.whole(parts, tally.usage()))

    async def _events(self, shape: Shape[P], rank: int | None) -> AsyncGenerator[bytes]:
        options = self.wanted.body.stream_options or StreamOptions()
        tally, is_first = Tally(self.wanted), True
        opening = b"".join(map(event, shape.opening()))
        await self.run.start(self.deployment.client, rank=rank)
        async with aclosing(self.run.pieces()) as pieces:
            async for piece in pieces:
                tally.add(piece)
                part = shape.part(piece)
                if is_first or self.wanted.is_told(piece):
                    usage = tally.usage() if options.continuous_usage_stats else None
                    yield opening + event(shape.event([part], usage))
                    opening, is_first = b"", False
        tally.count(self.deployment.counters)
        if options.include_usage:
            yield event(shape.event([], tally.usage()))
        yield DONE


def _rank(request: Request) -> int | None:
    """vLLM's way to pin a request to a data-parallel engine."""
    text = request.headers.get("x-data-parallel-rank")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 8):
        raise invalid(f"X-Data-Parallel-Rank must be a whole number, got {text[:80]!r}")
    return int(text)
