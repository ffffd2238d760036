# SPDX-License-Identifier: MIT
"""A round's chunks as the wire's columns, `BatchTokenIDOutSlim`.

Columns 1 to 13 are the gateway's; nothing may come between them. Ours follow, each a list with an
entry or nil per row, or nil where no row has one: 14 finish details; 15, 16 prompt logprob values
and ids; 17, 18 prompt alternatives' values and ids; 19, 20 output alternatives' values and ids;
21 counters of speculation, which are nil today; 22 cached tokens by tier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from attrs import frozen

from tokenspeed_core.wire.packing import WireError, decoder_of, pack, unpack
from tokenspeed_hookspecs import (
    Chunk,
    ChunkDetails,
    FinishKind,
    FinishReason,
    Load,
    OutputBatch,
    PromptLogprobs,
    TokenAlternatives,
)

TAG = "BatchTokenIDOutSlim"
# Ends that another engine, or the same one later, may not meet: a transfer that failed, logits that
# are not numbers, a full cache. The gateway tries these again; an abort it hands to its client.
WORTH_A_RETRY = frozenset({521, 523, 524})
RETRY = "error"
Values = list[float | None]
V = TypeVar("V")
W = TypeVar("W")


class BatchArray(msgspec.Struct, array_like=True, tag=TAG):
    """The columns in their order, after the tag."""

    rids: list[str]
    output_ids: list[list[int]]
    finished_reasons: list[str]
    prompt_tokens: list[int]
    completion_tokens: list[int]
    cached_tokens: list[int]
    output_token_logprobs_val: list[list[float]]
    output_token_logprobs_idx: list[list[int]]
    engine_index: int = 0
    num_running: int = 0
    num_waiting: int = 0
    kv_active_pages: int = 0
    kv_total_pages: int = 0
    finish_details: list[dict[str, Any] | None] | None = None
    prompt_values: list[Values | None] | None = None
    prompt_ids: list[list[int] | None] | None = None
    prompt_alternatives_values: list[list[list[float] | None] | None] | None = None
    prompt_alternatives_ids: list[list[list[int] | None] | None] | None = None
    alternatives_values: list[list[list[float]] | None] | None = None
    alternatives_ids: list[list[list[int]] | None] | None = None
    speculation: Any = None
    cached_by_tier: list[dict[str, int] | None] | None = None


GATEWAY_COLUMNS = 13
SPECULATION = "speculation"
ROW_COLUMNS = BatchArray.__struct_fields__[:8]
OWN_COLUMNS = BatchArray.__struct_fields__[GATEWAY_COLUMNS:]


@frozen(eq=False)
class ReceivedBatch:
    """One engine's batch: its rows by request id, and its load unless the message has none."""

    engine_index: int
    load: Load | None
    chunks: Sequence[tuple[str, Chunk]]


def pack_batch(outputs: OutputBatch, load: Load | None, *, engine_index: int) -> bytes:
    """Encode a round's chunks for a gateway."""
    return pack([TAG, *_gateway_columns(outputs, load, index=engine_index)], "a batch")


def pack_own_batch(outputs: OutputBatch, load: Load | None, *, engine_index: int) -> bytes:
    """Encode a round's chunks for our own client, with the columns only it reads."""
    columns = _gateway_columns(outputs, load, index=engine_index)
    return pack([TAG, *columns, *_own_columns(outputs)], "a batch")


def unpack_batch(payload: bytes) -> ReceivedBatch:
    """Decode a batch of either form; WireError if its columns are not of equal length."""
    array = unpack(_DECODER, payload, what="a batch")
    _check_lengths(array)
    load = None
    if array.kv_total_pages:
        load = Load(
            array.num_running, array.num_waiting, array.kv_active_pages, array.kv_total_pages
        )
    rows = zip(
        array.rids,
        array.output_ids,
        array.prompt_tokens,
        array.completion_tokens,
        array.cached_tokens,
        strict=True,
    )
    details = _details(array)
    chunks = [
        (request_id, Chunk(ids, prompt, completion, cached, details.get(row)))
        for row, (request_id, ids, prompt, completion, cached) in enumerate(rows)
    ]
    return ReceivedBatch(array.engine_index, load, chunks)


def _gateway_columns(outputs: OutputBatch, load: Load | None, *, index: int) -> list[Any]:
    ids: list[list[int]] = []
    at = 0
    for count in outputs.counts:
        ids.append(outputs.token_ids[at : at + count])
        at += count
    rows = len(ids)
    reasons = [""] * rows
    values: list[list[float]] = [[] for _ in range(rows)]
    scored: list[list[int]] = [[] for _ in range(rows)]
    for row, details in outputs.details.items():
        if details.finish is not None:
            reasons[row] = _reason(details.finish)
        if details.logprobs:
            values[row] = details.logprobs
            # One short where the first token's logprob was never known.
            scored[row] = ids[row][len(ids[row]) - len(details.logprobs) :]
    counts = [outputs.prompt_tokens, outputs.completion_tokens, outputs.cached_tokens]
    tail = (0, 0, 0, 0)
    if load is not None:
        tail = (load.running, load.waiting, load.active_pages, load.total_pages)
    return [outputs.request_ids, ids, reasons, *counts, values, scored, index, *tail]


