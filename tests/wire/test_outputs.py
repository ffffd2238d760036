# SPDX-License-Identifier: MIT
"""Batches, control replies and the death notice as frames."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tokenspeed_core.wire.codec import EngineDeath, decode_output, encode_death
from tokenspeed_core.wire.control import ReceivedReply, pack_reply
from tokenspeed_core.wire.outputs import ReceivedBatch, pack_batch, pack_own_batch
from tokenspeed_core.wire.packing import WireError
from tokenspeed_hookspecs import (
    ChunkDetails,
    ControlReply,
    FinishKind,
    FinishReason,
    Load,
    OutputBatch,
    PromptLogprobs,
)

LENGTH = FinishReason(FinishKind.LENGTH, length=2)
STOP = FinishReason(FinishKind.STOP, matched=7)
FINISHES = [
    LENGTH,
    STOP,
    FinishReason(FinishKind.STOP, matched="end"),
    FinishReason(FinishKind.ABORT, message="too long", status_code=400, error_type=522),
    FinishReason(FinishKind.ABORT, message="not a number", error_type=523),
]
LOAD = Load(1, 0, 4, 64)
# From the wire's description.
GATEWAY_BATCH = bytes.fromhex(
    "9eb34261746368546f6b656e49444f7574536c696d91a276319192050691a66c656e6774689103910291009192cb"
    "bfe0000000000000cbbff8000000000000919205060001000440"
)


def one_row(details: ChunkDetails | None = None) -> OutputBatch:
    """A batch of one row with two tokens."""
    of = {} if details is None else {0: details}
    return OutputBatch(["v1"], [5, 6], [2], [3], [2], [0], of)


def unpacked(payload: bytes) -> ReceivedBatch:
    """The batch in a frame."""
    batch = decode_output([payload])
    assert isinstance(batch, ReceivedBatch)
    return batch


def columns(**changed: Any) -> bytes:
    """A batch of one row with some columns changed."""
    names = ["rids", "ids", "reasons", "prompt", "completion", "cached", "values", "scored"]
    names += ["index", "running"]
    values = [["a"], [[1]], [""], [1], [1], [0], [[]], [[]], 0, 0]
    given = dict(zip(names, values, strict=True)) | changed
    return msgspec.msgpack.encode(["BatchTokenIDOutSlim", *given.values()])


def test_a_batch_is_the_documented_bytes() -> None:
    """The columns for a gateway are the documented ones, byte for byte."""
    details = ChunkDetails(LENGTH, [-0.5, -1.5])
    assert pack_batch(one_row(details), LOAD, engine_index=0) == GATEWAY_BATCH


def test_the_documented_bytes_are_a_batch() -> None:
    """A batch without our own columns still says how its requests ended."""
    [(request_id, chunk)] = unpacked(GATEWAY_BATCH).chunks
    assert (request_id, chunk.token_ids, chunk.prompt_tokens) == ("v1", [5, 6], 3)
    assert chunk.details is not None
    assert chunk.details.logprobs == [-0.5, -1.5]
    assert chunk.finish == FinishReason(FinishKind.LENGTH)


def test_our_columns_stand_behind_the_gateways() -> None:
    """The first 14 elements are the same for a gateway and for our own client."""
    outputs = one_row(ChunkDetails(LENGTH, [-0.5, -1.5]))
    plain, own = (
        msgspec.msgpack.decode(pack(outputs, LOAD, engine_index=3))
        for pack in (pack_batch, pack_own_batch)
    )
    assert len(plain) == 14
    assert own[:14] == plain
    assert own[14:] == [[{"type": "length", "length": 2}]]


@pytest.mark.parametrize("finish", FINISHES, ids=str)
def test_every_finish_arrives(finish: FinishReason) -> None:
    """Our own client learns all that is known of an end, with ids in the same row."""
    batch = unpacked(pack_own_batch(one_row(ChunkDetails(finish)), LOAD, engine_index=0))
    [(_, chunk)] = batch.chunks
    assert (chunk.finish, chunk.token_ids) == (finish, [5, 6])


@pytest.mark.parametrize(
    ("finish", "word"), [*zip(FINISHES, ["length", "stop", "stop", "abort", "error"], strict=True)]
)
def test_a_gateway_reads_one_word(finish: FinishReason, word: str) -> None:
    """An end that may not happen again is an error, which the gateway retries."""
    payload = pack_batch(one_row(ChunkDetails(finish)), LOAD, engine_index=0)
    assert msgspec.msgpack.decode(payload)[3] == [word]


def test_a_bare_finish_has_no_tokens() -> None:
    """A row may end a request without a token."""
    outputs = OutputBatch(["a"], [], [0], [3], [0], [0], {0: ChunkDetails(STOP)})
    [(_, chunk)] = unpacked(pack_own_batch(outputs, LOAD, engine_index=0)).chunks
    assert (chunk.token_ids, chunk.finish) == ([], STOP)


def test_scores_and_alternatives_arrive() -> None:
    """Prompt scores, prompt alternatives and output alternatives cross the wire whole."""
    prompt = PromptLogprobs([None, -0.5], [4, 5], [None, ([-0.5, -2.0], [5, 9])])
    rows = {1: ChunkDetails(STOP, [-0.25], [([-0.25, -3.0], [7, 8])], prompt)}
    outputs = OutputBatch(["a", "b"], [6, 7], [1, 1], [3, 4], [1, 1], [0, 2], rows)
    first, second = (
        chunk for _, chunk in unpacked(pack_own_batch(outputs, None, engine_index=0)).chunks
    )
    assert first.details is None
    assert second.details is not None
    assert second.details.alternatives == [([-0.25, -3.0], [7, 8])]
    found = second.details.prompt
    assert found is not None
    assert (found.values, found.token_ids) == (prompt.values, prompt.token_ids)
    assert found.alternatives == prompt.alternatives


def test_a_missing_first_logprob_leaves_the_list_short() -> None:
    """Logprobs that are fewer than the tokens belong to the last ones."""
    payload = pack_batch(one_row(ChunkDetails(None, [-1.5])), LOAD, engine_index=0)
    assert msgspec.msgpack.decode(payload)[7:9] == [[[-1.5]], [[6]]]


def test_an_empty_batch_carries_the_load() -> None:
    """A batch without rows tells the load and the engine."""
    batch = unpacked(pack_batch(OutputBatch(), LOAD, engine_index=2))
    assert (batch.chunks, batch.load, batch.engine_index) == ([], LOAD, 2)


@pytest.mark.parametrize("count", [9, 10, 14, 17, 30])
def test_a_batch_may_be_short_or_long(count: int) -> None:
    """Columns missing at the end have defaults, and those past the known ones are ignored."""
    fields = msgspec.msgpack.decode(GATEWAY_BATCH) + [None] * 16
    batch = unpacked(msgspec.msgpack.encode(fields[:count]))
    assert batch.load == (LOAD if count >= 14 else None)
    assert len(batch.chunks) == 1


@pytest.mark.parametrize(
    ("payload", "text"),
    [
        (b"", "empty"),
        (b"\xc1", "1 bytes starting with c1"),
        (
            columns(cached=[]),
            "expected 1 entries in column 'cached_tokens', as there are ids, got 0",
        ),
        (columns(running=None), "got `None`"),
        (columns(rids=["a", "b"]), "2 entries"),
        (msgspec.msgpack.encode(["Other"]), "tag of a control reply, got 'Other'"),
        (msgspec.msgpack.encode({}), "Expected `array`"),
    ],
)
def test_what_cannot_be_read_is_a_wire_error(payload: bytes, text: str) -> None:
    """An error tells what was expected and what came."""
    with pytest.raises(WireError, match=text):
        decode_output([payload])


@pytest.mark.parametrize("index", [None, 0, 258])
def test_a_death_notice_may_name_its_engine(index: int | None) -> None:
    """The notice is the gateway's single frame; our own client also learns which engine died."""
    frames = encode_death(index)
    assert frames[0] == b"ENGINE_CORE_DEAD"
    assert decode_output(frames) == EngineDeath(index)


@pytest.mark.parametrize(
    "reply",
    [
        ControlReply("pause", True),
        ControlReply("pause", False, "a pause is already in progress"),
        ControlReply("is_paused", True, values={"is_paused": False}),
        ControlReply("is_paused", False, "broken", {"is_paused": False}),
        ControlReply("flush_cache", False, "requests run"),
        ControlReply("profile", True, "started"),
        ControlReply("update_weights_from_disk", True, values={"num_paused_requests": 2}),
        ControlReply("describe", True, values={"plugins": [{"name": "a"}]}),
        ControlReply("of_a_plugin", False, "no"),
    ],
    ids=str,
)
def test_a_reply_arrives_with_its_engine(reply: ControlReply) -> None:
    """Nothing of a control reply gets lost, and its engine's index is with it."""
    assert decode_output([pack_reply(reply, 300)]) == ReceivedReply(300, reply)


def test_a_reply_is_a_tagged_array() -> None:
    """The fields of a reply stand in their order, the engine index behind them."""
    payload = pack_reply(ControlReply("pause", False, "no"), 1)
    assert msgspec.msgpack.decode(payload) == [
        *("PauseSchedulerReqOutput", None, None),
        *(False, "no", 1),
    ]
