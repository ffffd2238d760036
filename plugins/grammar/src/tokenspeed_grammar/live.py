# SPDX-License-Identifier: MIT
"""The grammars of the requests on a data plane: which rows they constrain, and how rows end.

A request that names a grammar is known from its admission on, its matcher from its first forward. A
row without the matcher it needs, or whose matcher fails, ends its request: a text is never given
out that its grammar did not allow.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import numpy as np
from attrs import define, field

from tokenspeed_grammar.backend import Backend, Mask, Matcher, Vocabulary
from tokenspeed_grammar.keys import names_grammar
from tokenspeed_hookspecs import AdmittedRequest, Batch, FinishKind, FinishReason

Endings = dict[int, FinishReason]


@define(eq=False)
class LiveGrammar:
    """A constrained request: `end_ids` may follow where the text can end."""

    request_id: str
    end_ids: tuple[int, ...]
    matcher: Matcher | None = None
    is_over: bool = False
    problem: str | None = None
    is_told: bool = False


@define(eq=False)
class ConstrainedRow:
    """A row that samples under a grammar."""

    row: int
    live: LiveGrammar


@define(eq=False)
class LiveGrammars:
    """One data plane's constrained requests; used by its thread.

    A failure of a matcher ends its request by an abort, if this rank alone samples for it. Ranks
    that sample the same rows together would not all have it: there nothing is allowed any more,
    and the core ends such a row alike on all of them. The reason is in the log of the rank.
    """

    backend: Backend
    vocabulary: Vocabulary
    log: logging.Logger
    is_alone: bool = True
    _live: dict[str, LiveGrammar] = field(factory=dict, init=False)

    def __len__(self) -> int:
        return len(self._live)

    def admit(self, requests: Iterable[AdmittedRequest]) -> None:
        """Learn which requests are constrained."""
        for request in requests:
            if request.features and names_grammar(request.features):
                ends = (*self.vocabulary.end_ids, *request.sampling.stop_token_ids)
                self._live[request.request_id] = LiveGrammar(request.request_id, ends)

    def attach(self, matchers: Iterable[tuple[str, Matcher]]) -> None:
        """Take the matchers of requests before their first forward."""
        for request_id, matcher in matchers:
            live = self._live.get(request_id)
            if live is not None:
                live.matcher = matcher

    def release(self, request_ids: Iterable[str]) -> None:
        """Forget requests."""
        for request_id in request_ids:
            self._live.pop(request_id, None)

    def rows(self, batch: Batch) -> list[ConstrainedRow]:
        """The rows that sample under a grammar; a text that is over is free, as nobody reads on."""
        if not self._live:
            return []
        found = ((row, self._live.get(name)) for row, name in enumerate(batch.request_ids))
        return [
            ConstrainedRow(row, live)
            for row, live in found
            if live is not None and not live.is_over and not batch.is_mid_chunk(row)
        ]

    def fill(self, rows: Sequence[ConstrainedRow]) -> Mask:
        """The allowed tokens of each row, int32 [rows, words]; all of them where it failed."""
        mask = np.zeros((len(rows), self.vocabulary.mask_words), dtype=np.int32)
        wanted: list[tuple[Matcher, int]] = []
        for place, constrained in enumerate(rows):
            live = constrained.live
            if live.matcher is None:
                live.problem = "its forward came before its grammar"
            elif live.problem is None and not live.matcher.is_complete:
                wanted.append((live.matcher, place))
        if wanted:
            self.backend.fill(wanted, mask)
        for place, constrained in enumerate(rows):
            self._finish_row(constrained.live, mask[place])
        return mask

    def advance(self, rows: Sequence[ConstrainedRow], tokens: Sequence[int]) -> Endings:
        """Take each row's sampled token; the rows whose requests end."""
        endings: Endings = {}
        for constrained, token in zip(rows, tokens, strict=True):
            ending = self._advance(constrained.live, token)
            if ending is not None:
                constrained.live.is_over = True
                endings[constrained.row] = ending
        return endings

    def _finish_row(self, live: LiveGrammar, mask: Mask) -> None:
        matcher = live.matcher
        if matcher is not None and matcher.error is not None:
            live.problem = matcher.error
        elif matcher is not None and matcher.can_end:
            for token in live.end_ids:
                mask.view(np.uint32)[token >> 5] |= np.uint32(1 << (token & 31))
        if live.problem is None and not mask.any():
            live.problem = "no token of the vocabulary can follow its text"
        if live.problem is not None:
            mask.fill(-1 if self.is_alone else 0)

    def _advance(self, live: LiveGrammar, token: int) -> FinishReason | None:
        matcher = live.matcher
        if live.problem is not None or matcher is None:
            return self._failed(live)
        if token in live.end_ids and matcher.can_end:
            return FinishReason(FinishKind.STOP, matched=token)
        if not matcher.accept(token):
            live.problem = f"token {token} does not follow: {matcher.error}"
            return self._failed(live)
        if matcher.is_complete and not live.end_ids:
            return FinishReason(FinishKind.STOP)
        return None

    def _failed(self, live: LiveGrammar) -> FinishReason | None:
        text = f"the grammar of request {live.request_id!r} failed: {live.problem}"
        if not live.is_told:
            live.is_told = True
            self.log.warning("%s", text)
        return FinishReason(FinishKind.ABORT, message=text) if self.is_alone else None
