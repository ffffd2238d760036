# SPDX-License-Identifier: MIT
"""Rows whose grammars fail: their requests end, and nobody else's."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
import pytest
from attrs import define, field

from tokenspeed_core.testing.small_tokenizer import small_tokenizer
from tokenspeed_grammar.backend import CompiledGrammar, Mask, Matcher, Vocabulary
from tokenspeed_grammar.live import ConstrainedRow, LiveGrammars
from tokenspeed_hookspecs import AdmittedRequest, FinishKind, SamplingParams

LETTER, END = 97, 319


@define(eq=False)
class FailingMatcher:
    """Allows one letter; fails at its token number `refuses`, or at its mask number `breaks`."""

    refuses: int = -1
    breaks: int = -1
    error: str | None = None
    is_complete: bool = False
    can_end: bool = False
    taken: list[int] = field(factory=list)

    def accept(self, token: int) -> bool:
        """Take a token, or refuse it."""
        self.taken.append(token)
        if len(self.taken) - 1 == self.refuses:
            self.error = "refused"
        return self.error is None


class LetterBackend:
    """Fills masks of those matchers; one that allows nothing stands for a dead end."""

    def compile(self, kind: str, source: str) -> CompiledGrammar:
        """Nothing is compiled here."""
        raise AssertionError("matchers are made by hand")

    def fill(self, matchers: Sequence[tuple[Matcher, int]], mask: Mask) -> None:
        """Allow the letter."""
        for matcher, row in matchers:
            assert isinstance(matcher, FailingMatcher)
            if len(matcher.taken) == matcher.breaks:
                matcher.error = "broke"
            mask[row, LETTER >> 5] = 1 << (LETTER & 31)


def _live(*, is_alone: bool = True) -> LiveGrammars:
    vocabulary = Vocabulary(small_tokenizer(vocab_size=320), 320, (END,))
    return LiveGrammars(LetterBackend(), vocabulary, logging.getLogger("test"), is_alone)


def _rows(live: LiveGrammars, matchers: dict[str, FailingMatcher | None]) -> list[ConstrainedRow]:
    requests = [
        AdmittedRequest(name, [1], SamplingParams(), None, {"regex": "a+"}) for name in matchers
    ]
    live.admit(requests)
    live.attach([(name, each) for name, each in matchers.items() if each is not None])
    return [ConstrainedRow(row, live._live[name]) for row, name in enumerate(matchers)]


@pytest.mark.parametrize("at", [0, 1, 7])
@pytest.mark.parametrize("refuses", [True, False])
def test_a_matcher_that_fails_ends_its_request_at_that_token(refuses: bool, at: int) -> None:
    """The abort names the request and the cause; its neighbour goes on."""
    live = _live()
    bad = FailingMatcher(refuses=at) if refuses else FailingMatcher(breaks=at)
    rows = _rows(live, {"bad": bad, "good": FailingMatcher()})
    for step in range(at + 1):
        live.fill(rows)
        endings = live.advance(rows, [LETTER] * len(rows))
        assert list(endings) == ([0] if step == at else [])
    assert endings[0].kind is FinishKind.ABORT
    assert "the grammar of request 'bad' failed" in (endings[0].message or "")
    assert rows[0].live.is_over
    assert not rows[1].live.is_over


def test_a_row_without_its_matcher_ends(caplog: pytest.LogCaptureFixture) -> None:
    """What should be constrained and is not is never given out."""
    live = _live()
    rows = _rows(live, {"bad": None})
    assert (live.fill(rows) == -1).all()
    endings = live.advance(rows, [LETTER])
    assert endings[0].kind is FinishKind.ABORT
    assert "its forward came before its grammar" in caplog.text


def test_a_dead_end_ends(caplog: pytest.LogCaptureFixture) -> None:
    """Where no token may follow, no token does."""
    live = _live()
    rows = _rows(live, {"bad": FailingMatcher(is_complete=True)})
    live.fill(rows)
    endings = live.advance(rows, [LETTER])
    assert "no token of the vocabulary can follow" in (endings[0].message or "")


def test_ranks_that_sample_together_allow_nothing_any_more() -> None:
    """A row that failed is barred whole, so that all of them see it end; none ends it alone."""
    live = _live(is_alone=False)
    rows = _rows(live, {"bad": FailingMatcher(breaks=0)})
    assert not live.fill(rows).any()
    assert live.advance(rows, [LETTER]) == {}


def test_an_end_token_is_no_end_where_the_text_cannot_end() -> None:
    """It is asked of the matcher, which refuses it."""
    live = _live()
    rows = _rows(live, {"bad": FailingMatcher(refuses=0)})
    live.fill(rows)
    assert live.advance(rows, [END])[0].kind is FinishKind.ABORT


def test_released_requests_are_forgotten() -> None:
    """Nothing is kept, and an id that is not constrained is passed over."""
    live = _live()
    _rows(live, {"a": FailingMatcher(), "b": FailingMatcher()})
    live.release(["a", "other", "b"])
    assert len(live) == 0


def test_masks_are_words_of_the_vocabulary() -> None:
    """A row's mask has a bit for each token."""
    live = _live()
    rows = _rows(live, {"a": FailingMatcher()})
    bits = np.unpackbits(live.fill(rows).view(np.uint8), bitorder="little")
    assert np.flatnonzero(bits).tolist() == [LETTER]
