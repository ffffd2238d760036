# SPDX-License-Identifier: MIT
"""Tokens as text however they are chopped up, and long texts that hold nobody up."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from tokenspeed_core.models.resolve import resolve_model
from tokenspeed_core.testing.small_tokenizer import small_tokenizer
from tokenspeed_hookspecs import (
    AddRequest,
    Chunk,
    ChunkDetails,
    FinishKind,
    FinishReason,
    SamplingParams,
)
from tokenspeed_openai.choices import Choice, Run
from tokenspeed_openai.deployment import Counters
from tokenspeed_openai.texts import LONG_TEXT, Texts

LENGTH = ChunkDetails(finish=FinishReason(FinishKind.LENGTH, length=1))


class _Engine:
    """An `EngineClient` as far as a `Run` needs one: it sends chunks of tokens, then the end."""

    def __init__(self, chunks: Sequence[Sequence[int]]) -> None:
        self._chunks = chunks
        self.num_read = 0

    async def generate(self, request: AddRequest, *, rank: int | None = None) -> Any:
        return self._stream()

    async def _stream(self) -> Any:
        for tokens in self._chunks:
            self.num_read += 1
            yield Chunk([*tokens])
        yield Chunk([], details=LENGTH)


async def _read(engine: Any, reader: Any) -> str:
    request = AddRequest("r", [1], SamplingParams())
    run = Run([Choice(0, request, reader)], Counters())
    await run.start(engine)
    return "".join([piece.text async for piece in run.pieces()])


def _chopped(tokens: Sequence[int], dice: random.Random) -> list[Sequence[int]]:
    chunks, at = [], 0
    while at < len(tokens):
        end = at + dice.randint(1, 8)
        chunks.append(tokens[at:end])
        at = end
    return chunks


def test_any_tokens_have_one_text() -> None:
    """Random tokens of the whole vocabulary, in random chunks, have the text they have at once."""
    dice, tokenizer = random.Random(5), resolve_model("smollm2-135m").load_tokenizer()
    vocabulary = range(tokenizer.vocab_size)
    for _ in range(20):
        tokens = dice.choices(vocabulary, k=500)
        reader = Texts(tokenizer).reader(skip_special=True, stops=())
        read = asyncio.run(_read(_Engine(_chopped(tokens, dice)), reader))
        assert read == tokenizer.decode(tokens)


@pytest.mark.parametrize("seed", range(10))
def test_a_stop_string_is_found_in_any_chunks(seed: int) -> None:
    """A stop string cuts the same text at the same place in whatever chunks it comes."""
    dice, tokenizer = random.Random(seed), small_tokenizer()
    text = "".join(dice.choice("ab🙂é") for _ in range(300)) + "abba🙂 and more"
    tokens = tokenizer.encode(text, add_special=False)
    engine = _Engine(_chopped(tokens, dice))
    reader = Texts(tokenizer).reader(skip_special=True, stops=["abba🙂"])
    assert asyncio.run(_read(engine, reader)) == text[: text.index("abba🙂")]


def test_nothing_is_read_after_a_stop_string() -> None:
    """The engine's stream is left where the stop string is complete."""
    tokenizer = small_tokenizer()
    engine = _Engine([[token] for token in tokenizer.encode("one. two. three", add_special=False)])
    reader = Texts(tokenizer).reader(skip_special=True, stops=["."])
    assert asyncio.run(_read(engine, reader)) == "one"
    assert engine.num_read == 4


class _Slow:
    """A tokenizer whose long texts take until `finished` is set."""

    def __init__(self) -> None:
        self.inner: Any = small_tokenizer()
        self.begun, self.finished = threading.Event(), threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        if len(text) >= LONG_TEXT:
            self.begun.set()
            assert self.finished.wait(30)
            return [1, 2, 3]
        ids: list[int] = self.inner.encode(text, add_special=add_special)
        return ids


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        ("/v1/completions", "prompt", "x" * 2_000_000),
        ("/v1/chat/completions", "messages", [{"role": "user", "content": "x" * 2_000_000}]),
        ("/tokenize", "prompt", "x" * 2_000_000),
    ],
)
def test_a_text_that_cannot_fit_is_not_tokenised(
    start: Any, path: str, field: str, value: Any
) -> None:
    """A body of megabytes is refused by its length, before it costs seconds and memory."""
    slow = _Slow()
    answer = start(tokenizer=slow).post(path, {field: value})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, field)
    assert error["code"] == "context_length_exceeded"
    assert "cannot be as long as the 2000000 characters" in error["message"]
    assert not slow.begun.is_set()


@pytest.mark.parametrize("prompt", ["x" * LONG_TEXT, ["x" * 100] * 99 + ["x" * LONG_TEXT]])
def test_a_long_prompt_holds_nobody_up(start: Any, prompt: Any) -> None:
    """While long prompts are tokenised, others are answered from beginning to end."""
    slow = _Slow()
    site = start(tokenizer=slow)
    body = {"prompt": prompt, "max_tokens": 1}
    asking = threading.Thread(target=site.post, args=("/v1/completions", body))
    asking.start()
    assert slow.begun.wait(30)
    answer = site.post("/v1/completions", {"prompt": "hi", "max_tokens": 3})
    assert answer.json()["choices"][0]["text"] == " 1000 1001 1002"
    assert asking.is_alive()
    slow.finished.set()
    asking.join()
