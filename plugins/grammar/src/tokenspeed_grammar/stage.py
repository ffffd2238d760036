# SPDX-License-Identifier: MIT
"""The admission stage: a request waits until every rank of its replica has its grammar.

A rank says of each held request one code, and the least of all ranks decides: too long on any, then
still compiling on any, then unusable on any, then ready on all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from attrs import define, field

from tokenspeed_grammar.backend import CompiledGrammar
from tokenspeed_grammar.cache import Failure, GrammarCache
from tokenspeed_grammar.keys import GrammarKey
from tokenspeed_grammar.pool import CompileJob
from tokenspeed_hookspecs import Group, Hold, Pass, Refuse, Request, Verdict

CLIENT_ERROR = 400
BUSY = 503
TOO_LONG, COMPILING, UNUSABLE, READY = range(4)

KeyOf = Callable[[Mapping[str, object]], GrammarKey | None]
Attach = Callable[[Request, CompiledGrammar], None]


@define(eq=False)
class _Held:
    key: GrammarKey
    entered_at: float


@define(eq=False)
class GrammarStage:
    """See the module; `attach` gives a request that passes its own matcher, `key_of` reads its
    features."""

    name: str
    cache: GrammarCache
    replica: Group
    attach: Attach = field(kw_only=True)
    queue_limit: int = field(kw_only=True)
    key_of: KeyOf = field(kw_only=True)
    _held: dict[str, _Held] = field(factory=dict, init=False)

    @property
    def num_held(self) -> int:
        """Requests that wait for their grammars."""
        return len(self._held)

    def enter(self, request: Request) -> Verdict:
        """Let a plain request pass, and one whose grammar is known; a replica agrees on that."""
        key = self.key_of(request.features)
        if key is None:
            return Pass()
        self.cache.collect()
        if self.replica.size == 1:
            found = self.cache.known(key)
            if isinstance(found, Failure):
                return _refused(key, found)
            if found is not None and not isinstance(found, CompileJob):
                return self._pass(request, found)
        if len(self._held) >= self.queue_limit:
            text = f"{self.queue_limit} requests wait for their grammars already; try again later"
            return Refuse(text, BUSY)
        self.cache.wait(key)
        self._held[request.request_id] = _Held(key, self.cache.clock())
        self.cache.look_up(key)
        return Hold()

    def poll(self, held: Sequence[Request]) -> Sequence[int]:
        """How far each request's grammar is here."""
        self.cache.collect()
        return [self._code(self._held[request.request_id]) for request in held]

    def settle(self, held: Sequence[Request], agreed: Sequence[int]) -> Sequence[Verdict]:
        """Let pass, refuse or hold on, alike on every rank."""
        if self.replica.size == 1 and TOO_LONG in agreed:
            # A last look: nobody else has to agree that it is there after all.
            agreed = self.poll(held)
        failures = self._failures(held, agreed)
        verdicts = [
            self._verdict(request, code, failure=failure)
            for request, code, failure in zip(held, agreed, failures, strict=True)
        ]
        for request, code in zip(held, agreed, strict=True):
            if code == TOO_LONG:
                self.cache.time_out(self._held[request.request_id].key)
            if code != COMPILING:
                self.leave(request.request_id)
        return verdicts

    def leave(self, request_id: str) -> None:
        """Forget a request that ended otherwise; its compile goes on for the others."""
        self.cache.stop_waiting(self._held.pop(request_id).key)

    def _code(self, held: _Held) -> int:
        found = self.cache.look_up(held.key)
        if isinstance(found, Failure):
            return UNUSABLE
        if not isinstance(found, CompileJob):
            return READY
        # The time counts from the start of the compile, so that a full pool does not eat it.
        since = held.entered_at if found.started_at is None else found.started_at
        return TOO_LONG if self.cache.clock() - since >= self.cache.timeout_s else COMPILING

    def _failures(self, held: Sequence[Request], agreed: Sequence[int]) -> Sequence[Failure | None]:
        """Why each unusable request is: what the first rank that has a reason says, on all."""
        if UNUSABLE not in agreed:
            return [None] * len(held)
        own = [
            self.cache.known(self._held[request.request_id].key) if code == UNUSABLE else None
            for request, code in zip(held, agreed, strict=True)
        ]
        said = [(f.reason, f.is_permanent) if isinstance(f, Failure) else None for f in own]
        ranks = [json.loads(part) for part in self.replica.gather(json.dumps(said).encode())]
        first = [
            next((each for each in column if each is not None), None)
            for column in zip(*ranks, strict=True)
        ]
        return [None if each is None else Failure(*each) for each in first]

    def _verdict(self, request: Request, code: int, *, failure: Failure | None) -> Verdict:
        key = self._held[request.request_id].key
        if code == COMPILING:
            return Hold()
        if code == TOO_LONG:
            return Refuse(self.cache.timeout_text(key))
        if failure is not None:
            return _refused(key, failure)
        found = self.cache.known(key)
        assert found is not None, "what is agreed as ready is known"
        assert not isinstance(found, Failure | CompileJob), "what is agreed as ready is compiled"
        return self._pass(request, found)

    def _pass(self, request: Request, compiled: CompiledGrammar) -> Verdict:
        self.attach(request, compiled)
        return Pass()


def _refused(key: GrammarKey, failure: Failure) -> Refuse:
    text = f"Failed to compile {key.kind} grammar: {failure.reason}"
    return Refuse(text, CLIENT_ERROR if failure.is_permanent else None)
