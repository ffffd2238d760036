# SPDX-License-Identifier: MIT
"""Simulated page contents: what is right passes, each kind of wrong plan is found."""

from __future__ import annotations

import numpy as np
import pytest

from tokenspeed_core.testing import CheckedPages
from tokenspeed_core.testing.batches import DecodeRow, ExtendRow, batch_of
from tokenspeed_hookspecs import Batch, CacheGroup, CacheOperation, CacheOperationKind, PageMove

PAGE = 4
PROMPT = list(range(1, 7))  # one page and a half


def _pages(*request_ids: str, window: int | None = None) -> CheckedPages:
    pages = CheckedPages([CacheGroup("full", PAGE, window)])
    for request_id in request_ids:
        pages.texts.admit(request_id, PROMPT)
    return pages


def _run(pages: CheckedPages, batch: Batch) -> None:
    pages.forward(batch)
    tokens = [1000 if not batch.is_mid_chunk(row) else 0 for row in range(len(batch.request_ids))]
    pages.sampled(batch, np.array(tokens))


def _move(kind: CacheOperationKind, *, source: int, to: int, tier: int = 1) -> CacheOperation:
    return CacheOperation(1, kind, (PageMove("full", (source,), (to,), (tier,)),), "a", 1, 1)


def _copied(source: int, to: int) -> dict[str, np.ndarray]:
    return {"full": np.array([[source, to]], dtype=np.int32)}


def test_a_decode_reads_what_the_prompt_wrote() -> None:
    """A prompt in two chunks and a decode over the same pages pass, and the check counted them."""
    pages = _pages("a")
    _run(pages, batch_of([ExtendRow("a", PROMPT, [3, 5], length=4)]))
    _run(pages, batch_of([ExtendRow("a", PROMPT, [3, 5], prefix=4)]))
    _run(pages, batch_of([], [DecodeRow("a", [3, 5])]))
    assert pages.num_checked == 4 + 6


def test_a_wrong_block_table_is_found() -> None:
    """A page that belongs to another text is reported with the position."""
    pages = _pages("a")
    pages.texts.admit("b", [9] * 6)
    _run(pages, batch_of([ExtendRow("a", PROMPT, [1, 2]), ExtendRow("b", [9] * 6, [3, 4])]))
    with pytest.raises(AssertionError, match=r"position 4 \(page 4\) holds another text"):
        _run(pages, batch_of([], [DecodeRow("a", [1, 4])]))


def test_equal_tokens_after_another_prefix_are_another_text() -> None:
    """A page with the right tokens behind a different beginning is not reusable."""
    pages = _pages("a")
    pages.texts.admit("b", [7, 7, 7, 7, 5, 6])
    _run(pages, batch_of([ExtendRow("b", [7, 7, 7, 7, 5, 6], [3, 4])]))
    _run(pages, batch_of([ExtendRow("a", PROMPT, [1, 2])]))
    with pytest.raises(AssertionError, match="holds another text"):
        _run(pages, batch_of([], [DecodeRow("a", [1, 4])]))


def test_a_missing_copy_is_found() -> None:
    """A private page that was not copied was never written; after the copy the row passes."""
    pages = _pages("a")
    _run(pages, batch_of([ExtendRow("a", PROMPT, [1, 2])]))
    with pytest.raises(AssertionError, match=r"position 4 \(page 9\) was never written"):
        pages.forward(batch_of([], [DecodeRow("a", [1, 9])]))
    pages.prepare(_copied(2, 9), {})
    _run(pages, batch_of([], [DecodeRow("a", [1, 9])]))


def test_a_page_zeroed_too_early_is_found() -> None:
    """Zeroing a page that a row still reads is reported."""
    pages = _pages("a")
    _run(pages, batch_of([ExtendRow("a", PROMPT, [1, 2])]))
    pages.prepare({}, {"full": np.array([1], dtype=np.int32)})
    with pytest.raises(AssertionError, match=r"position 0 \(page 1\) was never written"):
        pages.forward(batch_of([], [DecodeRow("a", [1, 2])]))


def test_a_page_may_be_copied_and_given_away_in_one_plan() -> None:
    """A copy reads its source before the same plan zeroes it, or copies over it."""
    pages = _pages("a")
    _run(pages, batch_of([ExtendRow("a", PROMPT, [1, 2])]))
    both = {"full": np.array([[2, 9], [1, 2]], dtype=np.int32)}
    pages.prepare(both, {"full": np.array([1], dtype=np.int32)})
    _run(pages, batch_of([], [DecodeRow("a", [2, 9])]))


@pytest.mark.parametrize(
    ("away", "back", "tier"),
    [
        (CacheOperationKind.SNAPSHOT, CacheOperationKind.RESTORE, 1),
        (CacheOperationKind.WRITE_BACK, CacheOperationKind.RESTORE, 0),
        (CacheOperationKind.WRITE_BACK, CacheOperationKind.LOAD_BACK, 0),
    ],
)
def test_pages_survive_a_trip_to_another_tier(
    away: CacheOperationKind, back: CacheOperationKind, tier: int
) -> None:
    """Bytes moved away and back into other pages are the request's own again."""
    pages = _pages("a")
    _run(pages, batch_of([ExtendRow("a", PROMPT, [1, 2])]))
    for page in (1, 2):
        pages.run(_move(away, source=page, to=page + 10))
    pages.prepare({}, {"full": np.array([1, 2], dtype=np.int32)})
    for page in (1, 2):
        pages.run(_move(back, source=page + 10, to=page + 100, tier=tier))
    _run(pages, batch_of([], [DecodeRow("a", [101, 102])]))


def test_a_window_reads_only_its_positions() -> None:
    """A sliding group may give up pages behind its window, and not those inside it."""
    pages = _pages("a", window=2)
    _run(pages, batch_of([ExtendRow("a", PROMPT, [1, 2])]))
    _run(pages, batch_of([], [DecodeRow("a", [0, 2])]))
    with pytest.raises(AssertionError, match="no page for position 6"):
        pages.forward(batch_of([], [DecodeRow("a", [1, 0])]))


@pytest.mark.parametrize("wrong", [[1, 2, 3, 4, 5, 7], [1, 2, 3]])
def test_wrong_input_ids_are_found(wrong: list[int]) -> None:
    """Input ids that are not the request's prompt are reported."""
    pages = _pages("a")
    with pytest.raises(AssertionError, match="input_ids of row 0"):
        pages.forward(batch_of([ExtendRow("a", wrong, [1, 2])]))


def test_a_stale_host_token_is_found() -> None:
    """A decode row's token from the host must be the request's last one."""
    pages = _pages("a")
    _run(pages, batch_of([ExtendRow("a", PROMPT, [1, 2])]))
    with pytest.raises(AssertionError, match="decode_input_ids of row 0"):
        pages.forward(batch_of([], [DecodeRow("a", [1, 2], token=999)]))
