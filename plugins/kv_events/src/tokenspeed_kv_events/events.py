# SPDX-License-Identifier: MIT
"""The events as readers know them, and their bytes in each form.

Fields and their order are vLLM's. A reader of the array form takes a tag and positions, one of a
map form takes names; neither understands the other. In `map` a batch is a map as well; most readers
of events by name expect it by position, which is `map_events`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

DEVICE = "GPU"  # what readers call the memory that prefixes are reused from at once
Form = Literal["array", "map", "map_events"]


# Nothing of theirs refers back to them, so the collector need not know of each.
class BlockStored(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Blocks are cached now: one hash each, `block_size` tokens each; no parent at the start."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = DEVICE
    lora_name: str | None = None


class BlockRemoved(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Blocks are no longer cached."""

    block_hashes: list[int]
    medium: str | None = DEVICE


class AllBlocksCleared(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """No block is cached."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class Encoder:
    """Makes a batch's payload in one form; `dp_rank` is this engine's data-parallel rank."""

    def __init__(self, form: Form, dp_rank: int) -> None:
        self._form = form
        self._dp_rank = dp_rank
        self._encode = msgspec.msgpack.Encoder().encode

    def payload(self, time_s: float, events: Sequence[Event]) -> bytes:
        """The bytes of a batch; `time_s` is in seconds of the wall clock."""
        if self._form == "array":
            return self._encode([time_s, events, self._dp_rank])
        named = [_named(event) for event in events]
        if self._form == "map_events":
            return self._encode([time_s, named, self._dp_rank])
        return self._encode({"ts": time_s, "events": named, "data_parallel_rank": self._dp_rank})


def _named(event: Event) -> dict[str, Any]:
    return {"type": type(event).__name__, **msgspec.structs.asdict(event)}
