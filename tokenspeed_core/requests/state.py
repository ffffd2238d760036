# SPDX-License-Identifier: MIT
"""One request's state. What changes every token for every row is a column of the table instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define, field

from tokenspeed_core.requests.prompt_scores import PromptScores
from tokenspeed_hookspecs import (
    FinishReason,
    LogprobOptions,
    SamplingParams,
    TokenAlternatives,
)

DEVICE, HOST = "device", "host"


@define(eq=False)
class Timeline:
    """When a request passed its stations, in seconds of the engine clock; None: not yet."""

    received: float
    submitted: float | None = None
    scheduled: float | None = None
    prefilled: float | None = None
    first_token: float | None = None
    preempted_s: float = 0.0
    preemptions: int = 0
    last_preempted: int = -1

    def note_preemption(self, round_number: int, seconds: float) -> None:
        """A decode step shared its forward with a prompt; steps of rounds in a row count as one."""
        self.preemptions += round_number != self.last_preempted + 1 or not self.preemptions
        self.preempted_s += seconds
        self.last_preempted = round_number


@define(eq=False)
class RequestState:
    """A registered request, from admission to its last output.

    `column` is its row in the table's arrays; `sent` counts the output tokens delivered so far;
    `notify` says whether the client still waits for an end. Of the cached tokens `loaded_tokens`
    came from the host tier; `noted_tokens` says, by tier, where some of these were before.
    """

    request_id: str
    prompt_ids: Sequence[int]
    sampling: SamplingParams
    features: Mapping[str, object]
    budget: int
    interval: int
    logprobs: LogprobOptions | None
    scores: PromptScores | None
    times: Timeline
    column: int = -1
    is_live: bool = True
    output_ids: list[int] = field(factory=list)
    cached_tokens: int = 0
    loaded_tokens: int = 0
    noted_tokens: dict[str, int] = field(factory=dict)
    computed_length: int = 0
    finish_reason: FinishReason | None = None
    is_aborted: bool = False
    notify: bool = True
    sent: int = 0
    output_logprobs: list[float] = field(factory=list)
    output_alternatives: list[TokenAlternatives] = field(factory=list)
    has_nan_chunk: bool = False

    def end_without_token(self, reason: FinishReason) -> None:
        """Finish for a cause that brings no token of its own.

        At an interval of 1 each commit delivers what it took, so nothing is left to send; `sent` is
        not kept up to date for rows that are taken many at once.
        """
        self.finish_reason = reason
        if self.interval == 1:
            self.sent = len(self.output_ids)

    @property
    def cached_by_tier(self) -> Mapping[str, int]:
        """Cached tokens by where they were; nothing where all were on the device."""
        below = min(self.loaded_tokens, self.cached_tokens)
        if not below:
            return {}
        found = {DEVICE: self.cached_tokens - below, HOST: below}
        for tier, noted in self.noted_tokens.items():
            found[tier] = min(noted, found[HOST])
            found[HOST] -= found[tier]
        return found

    @property
    def prompt_len(self) -> int:
        """Prompt length in tokens."""
        return len(self.prompt_ids)

    @property
    def is_finished(self) -> bool:
        """Whether it has a finish reason; it may still be in the scheduler."""
        return self.finish_reason is not None

    @property
    def stops_on_eos(self) -> bool:
        """Whether the model's end tokens, and its own stop tokens, end it."""
        return not self.sampling.ignore_eos

    @property
    def is_plain(self) -> bool:
        """Whether a token that ends nothing needs no Python of its own."""
        own_stops = self.sampling.stop_token_ids and self.stops_on_eos
        return not (own_stops or self.sampling.stop or self.logprobs is not None)
