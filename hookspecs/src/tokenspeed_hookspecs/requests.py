# SPDX-License-Identifier: MIT
"""A request: what a client asks for, how it ends, and what a plugin may see and do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Protocol

from attrs import field, frozen


@frozen
class SamplingParams:
    """How a request's tokens are drawn; the defaults are the wire's.

    `top_k` of -1 is off. `max_new_tokens` of None runs to the engine's limit. `seed` of None is
    derived from the request id, so that every rank and every replay samples alike.
    """

    max_new_tokens: int | None = None
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    seed: int | None = None
    stream_interval: int | None = None


@frozen
class LogprobOptions:
    """Which logprobs a request wants besides its sampled tokens' own.

    `start` is the first prompt position to score (None: the last one, which needs no rows);
    `top` is the number of alternatives reported for each scored position and output token.
    """

    start: int | None = None
    top: int = 0


@frozen
class AddRequest:
    """A client's request, as it reaches a rank.

    `features` holds what plugins understand, by the name each claims; a name nobody claims
    refuses the request.
    """

    request_id: str
    prompt_ids: Sequence[int]
    sampling: SamplingParams = SamplingParams()
    stream: bool = True
    logprobs: LogprobOptions | None = None
    features: Mapping[str, object] = field(factory=dict)


@frozen
class AbortRequests:
    """The client no longer wants these requests; nothing is sent for them."""

    request_ids: tuple[str, ...]


@frozen
class ControlRequest:
    """An operator's request for the control operation `name`."""

    name: str
    arguments: Mapping[str, object] = field(factory=dict)


@frozen
class ControlReply:
    """The one answer to a control request."""

    name: str
    success: bool
    message: str = ""
    values: Mapping[str, object] = field(factory=dict)


Message = AddRequest | AbortRequests | ControlRequest


class FinishKind(Enum):
    """Why a request ended, in the words of the wire."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@frozen
class FinishReason:
    """A request's end: `matched` of a stop, `length` of a budget, the text of an abort.

    `weight_version` is that of the weights its last token came from, once an update named one.
    """

    kind: FinishKind
    matched: int | str | None = None
    length: int | None = None
    message: str | None = None
    status_code: int | None = None
    error_type: int | None = None
    weight_version: str | None = None

    def details(self) -> dict[str, object]:
        """The wire's ordered map: `type` first; keys that do not apply are absent."""
        keys = ("matched", "length", "message", "status_code", "weight_version")
        found = {key: getattr(self, key) for key in keys}
        details: dict[str, object] = {"type": self.kind.value}
        details.update((key, value) for key, value in found.items() if value is not None)
        if self.error_type is not None:
            details["err_type"] = self.error_type
        return details


class Request(Protocol):
    """One registered request, read-only for plugins."""

    @property
    def request_id(self) -> str:
        """The client's id, unique among live requests."""
        ...

    @property
    def prompt_ids(self) -> Sequence[int]:
        """The prompt as scheduled."""
        ...

    @property
    def output_ids(self) -> Sequence[int]:
        """The committed tokens; forwards in flight may hold more."""
        ...

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens served from the prefix cache."""
        ...

    @property
    def cached_by_tier(self) -> Mapping[str, int]:
        """The cached tokens by where they were: "device", "host", and tiers that plugins noted.
        Empty where all of them were on the device."""
        ...

    @property
    def sampling(self) -> SamplingParams:
        """Normalised: greedy is temperature 1 with top_k 1, the seed is set."""
        ...

    @property
    def features(self) -> Mapping[str, object]:
        """What plugins understand, by each one's name."""
        ...

    @property
    def finish_reason(self) -> FinishReason | None:
        """How it ended, or None while it runs."""
        ...

    @property
    def is_aborted(self) -> bool:
        """Whether it ends by an abort."""
        ...


class Requests(Protocol):
    """The rank's registered requests. Every call must be made alike on every replica rank."""

    def __len__(self) -> int: ...
    def get(self, request_id: str) -> Request | None:
        """The registered request with this id, or None."""
        ...

    def ids(self) -> Sequence[str]:
        """Registered ids in the order of registration."""
        ...

    @property
    def num_held(self) -> Mapping[str, int]:
        """How many registered requests each admission stage holds, by the stage's name."""
        ...

    @property
    def num_refused(self) -> int:
        """How many were refused since the start, and so never registered."""
        ...

    def note_cached(self, request_id: str, tier: str, *, num_tokens: int) -> None:
        """Say that so many more of a request's cached tokens were in a tier of the plugin's.

        What the host tier held is counted as "host" by the core itself, in the plan that loads it;
        of that, what is noted here counts for `tier` instead, and no more. May come before that
        plan and, until the request ends, after it. An unknown id is ignored.
        """
        ...

    def abort(self, request_id: str, message: str, *, notify: bool = True) -> None:
        """End a request at its next commit, or at once where no forward of it runs.

        Unknown ids are remembered and end at registration, as a client's abort does.
        """
        ...


@frozen
class FinishedRequest:
    """What an observer learns of a request that left the engine. Times in seconds of the engine
    clock; None where the request never got that far. `submitted_at` is when the scheduler first
    knew it, after stages and pauses; `scheduled_at` when its first forward ran. A preemption is a
    run of decode steps that shared their forwards with prompts. `cached_by_tier` is empty where all
    cached tokens were on the device. `max_new_tokens` is what the request could have come to."""

    request_id: str
    reason: FinishReason
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    received_at: float
    submitted_at: float | None
    scheduled_at: float | None
    prefilled_at: float | None
    first_token_at: float | None
    finished_at: float
    preempted_s: float = 0.0
    preemptions: int = 0
    cached_by_tier: Mapping[str, int] = field(factory=dict)
    max_new_tokens: int | None = None
