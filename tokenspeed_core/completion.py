# SPDX-License-Identifier: MIT
"""What a caller gets for a prompt: text that grows, and the finished completion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from attrs import asdict, define, field, frozen

from tokenspeed_core.errors import EngineError
from tokenspeed_core.frontends.in_process import Delivery
from tokenspeed_hookspecs import Chunk, FinishKind, FinishReason, PromptLogprobs, TokenAlternatives


@frozen
class Usage:
    """Token counts of one request; `cached_tokens` of the prompt came from the prefix cache.

    `cached_by_tier` says where in it they were, unless all were on the device.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cached_by_tier: Mapping[str, int] = field(factory=dict)

    def as_json(self) -> dict[str, object]:
        """The counts; the tiers only where there is something to tell."""
        return asdict(self, filter=lambda _, value: value != {})


@frozen
class Completion:
    """A finished request. `text` is empty without a tokenizer; stop strings are cut off."""

    request_id: str
    text: str
    token_ids: list[int]
    finish: FinishReason
    usage: Usage
    logprobs: list[float] | None = None
    alternatives: list[TokenAlternatives] | None = None
    prompt_logprobs: PromptLogprobs | None = None

    @property
    def finish_reason(self) -> str:
        """ "stop", "length" or "abort"."""
        return self.finish.kind.value

    def as_json(self) -> dict[str, object]:
        """The fields a program reads first."""
        found: dict[str, object] = {
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
            "usage": self.usage.as_json(),
        }
        if self.finish.message is not None:
            found["message"] = self.finish.message
        return found


class TextReader(Protocol):
    """Turns tokens into text as they come; never splits a character."""

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that became certain with these tokens."""
        ...

    def flush(self) -> str:
        """What was held back, at the end."""
        ...


@define(eq=False)
class Growing:
    """A completion in the making: `take` what is delivered, `completion` when the last came."""

    request_id: str
    reader: TextReader | None
    token_ids: list[int] = field(factory=list)
    texts: list[str] = field(factory=list)
    logprobs: list[float] = field(factory=list)
    alternatives: list[TokenAlternatives] = field(factory=list)
    prompt: PromptLogprobs | None = None
    by_tier: Mapping[str, int] = field(factory=dict)
    finish: FinishReason | None = None
    last: Chunk | None = None
    failure: EngineError | None = None

    def take(self, delivery: Delivery) -> str:
        """Add a chunk and return the text that became certain; an error is kept and raised."""
        if isinstance(delivery, EngineError):
            self.failure = delivery
            self.check()
            return ""
        return self._add(delivery)

    def check(self) -> None:
        """Raise what ended the engine, if that ended this request."""
        if self.failure is not None:
            raise EngineError(*self.failure.args) from self.failure.__cause__

    def leave(self) -> None:
        """End it here: its reader wants no more."""
        self.finish = FinishReason(FinishKind.ABORT, message="its reader left")

    def _add(self, chunk: Chunk) -> str:
        self.token_ids += chunk.token_ids
        text = self.reader.push(chunk.token_ids) if self.reader is not None else ""
        details = chunk.details
        if details is not None:
            self.logprobs += details.logprobs or ()
            self.alternatives += details.alternatives or ()
            self.prompt = details.prompt or self.prompt
            self.by_tier = details.cached_by_tier or self.by_tier
            self.finish = details.finish
            if details.finish is not None and self.reader is not None:
                text += self.reader.flush()
        if chunk.prompt_tokens:
            self.last = chunk
        self.texts.append(text)
        return text

    def completion(self) -> Completion:
        """The finished completion."""
        self.check()
        assert self.finish is not None, "a completion is asked for after its last chunk"
        last = self.last
        usage = Usage()
        if last is not None:
            usage = Usage(
                last.prompt_tokens, last.completion_tokens, last.cached_tokens, self.by_tier
            )
        return Completion(
            self.request_id,
            "".join(self.texts),
            self.token_ids,
            self.finish,
            usage,
            self.logprobs or None,
            self.alternatives or None,
            self.prompt,
        )
