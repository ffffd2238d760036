# SPDX-License-Identifier: MIT
"""What leaves a rank: one columnar batch of chunks a round, and the frontend that carries it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from attrs import define, field, frozen

from tokenspeed_hookspecs.requests import ControlReply, FinishReason, Message

TokenAlternatives = tuple[list[float], list[int]]


@define(eq=False)
class PromptLogprobs:
    """A prompt's scores from position `start` on; the first value is None, as is the first entry
    of `alternatives`, which is None altogether for a request that asked for none."""

    values: list[float | None]
    token_ids: list[int]
    alternatives: list[TokenAlternatives | None] | None = None


@define(eq=False)
class ChunkDetails:
    """The part of a chunk that few chunks have.

    `cached_by_tier` is in a stream's first and last chunk, if cached tokens were not all on the
    device: how many were in which tier.
    """

    finish: FinishReason | None = None
    logprobs: list[float] | None = None
    alternatives: list[TokenAlternatives] | None = None
    prompt: PromptLogprobs | None = None
    cached_by_tier: Mapping[str, int] | None = None


@define(eq=False)
class OutputBatch:
    """One round's chunks, a row each, in the order they were produced.

    `token_ids` holds the new tokens flat, `counts` how many each row has. Token counts are totals
    so far. `details[row]` exists only for rows that finish or carry logprobs.
    """

    request_ids: list[str] = field(factory=list)
    token_ids: list[int] = field(factory=list)
    counts: list[int] = field(factory=list)
    prompt_tokens: list[int] = field(factory=list)
    completion_tokens: list[int] = field(factory=list)
    cached_tokens: list[int] = field(factory=list)
    details: dict[int, ChunkDetails] = field(factory=dict)


@define(eq=False)  # not frozen: one is made for every row of every round
class Chunk:
    """One delivery of a stream: new tokens, and totals so far."""

    token_ids: list[int]
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    details: ChunkDetails | None = None

    @property
    def finish(self) -> FinishReason | None:
        """The request's end, in its last chunk."""
        return self.details.finish if self.details is not None else None


@frozen
class Load:
    """How busy a rank is, taken right before its outputs leave."""

    running: int
    waiting: int
    active_pages: int
    total_pages: int


class Frontend(Protocol):
    """Requests in, outputs out; only the replica's first member has one."""

    def receive(self, wait_s: float | None) -> Sequence[Message]:
        """Everything received since the last call; with `wait_s`, waits so long for a first."""
        ...

    @property
    def is_closed(self) -> bool:
        """No message can arrive any more; the engine stops after this round."""
        ...

    def send(self, outputs: OutputBatch, load: Load) -> None:
        """Take a round's chunks; must not wait for a slow reader."""
        ...

    def reply(self, reply: ControlReply) -> None:
        """Take the answer to a control request."""
        ...
