# SPDX-License-Identifier: MIT
"""Compiled grammars by key, and the failures that are remembered. Used by the loop's thread only.

    absent ─▶ compiling ─▶ ready
                  │  └───▶ refused (the compiler's reason, for good)
                  └──────▶ timed out (for one timeout), after too many: refused

A compile that ends after its time-out was told does not replace that answer while it holds, and is
there once it does not any more.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from attrs import define, field, frozen

from tokenspeed_grammar.backend import CompiledGrammar
from tokenspeed_grammar.keys import GrammarKey
from tokenspeed_grammar.pool import CompileJob
from tokenspeed_hookspecs import Clock

FAILURE_BYTES = 1024
REMEMBERED_TIMEOUTS = 4096
SHOWN_SOURCE = 200


@frozen
class Failure:
    """Why a key cannot be used. A permanent one is the client's fault; another one holds until
    `expires_at`."""

    reason: str
    is_permanent: bool
    expires_at: float = 0.0


class Pool(Protocol):
    """Who compiles."""

    def submit(self, job: CompileJob) -> None:
        """Queue a compile."""
        ...

    def ended(self) -> Sequence[CompileJob]:
        """The jobs that ended since the last call."""
        ...


Found = CompiledGrammar | Failure | CompileJob


@define(eq=False)
class GrammarCache:
    """Looks keys up, starts their compiles, once each, and keeps what came of it."""

    pool: Pool
    clock: Clock
    limit_bytes: int
    timeout_s: float
    max_retries: int
    _settled: OrderedDict[GrammarKey, CompiledGrammar | Failure] = field(
        factory=OrderedDict, init=False
    )
    _jobs: dict[GrammarKey, CompileJob] = field(factory=dict, init=False)
    _timeouts: dict[GrammarKey, int] = field(factory=dict, init=False)
    _waiting: dict[GrammarKey, int] = field(factory=dict, init=False)
    _size_bytes: int = field(default=0, init=False)

    _late: dict[GrammarKey, CompiledGrammar | Failure] = field(factory=dict, init=False)

    @property
    def size_bytes(self) -> int:
        """About how much memory the settled keys take."""
        return self._size_bytes

    @property
    def num_compiling(self) -> int:
        """Compiles that did not end."""
        return len(self._jobs)

    def wait(self, key: GrammarKey) -> None:
        """Count one more request that waits for a key; before its first `look_up`."""
        self._waiting[key] = self._waiting.get(key, 0) + 1

    def stop_waiting(self, key: GrammarKey) -> None:
        """Count one less; a compile that nobody waits for and that did not begin is dropped."""
        self._waiting[key] -= 1
        if not self._waiting[key]:
            del self._waiting[key]

    def collect(self) -> None:
        """Take what the compile threads finished."""
        for job in self.pool.ended():
            if self._jobs.get(job.key) is job:
                del self._jobs[job.key]
            if job.compiled is not None:
                self._timeouts.pop(job.key, None)
                self._settle(job.key, job.compiled)
            elif job.reason:
                self._settle(job.key, Failure(job.reason, is_permanent=True))

    def known(self, key: GrammarKey) -> Found | None:
        """What is known of a key, None if it is absent; nothing is started."""
        found = self._settled.get(key)
        if isinstance(found, Failure) and not found.is_permanent:
            if self.clock() < found.expires_at:
                return found
            self._forget(key)
            found = self._late.pop(key, None)
            if found is not None:
                self._settle(key, found)
        if found is not None:
            self._settled.move_to_end(key)
            return found
        return self._jobs.get(key)

    def look_up(self, key: GrammarKey) -> Found:
        """What is known of a key; an unknown one begins to compile."""
        found = self.known(key)
        if found is None:
            found = CompileJob(key, is_wanted=lambda: key in self._waiting)
            self._jobs[key] = found
            self.pool.submit(found)
        return found

    def time_out(self, key: GrammarKey) -> None:
        """Remember that a compile took too long; one that ended meanwhile did not."""
        if not isinstance(self.known(key), CompileJob):
            return
        count = self._timeouts[key] = self._timeouts.pop(key, 0) + 1
        if len(self._timeouts) > REMEMBERED_TIMEOUTS:
            del self._timeouts[next(iter(self._timeouts))]
        reason = self.timeout_text(key)
        if count > self.max_retries:
            self._settle(key, Failure(f"{reason}; gave up after {count} timeouts", True))
        else:
            self._settle(key, Failure(reason, False, self.clock() + self.timeout_s))

    def timeout_text(self, key: GrammarKey) -> str:
        """What a client is told of a compile that took too long."""
        source = json.dumps(key.source[:SHOWN_SOURCE], ensure_ascii=False)
        return (
            f"Grammar compilation timed out after {self.timeout_s:.1f}s: key=({key.kind!r}, "
            f"{source})"
        )

    def _settle(self, key: GrammarKey, found: CompiledGrammar | Failure) -> None:
        known = self._settled.get(key)
        if isinstance(known, Failure) and not known.is_permanent:
            # Clients were told that it failed, and until when.
            self._late[key] = found
            return
        self._forget(key)
        self._settled[key] = found
        self._size_bytes += _size_bytes(key, found)
        for old in list(self._settled):
            if self._size_bytes <= self.limit_bytes:
                break
            if old != key and old not in self._waiting:
                self._forget(old)

    def _forget(self, key: GrammarKey) -> None:
        found = self._settled.pop(key, None)
        if found is not None:
            self._size_bytes -= _size_bytes(key, found)


def _size_bytes(key: GrammarKey, found: CompiledGrammar | Failure) -> int:
    own = FAILURE_BYTES if isinstance(found, Failure) else found.size_bytes
    return own + len(key.source)