def _reason(finish: FinishReason) -> str:
    if finish.kind is FinishKind.ABORT and finish.error_type in WORTH_A_RETRY:
        return RETRY
    return finish.kind.value


def _own_columns(outputs: OutputBatch) -> list[Any]:
    rows = len(outputs.request_ids)
    columns: dict[str, list[Any]] = {}
    for row, details in outputs.details.items():
        for name, entry in _own_entries(details).items():
            columns.setdefault(name, [None] * rows)[row] = entry
    own = [columns.get(name) for name in OWN_COLUMNS]
    while own and own[-1] is None:
        own.pop()
    return own


def _own_entries(details: ChunkDetails) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    if details.finish is not None:
        entries["finish_details"] = details.finish.details()
    if details.alternatives is not None:
        entries["alternatives_values"] = [values for values, _ in details.alternatives]
        entries["alternatives_ids"] = [ids for _, ids in details.alternatives]
    if details.cached_by_tier is not None:
        entries["cached_by_tier"] = dict(details.cached_by_tier)
    if details.prompt is not None:
        prompt = details.prompt
        entries["prompt_values"], entries["prompt_ids"] = prompt.values, prompt.token_ids
        if prompt.alternatives is not None:
            for at, name in enumerate(("prompt_alternatives_values", "prompt_alternatives_ids")):
                entries[name] = [each and each[at] for each in prompt.alternatives]
    return entries


def _check_lengths(array: BatchArray) -> None:
    rows = len(array.rids)
    for name in (*ROW_COLUMNS, *OWN_COLUMNS):
        column = getattr(array, name)
        if column is not None and name != SPECULATION and len(column) != rows:
            raise WireError(
                f"a batch: expected {rows} entries in column {name!r}, as there are ids, got "
                f"{len(column)}"
            )


def _details(array: BatchArray) -> dict[int, ChunkDetails]:
    details: dict[int, ChunkDetails] = {}
    tiers = array.cached_by_tier
    is_plain = array.alternatives_values is None and array.prompt_values is None and tiers is None
    for row, (reason, logprobs) in enumerate(
        zip(array.finished_reasons, array.output_token_logprobs_val, strict=True)
    ):
        if is_plain and not reason and not logprobs:
            continue
        finish = _finish(array, row) if reason else None
        alternatives = _alternatives(array, row)
        prompt = _prompt(array, row)
        by_tier = None if tiers is None else tiers[row]
        parts = (finish, logprobs or None, alternatives, prompt, by_tier)
        if any(part is not None for part in parts):
            details[row] = ChunkDetails(*parts)
    return details


def _finish(array: BatchArray, row: int) -> FinishReason:
    reason = array.finished_reasons[row]
    given = (array.finish_details[row] if array.finish_details else None) or {}
    kind = _KINDS.get(str(given.get("type", reason)), FinishKind.STOP)
    try:
        return msgspec.convert(given, _Finish).reason(kind)
    except msgspec.ValidationError as error:
        raise WireError(f"finish details of row {row}: {error}") from error


class _Finish(msgspec.Struct):
    matched: int | str | None = None
    length: int | None = None
    message: str | None = None
    status_code: int | None = None
    err_type: int | None = None
    weight_version: str | None = None

    def reason(self, kind: FinishKind) -> FinishReason:
        return FinishReason(
            kind,
            self.matched,
            self.length,
            self.message,
            self.status_code,
            self.err_type,
            self.weight_version,
        )


def _prompt(array: BatchArray, row: int) -> PromptLogprobs | None:
    scored = _entry(array.prompt_values, array.prompt_ids, row=row)
    if scored is None:
        return None
    found = _entry(array.prompt_alternatives_values, array.prompt_alternatives_ids, row=row)
    alternatives: list[TokenAlternatives | None] | None = None
    if found is not None:
        pairs = zip(*found, strict=True)
        alternatives = [
            None if values is None or ids is None else (values, ids) for values, ids in pairs
        ]
    return PromptLogprobs(*scored, alternatives)


def _alternatives(array: BatchArray, row: int) -> list[TokenAlternatives] | None:
    found = _entry(array.alternatives_values, array.alternatives_ids, row=row)
    return None if found is None else list(zip(*found, strict=True))


def _entry(
    values: Sequence[list[V] | None] | None, ids: Sequence[list[W] | None] | None, *, row: int
) -> tuple[list[V], list[W]] | None:
    """A row's entries in two columns that belong together."""
    if values is None or ids is None:
        return None
    of, by = values[row], ids[row]
    if of is None or by is None:
        return None
    if len(of) != len(by):
        raise WireError(f"row {row}: expected as many values as ids, got {len(of)} and {len(by)}")
    return of, by


_KINDS = {kind.value: kind for kind in FinishKind} | {RETRY: FinishKind.ABORT}
_DECODER = decoder_of(BatchArray)
