# SPDX-License-Identifier: MIT
"""The scheduler's events as readers want them: whole blocks, hashes as they were asked for.

The scheduler also publishes the partly filled block at the end of a prompt. Readers cut tokens into
blocks of `block_size` and would misread one. So it is left out, and so is its removal.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from tokenspeed_hookspecs import CacheCleared
from tokenspeed_kv_events.events import AllBlocksCleared, BlockRemoved, BlockStored, Event

HashForm = Literal["uint64", "int64"]
_HALF, _WHOLE = 1 << 63, 1 << 64


class Translation:
    """Keeps which blocks were left out; give it the batches in their order."""

    def __init__(self, hash_form: HashForm = "uint64", *, keep_partial: bool = False) -> None:
        self._is_signed = hash_form == "int64"
        self._keep_partial = keep_partial
        self._left_out: set[int] = set()

    def forget(self) -> None:
        """Start again behind a lost batch; to remove a block nobody was told of does no harm."""
        self._left_out.clear()

    def events(self, natives: Iterable[Any]) -> list[Event]:
        """What readers are told of these events of the scheduler."""
        told: list[Event] = []
        for native in natives:
            if isinstance(native, CacheCleared):
                self._left_out.clear()
                told.append(AllBlocksCleared())
            elif native.kind == "BlockStored":
                self._store(native, told)
            else:
                self._remove(native, told)
        return told

    def _store(self, native: Any, told: list[Event]) -> None:
        hashes, tokens, size = native.block_hashes, native.token_ids, native.block_size
        if len(tokens) != size * len(hashes):
            if not self._keep_partial:
                self._left_out.update(hashes)
                return
            size = len(tokens)
        parent = native.parent_block_hash
        assert parent not in self._left_out, "a block follows a whole one"
        if self._is_signed:
            hashes, parent = self._hashes(hashes), self._parent(parent)
        told.append(BlockStored(hashes, parent, tokens, size))

    def _remove(self, native: Any, told: list[Event]) -> None:
        hashes = native.block_hashes
        if self._left_out:
            kept = [each for each in hashes if each not in self._left_out]
            self._left_out.difference_update(hashes)
            if not kept:
                return
            hashes = kept
        told.append(BlockRemoved(self._hashes(hashes)))

    def _hashes(self, hashes: list[int]) -> list[int]:
        if not self._is_signed:
            return hashes
        return [each - _WHOLE if each >= _HALF else each for each in hashes]

    def _parent(self, parent: int | None) -> int | None:
        return None if parent is None else self._hashes([parent])[0]
