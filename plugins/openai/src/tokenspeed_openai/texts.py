# SPDX-License-Identifier: MIT
"""Text to tokens and back, where a long text must not hold up the streams of others."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

from attrs import frozen

from tokenspeed_hookspecs import Detokenizer, Tokenizer
from tokenspeed_openai.errors import ApiError, invalid

T = TypeVar("T")

# Characters that take about a millisecond; what is longer goes to a thread, so many at a time.
LONG_TEXT = 4096
LONG_TEXTS_AT_ONCE = 2


@frozen
class Prompt:
    """What the model continues; `text` is None where only the tokens came."""

    token_ids: Sequence[int]
    text: str | None = None


class NoText:
    """Stands for a detokenizer where there is no tokenizer: every text is empty."""

    matched: str | None = None

    def push(self, token_ids: Sequence[int]) -> str:
        """No text."""
        return ""

    def flush(self) -> str:
        """No text."""
        return ""


class Texts:
    """The tokenizer, and how its errors are told; `field` names the field that held the text."""

    def __init__(self, tokenizer: Tokenizer | None, *, max_tokens: int = sys.maxsize) -> None:
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens
        self._long = asyncio.Semaphore(LONG_TEXTS_AT_ONCE)

    async def encode(self, texts: Sequence[str], *, add_special: bool = True) -> list[Prompt]:
        """The tokens of each text."""
        encode = self._need("prompt").encode

        def work() -> list[Prompt]:
            self._check_length(max(map(len, texts), default=0), field="prompt")
            return [Prompt(encode(text, add_special=add_special), text) for text in texts]

        return await self._run(
            work,
            size=sum(map(len, texts)) + len(texts),
            field="prompt",
        )

    async def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> Prompt:
        """A conversation's tokens, through the chat template."""
        encode = self._need("messages").encode_chat
        length = sum(len(str(message["content"])) for message in messages)

        def work() -> list[int]:
            self._check_length(length, field="messages")
            return encode(
                messages, add_generation_prompt=add_generation_prompt, variables=variables
            )

        return Prompt(await self._run(work, size=length + 32 * len(messages), field="messages"))

    async def decode(self, token_ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of a whole sequence."""
        decode = self._need("tokens").decode
        return await self._run(
            lambda: decode(token_ids, skip_special=skip_special),
            size=len(token_ids),
            field="tokens",
        )

    def reader(self, *, skip_special: bool, stops: Sequence[str]) -> Detokenizer:
        """What turns one request's tokens into text."""
        if self._tokenizer is not None:
            return self._tokenizer.detokenizer(skip_special=skip_special, stops=stops)
        if stops:
            raise invalid("This engine has no tokenizer; use stop_token_ids", param="stop")
        return NoText()

    def has_no_text(self, token_id: int) -> bool:
        """Whether a token is a mark that texts leave out."""
        return self._tokenizer is None or token_id in self._tokenizer.special_ids

    def is_special(self, text: str) -> bool:
        """Whether a text is a token that texts leave out."""
        if self._tokenizer is None:
            return False
        ids = self._tokenizer.encode(text, add_special=False)
        return len(ids) == 1 and ids[0] in self._tokenizer.special_ids

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for; none without a tokenizer."""
        return b"" if self._tokenizer is None else self._tokenizer.token_bytes(token_id)

    @cached_property
    def _longest_token(self) -> int:
        tokenizer = self._need("prompt")
        return max(len(tokenizer.token_bytes(each)) for each in range(tokenizer.vocab_size))

    def _check_length(self, length: int, *, field: str) -> None:
        """Refuse what does not fit however its tokens fall: to count them would take seconds, and
        a gigabyte, of a body of the usual limit."""
        if length > self._max_tokens and length > self._max_tokens * self._longest_token:
            raise ApiError(
                400,
                f"This model's context holds {self._max_tokens} tokens, which cannot be as long as "
                f"the {length} characters of this text",
                param=field,
                code="context_length_exceeded",
            )

    def _need(self, field: str) -> Tokenizer:
        if self._tokenizer is None:
            raise invalid(
                "This engine has no tokenizer; send a prompt as token ids to /v1/completions",
                param=field,
            )
        return self._tokenizer

    async def _run(self, work: Callable[[], T], *, size: int, field: str) -> T:
        try:
            if size < LONG_TEXT:
                return work()
            async with self._long:
                return await asyncio.to_thread(work)
        except ValueError as error:
            raise ApiError(400, str(error), param=field) from error


def spelled(token: bytes) -> str:
    """A token's text; what is no whole character is spelled as OpenAI does: `bytes:\\xf0\\x9f`."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)
