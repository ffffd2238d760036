# SPDX-License-Identifier: MIT
"""What a plan looks like to those who run it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from tokenspeed_core.scheduling.operations import device_order
from tokenspeed_core.scheduling.withholding import without_rows
from tokenspeed_hookspecs import (
    Batch,
    CacheGroup,
    CacheOperationKind,
    PageMove,
    RequestSpec,
    StorageTick,
)


class SnapshotOp:
    """A retraction's images, as the wheel describes them."""

    op_ids: Sequence[int] = (4, 5)
    request_ids = ("a", "b")
    request_pool_indices = (1, 2)
    snapshot_slots = (7, 8)
    group_ids: Sequence[Sequence[int]] = ([0, 1, 0], [])
    src_pages: Sequence[Sequence[int]] = ([10, 20, 11], [])
    dst_pages: Sequence[Sequence[int]] = ([1, 2, 3], [])


class RestoreOp(SnapshotOp):
    """The way back."""

    op_ids = (6,)
    source_tiers = ([1, 0, 1],)


class WriteBackOp:
    """Pages on their way to the host."""

    op_ids = (9,)
    group_ids = ([1],)
    src_pages = ([3],)
    dst_pages = ([4],)


class FetchOp:
    """A kind of some plugin."""

    op_id = 12


def test_operations_in_device_order() -> None:
    """What reads device pages comes before what writes them; unknown kinds come last."""
    natives = [FetchOp(), RestoreOp(), SnapshotOp(), WriteBackOp()]
    operations = device_order(natives, ["full", "window"])
    assert [one.op_id for one in operations] == [4, 5, 9, 6, 12]
    assert operations[-1].kind is CacheOperationKind.OTHER
    assert operations[-1].native is natives[0]


def test_pages_are_grouped_by_name() -> None:
    """An operation's flat page lists become one move per group."""
    snapshot, empty = device_order([SnapshotOp()], ["full", "window"])
    assert snapshot.moves == (PageMove("full", (10, 11), (1, 3)), PageMove("window", (20,), (2,)))
    assert (snapshot.request_id, snapshot.slot, snapshot.image) == ("a", 1, 7)
    assert empty.moves == ()


def test_a_restore_names_its_tiers() -> None:
    """Each page of a restore says whether it lies in the host tier or in the pool."""
    (restore,) = device_order([RestoreOp()], ["full", "window"])
    assert [move.source_tiers for move in restore.moves] == [(1, 1), (0,)]


def four_rows() -> Batch:
    """Two chunks of 2 and 3 tokens, two decode rows."""
    return Batch(
        request_ids=["a", "b", "c", "d"],
        slots=np.array([1, 2, 3, 4]),
        incarnations=[11, 12, 13, 14],
        input_lengths=[2, 3, 1, 1],
        num_extends=2,
        extend_prefix_lens=[0, 16],
        extend_replay_lens=[0, 1],
        prefill_lengths=[2, 40],
        input_ids=[1, 2, 3, 4, 5],
        shifted_input_ids=[2, -1, 4, 5, 6],
        decode_input_ids=[-1, 9],
        block_tables={"full": np.arange(8, dtype=np.int32).reshape(4, 2)},
        num_tokens=7,
    )


def test_without_a_chunk_and_a_decode_row() -> None:
    """Withheld rows leave every array of the batch."""
    kept = without_rows(four_rows(), [0, 2])
    assert (kept.request_ids, kept.incarnations) == (["b", "d"], [12, 14])
    assert (kept.slots.tolist(), kept.input_lengths) == ([2, 4], [3, 1])
    assert (kept.num_extends, kept.num_tokens) == (1, 4)
    assert (kept.extend_prefix_lens, kept.extend_replay_lens) == ([16], [1])
    assert (kept.prefill_lengths, kept.decode_input_ids) == ([40], [9])
    assert (kept.input_ids, kept.shifted_input_ids) == ([3, 4, 5], [4, 5, 6])
    assert kept.block_tables["full"].tolist() == [[2, 3], [6, 7]]


