# SPDX-License-Identifier: MIT
"""The engine's logprobs in OpenAI's two forms.

JSON has no infinity: a logprob below -9999, and one that is not a number, is told as -9999.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from tokenspeed_hookspecs import Chunk, PromptLogprobs, TokenAlternatives
from tokenspeed_openai.responses import ChatLogprobs, CompletionLogprobs, Score, TokenScore
from tokenspeed_openai.texts import Texts, spelled

LOWEST = -9999.0


def finite(logprob: float) -> float:
    """A logprob that JSON can hold."""
    return logprob if logprob > LOWEST else LOWEST


class ChatScores:
    """Scores of an answer's tokens, with the `top` most likely ones at each place."""

    def __init__(self, texts: Texts, top: int) -> None:
        self._texts = texts
        self._top = top

    def add(self, chunk: Chunk) -> ChatLogprobs:
        """The scores of a chunk's tokens."""
        found = ChatLogprobs(content=[])
        for token_id, logprob, alternatives in _rows(chunk):
            likely = zip(*alternatives, strict=True) if alternatives is not None else ()
            tops = [self._score(other, value) for value, other in likely][: self._top]
            found.content.append(self._scored(token_id, logprob, tops=tops))
        return found

    def _score(self, token_id: int, logprob: float) -> Score:
        token = self._texts.token_bytes(token_id)
        return Score(token=spelled(token), logprob=finite(logprob), bytes=list(token))

    def _scored(self, token_id: int, logprob: float, *, tops: list[Score]) -> TokenScore:
        token = self._texts.token_bytes(token_id)
        return TokenScore(
            token=spelled(token), logprob=finite(logprob), bytes=list(token), top_logprobs=tops
        )


class CompletionScores:
    """Scores of one completion, in parallel lists; offsets count the characters before a token."""

    def __init__(self, texts: Texts, top: int) -> None:
        self._texts = texts
        self._top = top
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def skip_prompt(self, text: str) -> None:
        """Count a prompt that comes before the first token without scores."""
        self._offset += len(text)

    def add_prompt(self, prompt: PromptLogprobs) -> CompletionLogprobs:
        """The scores of an echoed prompt, which has none for its first token."""
        alternatives = prompt.alternatives or [None] * len(prompt.values)
        found = self._empty()
        rows = zip(prompt.token_ids, prompt.values, alternatives, strict=True)
        for token_id, logprob, likely in rows:
            self._append(found, token_id, logprob=logprob, likely=likely)
        return found

    def add(self, chunk: Chunk) -> CompletionLogprobs:
        """The scores of a chunk's tokens."""
        found = self._empty()
        for token_id, logprob, likely in _rows(chunk):
            self._append(found, token_id, logprob=logprob, likely=likely)
        return found

    def _empty(self) -> CompletionLogprobs:
        return CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])

    def _append(
        self,
        found: CompletionLogprobs,
        token_id: int,
        *,
        logprob: float | None,
        likely: TokenAlternatives | None,
    ) -> None:
        token = self._texts.token_bytes(token_id)
        text = spelled(token)
        found.tokens.append(text)
        found.token_logprobs.append(None if logprob is None else finite(logprob))
        found.text_offset.append(self._offset)
        found.top_logprobs.append(
            None if logprob is None else self._tops(text, logprob, likely=likely)
        )
        if not self._texts.has_no_text(token_id):
            self._offset += len(self._decoder.decode(token))

    def _tops(
        self, text: str, logprob: float, *, likely: TokenAlternatives | None
    ) -> dict[str, float]:
        """The most likely tokens by text, and the one that was taken."""
        tops: dict[str, float] = {}
        for value, token_id in zip(*(likely or ([], [])), strict=True):
            tops.setdefault(spelled(self._texts.token_bytes(token_id)), finite(value))
        tops = dict(list(tops.items())[: self._top])
        tops.setdefault(text, finite(logprob))
        return tops


def joined(parts: Iterable[CompletionLogprobs]) -> CompletionLogprobs:
    """Several stretches as one."""
    whole = CompletionLogprobs(tokens=[], token_logprobs=[], top_logprobs=[], text_offset=[])
    for part in parts:
        whole.tokens += part.tokens
        whole.token_logprobs += part.token_logprobs
        whole.top_logprobs += part.top_logprobs
        whole.text_offset += part.text_offset
    return whole


def _rows(chunk: Chunk) -> Iterable[tuple[int, float, TokenAlternatives | None]]:
    """Token, logprob and alternatives of each new token; what the engine left out has none."""
    details = chunk.details
    if details is None or details.logprobs is None:
        return ()
    count = len(details.logprobs)
    likely: Sequence[TokenAlternatives | None] = details.alternatives or [None] * count
    # A first token that was sampled elsewhere may have come without its logprob.
    return zip(chunk.token_ids[-count:] if count else (), details.logprobs, likely, strict=True)
