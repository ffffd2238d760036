# SPDX-License-Identifier: MIT
"""Settings of the scripted data plane, and the faults a test puts into it."""

from __future__ import annotations

from attrs import define, field, frozen

from tokenspeed_hookspecs import CacheGroup


@define(kw_only=True)
class ScriptedOptions:
    """What the scripted plane pretends to be.

    `forward_ms` is how long a forward takes, `recorded_batches` how many of the last batches it
    keeps, `checked_pages` whether it simulates page contents and checks every cached position.
    With a `placeholder` it is a pipeline stage that does not sample: every row reports that token.
    Of host pages it holds part `shard` of `shard_count`, of stage `stage`.
    """

    vocab_size: int = 100_000
    max_model_len: int = 4096
    eos_token_ids: tuple[int, ...] = ()
    sliding_window: int | None = None
    forward_ms: float = 0.0
    recorded_batches: int = 0
    checked_pages: bool = False
    placeholder: int | None = None
    shard_count: int = 1
    shard: int = 0
    stage: int = 0

    def groups(self, page_size: int) -> tuple[CacheGroup, ...]:
        """One full-attention group, and one with a window where the options name one."""
        full = CacheGroup("full_attention", page_size)
        if self.sliding_window is None:
            return (full,)
        return (full, CacheGroup("sliding", page_size, self.sliding_window))


@frozen
class RowFault:
    """What one row of a forward reports instead: another token, NaN logits, another logprob."""

    token: int | None = None
    is_nan: bool = False
    logprob: float | None = None


@define
class Faults:
    """Faults by request: at its k-th token (from 0), at the chunk from a prompt position on, or in
    all of its chunks; `struck` has the requests that had such a chunk."""

    _at_token: dict[tuple[str, int], RowFault] = field(factory=dict, init=False)
    _at_chunk: dict[tuple[str, int], RowFault] = field(factory=dict, init=False)
    _in_chunks: dict[str, RowFault] = field(factory=dict, init=False)
    struck: set[str] = field(factory=set, init=False)

    def __bool__(self) -> bool:
        return bool(self._at_token or self._at_chunk or self._in_chunks)

    def at_token(self, request_id: str, index: int, *, fault: RowFault) -> None:
        """Let the row that samples the request's token number `index` fail."""
        self._at_token[request_id, index] = fault

    def at_chunk(self, request_id: str, position: int, *, fault: RowFault) -> None:
        """Let the mid-prompt chunk that begins at `position` fail."""
        self._at_chunk[request_id, position] = fault

    def in_chunks(self, request_id: str, *, fault: RowFault) -> None:
        """Let every mid-prompt chunk of the request fail, wherever its prompt is cut."""
        self._in_chunks[request_id] = fault

    def of_token(self, request_id: str, index: int) -> RowFault | None:
        """The fault of a row that samples."""
        return self._at_token.get((request_id, index))

    def of_chunk(self, request_id: str, position: int) -> RowFault | None:
        """The fault of a mid-chunk row."""
        fault = self._in_chunks.get(request_id)
        if fault is not None:
            self.struck.add(request_id)
            return fault
        return self._at_chunk.get((request_id, position))
