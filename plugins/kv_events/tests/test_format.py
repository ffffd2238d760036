# SPDX-License-Identifier: MIT
"""What goes over the wire, byte by byte, and what readers of either form make of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from attrs import field, frozen

from tokenspeed_hookspecs import CacheCleared
from tokenspeed_kv_events.events import AllBlocksCleared, BlockRemoved, BlockStored, Encoder, Event
from tokenspeed_kv_events.translation import Translation

HIGH = (1 << 63) + 5


@frozen
class Native:
    """An event of the scheduler."""

    kind: str
    block_hashes: list[int]
    parent_block_hash: int | None = None
    token_ids: list[int] = field(factory=list)
    block_size: int = 4


def stored(name: int, tokens: list[int], parent: int | None = None) -> Native:
    """A block of 4 tokens, or fewer, is cached."""
    return Native("BlockStored", [name], parent, tokens)


def removed(name: int) -> Native:
    """A block is gone."""
    return Native("BlockRemoved", [name])


class StoredByPosition(msgspec.Struct, array_like=True, tag="BlockStored"):
    """What a reader from before `medium` was added expects."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None


class ClearedByPosition(msgspec.Struct, array_like=True, tag="AllBlocksCleared"):
    """Everything is gone."""


class StoredByName(msgspec.Struct, tag="BlockStored"):
    """What a reader of maps expects."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    medium: str | None = None


class ClearedByName(msgspec.Struct, tag="AllBlocksCleared"):
    """Everything is gone."""


EVENTS: list[Event] = [
    BlockStored([HIGH], None, [1, 2], 2),
    BlockRemoved([7, 8]),
    AllBlocksCleared(),
]
ARRAY = [
    ["BlockStored", [HIGH], None, [1, 2], 2, None, "GPU", None],
    ["BlockRemoved", [7, 8], "GPU"],
    ["AllBlocksCleared"],
]
MAP = [
    {
        "type": "BlockStored",
        "block_hashes": [HIGH],
        "parent_block_hash": None,
        "token_ids": [1, 2],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    },
    {"type": "BlockRemoved", "block_hashes": [7, 8], "medium": "GPU"},
    {"type": "AllBlocksCleared"},
]


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("array", [1.5, ARRAY, 3]),
        ("map", {"ts": 1.5, "events": MAP, "data_parallel_rank": 3}),
        ("map_events", [1.5, MAP, 3]),
    ],
)
def test_a_batch_has_these_bytes(form: Any, expected: object) -> None:
    """Each form is the msgpack of these lists or maps, key by key in this order."""
    assert Encoder(form, 3).payload(1.5, EVENTS) == msgspec.msgpack.encode(expected)


def test_an_older_reader_decodes_arrays() -> None:
    """One that knows fewer fields than are sent reads those it knows."""
    kept = [EVENTS[0], EVENTS[2]]
    wanted = tuple[float, list[StoredByPosition | ClearedByPosition], int]
    _, events, rank = msgspec.msgpack.decode(Encoder("array", 1).payload(0.0, kept), type=wanted)
    assert events == [StoredByPosition([HIGH], None, [1, 2], 2, None), ClearedByPosition()]
    assert rank == 1


def test_a_reader_of_maps_decodes_maps() -> None:
    """Events are told apart by `type`, and fields found by name."""

    class Batch(msgspec.Struct):
        ts: float
        events: list[StoredByName | ClearedByName]
        data_parallel_rank: int | None = None

    payload = Encoder("map", 0).payload(0.0, [EVENTS[0], EVENTS[2]])
    assert msgspec.msgpack.decode(payload, type=Batch).events == [
        StoredByName([HIGH], None, [1, 2], 2, "GPU"),
        ClearedByName(),
    ]


def test_a_block_that_is_not_full_is_left_out_with_its_removal() -> None:
    """A reader hears of neither, and of the full block that takes its place."""
    translation = Translation()
    natives = [stored(1, [1, 2, 3, 4]), stored(2, [5], 1), stored(3, [5, 6, 7, 8], 1)]
    told = translation.events(natives)
    assert [event.block_hashes for event in told if isinstance(event, BlockStored)] == [[1], [3]]
    assert translation.events([removed(2), removed(3)]) == [BlockRemoved([3])]


def test_a_block_that_is_not_full_can_be_told() -> None:
    """With partial blocks its size is its length."""
    told = Translation(keep_partial=True).events([stored(2, [5, 6], 1), removed(2)])
    assert told == [BlockStored([2], 1, [5, 6], 2), BlockRemoved([2])]


def test_a_left_out_block_that_comes_back_is_removed_once_more() -> None:
    """What was left out is forgotten with its removal, and with everything else."""
    translation = Translation()
    translation.events([stored(2, [5]), CacheCleared()])
    assert translation.events([removed(2)]) == [BlockRemoved([2])]


def test_hashes_can_have_a_sign() -> None:
    """The same 64 bits, as readers with signed numbers want them; parents too."""
    translation = Translation("int64")
    first, second = translation.events([stored(HIGH, [1, 2, 3, 4]), stored(6, [5, 6, 7, 8], HIGH)])
    assert isinstance(first, BlockStored)
    assert isinstance(second, BlockStored)
    assert first.block_hashes == [HIGH - (1 << 64)] == [second.parent_block_hash]
