# SPDX-License-Identifier: MIT
"""Whatever our client sends is what our engine reads, and the other way round."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tokenspeed_core.wire.codec import decode_message, decode_output, encode_message
from tokenspeed_core.wire.control import ReceivedReply, pack_reply
from tokenspeed_core.wire.outputs import ReceivedBatch, pack_own_batch
from tokenspeed_hookspecs import (
    AddRequest,
    Chunk,
    ChunkDetails,
    ControlReply,
    ControlRequest,
    FinishKind,
    FinishReason,
    Load,
    LogprobOptions,
    OutputBatch,
    PromptLogprobs,
    SamplingParams,
)

# What the other side derives from nothing is left out: -1 is the default of both, 2^30 is -1.
ints = st.integers(-(2**63), 2**63 - 1)
ids = st.integers(0, 2**32 - 1)
floats = st.floats(allow_nan=False)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | ints | floats | texts | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
maps = st.dictionaries(texts, values, max_size=3)
samplings = st.builds(
    SamplingParams,
    max_new_tokens=st.none() | ints,
    min_new_tokens=ints,
    temperature=floats,
    top_k=st.integers(-(2**63), 2**30 - 1),
    top_p=floats,
    min_p=floats,
    frequency_penalty=floats,
    presence_penalty=floats,
    repetition_penalty=floats,
    logit_bias=st.none() | st.dictionaries(ints, floats, max_size=3),
    stop=st.lists(texts, max_size=3).map(tuple),
    stop_token_ids=st.lists(ints, max_size=3).map(tuple),
    ignore_eos=st.booleans(),
    seed=st.none() | ints,
    stream_interval=st.none() | ints,
)
requests = st.builds(
    AddRequest,
    texts,
    st.lists(ints, max_size=5),
    samplings,
    stream=st.booleans(),
    logprobs=st.none()
    | st.builds(LogprobOptions, st.none() | ints.filter(lambda start: start != -1), ints),
    features=maps
    | st.fixed_dictionaries(
        {},
        optional={
            "json_schema": values,
            "regex": texts,
            "bootstrap": values,
            "multimodal_inputs": values,
            "n": values,
        },
    ),
)
finishes = st.builds(
    FinishReason,
    st.sampled_from(FinishKind),
    matched=st.none() | ids | texts,
    length=st.none() | ids,
    message=st.none() | texts,
    status_code=st.none() | ids,
    error_type=st.none() | ids,
)


@st.composite
def details(draw: st.DrawFn, count: int) -> ChunkDetails:
    """What a chunk of so many tokens may have besides."""
    scores = st.lists(floats, min_size=count, max_size=count)
    pair = st.integers(0, 3).flatmap(
        lambda top: st.tuples(
            st.lists(floats, min_size=top, max_size=top), st.lists(ids, min_size=top, max_size=top)
        )
    )
    rows = draw(st.integers(1, 3))
    prompt = PromptLogprobs(
        [None, *draw(st.lists(floats, min_size=rows - 1, max_size=rows - 1))],
        draw(st.lists(ids, min_size=rows, max_size=rows)),
        draw(st.none() | st.lists(st.none() | pair, min_size=rows, max_size=rows)),
    )
    return ChunkDetails(
        draw(st.none() | finishes),
        draw(st.none() | scores) or None,
        draw(st.none() | st.lists(pair, max_size=3)),
        draw(st.sampled_from([None, prompt])),
    )


@st.composite
def batches(draw: st.DrawFn) -> OutputBatch:
    """A round's chunks."""
    batch = OutputBatch()
    for row in range(draw(st.integers(0, 4))):
        new = draw(st.lists(ids, max_size=3))
        batch.request_ids.append(draw(texts))
        batch.token_ids += new
        batch.counts.append(len(new))
        for column in (batch.prompt_tokens, batch.completion_tokens, batch.cached_tokens):
            column.append(draw(ids))
        if draw(st.booleans()):
            batch.details[row] = draw(details(len(new)))
    return batch


def told(chunk: Chunk) -> list[object]:
    """Everything that a chunk says."""
    found = chunk.details or ChunkDetails()
    prompt = found.prompt and (
        found.prompt.values,
        found.prompt.token_ids,
        found.prompt.alternatives,
    )
    counts = [chunk.prompt_tokens, chunk.completion_tokens, chunk.cached_tokens]
    return [chunk.token_ids, counts, found.finish, found.logprobs, found.alternatives, prompt]


def chunks(batch: OutputBatch) -> list[tuple[str, list[object]]]:
    """The rows of a batch as its sender means them."""
    found, at = [], 0
    for row, count in enumerate(batch.counts):
        totals = (batch.prompt_tokens[row], batch.completion_tokens[row], batch.cached_tokens[row])
        chunk = Chunk(batch.token_ids[at : at + count], *totals, batch.details.get(row))
        found.append((batch.request_ids[row], told(chunk)))
        at += count
    return found


@settings(deadline=None)
@given(requests)
def test_a_request_survives(request: AddRequest) -> None:
    """No part of a request changes on its way."""
    assert decode_message(encode_message(request)) == request


@settings(deadline=None)
@given(texts, maps)
def test_a_control_request_survives(name: str, arguments: dict[str, object]) -> None:
    """No part of a control request changes on its way."""
    message = ControlRequest(f"own {name}", arguments)
    assert decode_message(encode_message(message)) == message


@settings(deadline=None)
@given(batches(), st.builds(Load, ids, ids, ids, ids.filter(bool)), st.integers(0, 65_535))
def test_a_batch_survives(batch: OutputBatch, load: Load, index: int) -> None:
    """No part of a batch changes on its way to our own client."""
    received = decode_output([pack_own_batch(batch, load, engine_index=index)])
    assert isinstance(received, ReceivedBatch)
    assert (received.engine_index, received.load) == (index, load)
    assert [(request_id, told(chunk)) for request_id, chunk in received.chunks] == chunks(batch)


@settings(deadline=None)
@given(
    st.sampled_from(["own", "pause", "is_paused", "flush_cache", "profile"]),
    st.booleans(),
    texts,
    maps,
)
def test_a_reply_survives(
    name: str, success: bool, message: str, values: dict[str, object]
) -> None:
    """No part of a control reply changes on its way."""
    values = {f"own {key}": value for key, value in values.items()}
    if name == "is_paused":
        values["is_paused"] = True
    reply = ControlReply(name, success, message, values)
    assert decode_output([pack_reply(reply, 1)]) == ReceivedReply(1, reply)