def test_a_plan_of_nothing(rounds: Any) -> None:
    """An idle plan has no batch and nothing for the device."""
    plan = rounds().driver.plan()
    assert (plan.batch, plan.operations, plan.zero, plan.copy) == (None, (), {}, {})
    assert (plan.aborts, plan.needs_device) == ((), False)


def test_a_first_chunk(rounds: Any) -> None:
    """A chunk brings its tokens, its table and the pages to zero."""
    loop = rounds()
    loop.driver.submit([RequestSpec("a", range(100, 120), 4)])
    plan = loop.driver.plan()
    batch = plan.batch
    assert (batch.request_ids, batch.slots.tolist(), batch.incarnations) == (["a"], [1], [1])
    assert batch.slots.dtype == np.int64
    assert (batch.num_extends, batch.num_tokens, batch.prefill_lengths) == (1, 20, [20])
    assert list(batch.shifted_input_ids) == [*range(101, 120), -1]
    assert plan.zero["full"].tolist() == batch.block_tables["full"][0].tolist() == [1, 2]
    assert plan.needs_device


def test_the_first_decode_copies_the_last_page(rounds: Any) -> None:
    """The part-filled page of a prompt is shared, so the first decode writes into a copy."""
    loop = rounds()
    loop.submit("a", 20)
    loop.round()
    plan = loop.round()
    assert plan.copy["full"].tolist() == [[2, 3]]
    assert plan.batch.block_tables["full"].tolist() == [[1, 3]]
    assert (plan.batch.decode_input_ids, plan.zero) == ([-1], {})


def test_steady_rows_share_their_lists(rounds: Any) -> None:
    """While nothing changes, batches name the same ids and slots by the same objects."""
    loop = rounds(1)
    for name in "ab":
        loop.submit(name, budget=50)
    batches = [loop.round().batch for _ in range(6)]
    assert batches[-1].request_ids is batches[-2].request_ids
    assert batches[-1].slots is batches[-2].slots


def test_a_freeze_between_two_plans(rounds: Any) -> None:
    """After plans without a forward the same rows are looked at anew, and go on."""
    loop = rounds()
    request = loop.submit("a", budget=6)
    for _ in range(3):
        loop.round()
    loop.driver.advance_head(StorageTick(allow_forward=False), [])
    assert loop.round().batch is None
    loop.driver.advance_head(StorageTick(), [])
    loop.drain()
    assert len(request.tokens) == 6


def test_a_restored_request_has_a_new_slot(rounds: Any) -> None:
    """After a retraction the batch names the slot the restore named."""
    loop = rounds(snapshot_pages=257, max_retracted=8, force_retraction_every=3)
    loop.submit("a", budget=9)
    loop.drain()
    restores = {
        one.slot
        for plan in loop.plans
        for one in plan.operations
        if one.kind is CacheOperationKind.RESTORE
    }
    slots = {int(plan.batch.slots[0]) for plan in loop.plans if plan.batch is not None}
    assert restores
    assert slots == restores | {1}


def test_several_groups(rounds: Any) -> None:
    """Each group has its own table, and a window's old pages are 0 in it."""
    groups = (CacheGroup("full", 16), CacheGroup("window", 16, 64))
    loop = rounds(groups=groups)
    loop.submit("a", 200, budget=4)
    loop.round()
    tables = loop.round().batch.block_tables
    assert set(tables) == {"full", "window"}
    assert tables["full"][0].all()
    assert tables["window"][0][0] == 0


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_request_the_scheduler_drops(rounds: Any, depth: int) -> None:
    """Where pages run out one request is dropped and reported once; the other gets its tokens."""
    loop = rounds(depth, num_pages=9)
    kept = loop.submit("a", 20, budget=80, declared=0)
    loop.submit("b", 20, budget=80, declared=0)
    loop.drain()
    aborts = [(one.request_id, one.reason) for plan in loop.plans for one in plan.aborts]
    assert aborts == [("b", "ImageDoesNotFit")]
    assert len(kept.tokens) == 80
    assert loop.driver.has_room_for("b")
    assert loop.driver.native.available_lcm_blocks() == 8
