# SPDX-License-Identifier: MIT
"""`POST /v1/completions`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import define, frozen
from starlette.requests import Request

from tokenspeed_hookspecs import LogprobOptions
from tokenspeed_openai.bodies import decode, read_body
from tokenspeed_openai.choices import Piece
from tokenspeed_openai.deployment import Deployment
from tokenspeed_openai.errors import invalid
from tokenspeed_openai.generation import Answer, Answering, Head, Wanted
from tokenspeed_openai.requests import CompletionRequest
from tokenspeed_openai.responses import Completion, CompletionChoice, CompletionLogprobs, Usage
from tokenspeed_openai.sampling import check_budget, check_count, check_prompts, sampling_of
from tokenspeed_openai.scores import CompletionScores, joined
from tokenspeed_openai.texts import Prompt, Texts

DEFAULT_MAX_TOKENS = 16


@frozen
class CompletionsApi:
    """The endpoint."""

    deployment: Deployment

    async def complete(self, request: Request) -> Answer:
        """Complete one prompt or several."""
        deployment = self.deployment
        content = await read_body(request, deployment.options.max_body_bytes)
        features = deployment.limits.features
        body, extras = decode(content, CompletionRequest, features=features)
        deployment.check_model(body.model)
        deployment.check_alive()
        wanted = await self._wanted(body, extras)
        answering = Answering.begin(deployment, wanted, prefix="cmpl")
        shape = CompletionShape(body, wanted, head=answering.head, texts=deployment.texts)
        return await answering.answer(request, shape)

    async def _wanted(self, body: CompletionRequest, extras: dict[str, object]) -> Wanted:
        _refuse_what_is_not_here(body)
        limits, texts = self.deployment.limits, self.deployment.texts
        prompts = await _prompts(body, texts)
        check_prompts(prompts, limits, field="prompt")
        check_budget(prompts, limits, max_tokens=body.max_tokens, field="max_tokens")
        max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
        logprobs = None
        if body.logprobs is not None:
            logprobs = LogprobOptions(start=0 if body.echo else None, top=body.logprobs)
        return Wanted(
            body=body,
            prompts=prompts,
            sampling=sampling_of(body, limits, max_tokens=max_tokens),
            logprobs=logprobs,
            features=extras,
        )


@define(eq=False)
class _Writer:
    """Writes one completion part by part; the prompt comes with the first, if it is echoed."""

    texts: Texts
    scores: CompletionScores | None
    echo: Prompt | None
    shows_ids: bool

    def part(self, piece: Piece) -> CompletionChoice:
        scores = self.scores
        part = CompletionChoice(
            index=piece.index,
            text=piece.text,
            finish_reason=piece.finish,
            stop_reason=piece.stop_reason,
        )
        prompt, self.echo = self.echo, None
        if prompt is not None:
            part.text = (prompt.text or "") + piece.text
        if scores is not None:
            before = _prompt_scores(scores, piece, prompt=prompt)
            part.logprobs = joined([*before, scores.add(piece.chunk)])
        if self.shows_ids:
            part.token_ids = piece.chunk.token_ids
        return part


class CompletionShape:
    """The completions of one request, as OpenAI writes them."""

    def __init__(
        self, body: CompletionRequest, wanted: Wanted, *, head: Head, texts: Texts
    ) -> None:
        self._body = body
        self._prompts = wanted.prompts
        self._width = wanted.width
        self._head = head
        self._writers = [
            _Writer(
                texts,
                None if body.logprobs is None else CompletionScores(texts, body.logprobs),
                self._prompt(index) if body.echo else None,
                body.return_token_ids or False,
            )
            for index in range(len(wanted.prompts) * wanted.width)
        ]

    def opening(self) -> Sequence[Completion]:
        """Nothing: a completion begins with its text."""
        return ()

    def part(self, piece: Piece) -> CompletionChoice:
        """What a piece adds to its completion."""
        return self._writers[piece.index].part(piece)

    def event(self, parts: Sequence[CompletionChoice], usage: Usage | None) -> Completion:
        """An event of the stream."""
        return Completion(choices=list(parts), usage=usage, **self._head)

    def whole(self, parts: Sequence[CompletionChoice], usage: Usage) -> Completion:
        """The answer in one body."""
        choices: list[list[CompletionChoice]] = [[] for _ in self._writers]
        for part in parts:
            choices[part.index].append(part)
        joined_choices = [self._joined(found) for found in choices]
        return Completion(choices=joined_choices, usage=usage, **self._head)

    def _joined(self, parts: Sequence[CompletionChoice]) -> CompletionChoice:
        last = parts[-1]
        choice = CompletionChoice(
            index=last.index,
            text="".join(part.text for part in parts),
            finish_reason=last.finish_reason,
            stop_reason=last.stop_reason,
        )
        if last.logprobs is not None:
            choice.logprobs = joined(part.logprobs for part in parts if part.logprobs is not None)
        if self._body.return_token_ids:
            choice.token_ids = [token for part in parts for token in part.token_ids or ()]
            choice.prompt_token_ids = list(self._prompt(last.index).token_ids)
        return choice

    def _prompt(self, index: int) -> Prompt:
        return self._prompts[index // self._width]


def _prompt_scores(
    scores: CompletionScores, piece: Piece, *, prompt: Prompt | None
) -> list[CompletionLogprobs]:
    """An echoed prompt's scores, which come with the engine's first delivery."""
    details = piece.chunk.details
    if prompt is None:
        return []
    if details is None or details.prompt is None:
        scores.skip_prompt(prompt.text or "")
        return []
    return [scores.add_prompt(details.prompt)]


def _refuse_what_is_not_here(body: CompletionRequest) -> None:
    if body.best_of not in (None, body.n or 1):
        raise invalid("best_of is not supported; ask for n completions instead", "best_of")
    if body.suffix:
        raise invalid("suffix is not supported: this server only continues a text", "suffix")


async def _prompts(body: CompletionRequest, texts: Texts) -> list[Prompt]:
    """One prompt or several, each as text or as token ids."""
    given = [body.prompt] if isinstance(body.prompt, str) else body.prompt
    words = [entry for entry in given if isinstance(entry, str)]
    ids = [entry for entry in given if isinstance(entry, int)]
    if ids and len(ids) < len(given):
        raise invalid("prompt must not mix token ids with other prompts", "prompt")
    if ids:
        return [await _of_ids(ids, body, texts=texts)]
    check_count(len(given), choices=body.n or 1, field="prompt")
    encoded: Iterator[Prompt] = iter(())
    if words:
        add_special = body.add_special_tokens is not False
        encoded = iter(await texts.encode(words, add_special=add_special))
    return [
        next(encoded) if isinstance(entry, str) else await _of_ids(entry, body, texts=texts)
        for entry in given
        if not isinstance(entry, int)
    ]


async def _of_ids(ids: list[int], body: CompletionRequest, *, texts: Texts) -> Prompt:
    return Prompt(ids, await texts.decode(ids) if body.echo and ids else None)
