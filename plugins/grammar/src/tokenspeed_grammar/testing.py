# SPDX-License-Identifier: MIT
"""The plugin's own kit: a clock, compiles and ranks that are moved by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from attrs import define, field, frozen

from tokenspeed_grammar.backend import Matcher
from tokenspeed_grammar.cache import GrammarCache
from tokenspeed_grammar.keys import GrammarKey
from tokenspeed_grammar.pool import CompileJob
from tokenspeed_hookspecs import FinishReason, SamplingParams

T = TypeVar("T")
TIMEOUT_S = 10.0
MAX_RETRIES = 2


@define
class HandClock:
    """Time that passes when a test says so."""

    now: float = 100.0

    def __call__(self) -> float:
        """The time."""
        return self.now


@frozen
class NamedGrammar:
    """A compiled grammar that is nothing but its name."""

    name: str
    size_bytes: int = 1000

    def matcher(self) -> Matcher:
        """Nothing follows it."""
        raise AssertionError(f"{self.name!r} is only a name")


@define
class HandPool:
    """Compiles that begin and end when a test says so."""

    clock: HandClock
    jobs: list[CompileJob] = field(factory=list)
    _ended: list[CompileJob] = field(factory=list)

    def submit(self, job: CompileJob) -> None:
        """Take a compile."""
        self.jobs.append(job)

    def ended(self) -> Sequence[CompileJob]:
        """What ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def begin(self, key: GrammarKey) -> None:
        """Let a thread take the key's newest compile."""
        self._newest(key).started_at = self.clock()

    def end(self, key: GrammarKey, *, reason: str = "", size_bytes: int = 1000) -> None:
        """End the key's newest compile: well, or refused for this reason."""
        job = self._newest(key)
        job.compiled = None if reason else NamedGrammar(key.source, size_bytes)
        job.reason, job.done = reason, True
        self._ended.append(job)

    def _newest(self, key: GrammarKey) -> CompileJob:
        return next(job for job in reversed(self.jobs) if job.key == key)


@define
class CacheBench:
    """A cache with its clock and its pool."""

    limit_bytes: int = 1 << 30
    clock: HandClock = field(factory=HandClock)
    pool: HandPool = field(init=False)
    cache: GrammarCache = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.pool = HandPool(self.clock)
        self.cache = GrammarCache(
            self.pool,
            self.clock,
            limit_bytes=self.limit_bytes,
            timeout_s=TIMEOUT_S,
            max_retries=MAX_RETRIES,
        )


@frozen(kw_only=True)
class GivenRequest:
    """A registered request, as a stage sees it."""

    request_id: str
    features: dict[str, object]
    prompt_ids: Sequence[int] = (1,)
    output_ids: Sequence[int] = ()
    cached_tokens: int = 0
    cached_by_tier: dict[str, int] = field(factory=dict)
    sampling: SamplingParams = field(factory=SamplingParams)
    finish_reason: FinishReason | None = None
    is_aborted: bool = False


@define(eq=False)
class ThreadGroup:
    """One member of a group of ranks that are threads; `threads` runs one function on each."""

    index: int
    size: int
    _shared: list[bytes]
    _barrier: threading.Barrier

    def gather(self, payload: bytes) -> list[bytes]:
        """Every member's payload, in member order."""
        self._shared[self.index] = payload
        self._barrier.wait(timeout=10)
        found = list(self._shared)
        self._barrier.wait(timeout=10)
        return found

    def agree_min(self, values: Sequence[int]) -> list[int]:
        """The least of each, over the members."""
        rows = [[int(each) for each in part.split()] for part in self._exchanged(values)]
        return [min(column) for column in zip(*rows, strict=True)]

    def agree_max(self, values: Sequence[int]) -> list[int]:
        """The most of each, over the members."""
        return [-each for each in self.agree_min([-value for value in values])]

    def total(self, values: Sequence[int]) -> list[int]:
        """The sum of each, over the members."""
        rows = [[int(each) for each in part.split()] for part in self._exchanged(values)]
        return [sum(column) for column in zip(*rows, strict=True)]

    def broadcast(self, source: int, payload: bytes) -> bytes:
        """The source's payload."""
        return self.gather(payload)[source]

    def _exchanged(self, values: Sequence[int]) -> list[bytes]:
        return self.gather(b" ".join(b"%d" % value for value in values))


def thread_groups(size: int) -> list[ThreadGroup]:
    """The members of one group."""
    shared, barrier = [b""] * size, threading.Barrier(size)
    return [ThreadGroup(index, size, shared, barrier) for index in range(size)]


def on_each(functions: Sequence[Callable[[], T]]) -> list[T]:
    """Run functions at once, a thread each; their results in order."""
    with ThreadPoolExecutor(len(functions)) as pool:
        return list(pool.map(lambda function: function(), functions))
