# SPDX-License-Identifier: MIT
"""An engine behind the wire, asked frame by frame."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tokenspeed_core.composition.rank import Rank
from tokenspeed_core.testing.messages import request, telling_tokens
from tokenspeed_core.testing.mutations import mutated
from tokenspeed_core.testing.wire_peer import WirePeer
from tokenspeed_core.wire.codec import encode_message
from tokenspeed_core.wire.control import ReceivedReply
from tokenspeed_hookspecs import (
    AbortRequests,
    AddRequest,
    ControlRequest,
    FinishKind,
    LogprobOptions,
    SamplingParams,
)

NO_IDS: Any = ["x"]


def wait_until_empty(rank: Rank) -> None:
    """Wait until the engine has no request."""
    deadline = time.monotonic() + 60
    while len(rank.loop.requests) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(rank.loop.requests) == 0


def test_tokens_come_in_order(folder: Path, rank: Rank) -> None:
    """A stream's chunks make up its tokens, and the last one says why it ended."""
    with WirePeer(folder) as peer:
        [info] = peer.accept()
        peer.send(request("a", 20, budget=5))
        chunks = peer.finish("a")
    assert [token for chunk in chunks for token in chunk.token_ids] == telling_tokens(5)
    assert [chunk.completion_tokens for chunk in chunks][-1] == 5
    assert chunks[-1].finish is not None
    assert (chunks[-1].finish.kind, chunks[-1].finish.length) == (FinishKind.LENGTH, 5)
    assert info.max_model_len == 4096


def test_scores_come_with_the_tokens(folder: Path, rank: Rank) -> None:
    """Prompt scores and alternatives arrive with the chunk that has them."""
    with WirePeer(folder) as peer:
        peer.accept()
        peer.send(request("a", 8, budget=2, logprobs=LogprobOptions(start=2, top=2)))
        chunks = peer.finish("a")
    details = [chunk.details for chunk in chunks if chunk.details is not None]
    [prompt] = [each.prompt for each in details if each.prompt is not None]
    assert prompt.values[0] is None
    assert prompt.token_ids == [3, 4, 5, 6, 7, 8]
    assert sum(len(each.alternatives or ()) for each in details) == 2


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (request("bad", 5000), "exceeds the engine's maximum input length"),
        (request("bad", 3, temperature=-1.0), "temperature must be non-negative"),
        (request("bad", 3, top_p=float("nan")), "top_p must be a finite number"),
        (AddRequest("bad", []), "the prompt is empty"),
        (AddRequest("bad", [1], features={"json_schema": "{}"}), "understands 'json_schema'"),
        (AddRequest("bad", NO_IDS), "Expected `int`"),
    ],
    ids=["too long", "range", "nan", "empty", "unclaimed", "type"],
)
def test_a_refusal_is_a_terminal_row(
    folder: Path, rank: Rank, wrong: AddRequest, text: str
) -> None:
    """A request that can never succeed ends at once, and says why."""
    with WirePeer(folder) as peer:
        peer.accept()
        peer.send(wrong)
        [chunk] = peer.finish("bad")
    assert chunk.finish is not None
    assert (chunk.finish.kind, chunk.finish.status_code) == (FinishKind.ABORT, 400)
    assert text in str(chunk.finish.message)


def test_aborts_in_every_order(folder: Path, rank: Rank) -> None:
    """Aborts before the add, after the end and of many ids at once leave no output behind."""
    with WirePeer(folder) as peer:
        peer.accept()
        peer.send(AbortRequests(("early",)), request("early", 4, budget=50))
        peer.send(request("a", 4, budget=2000), request("b", 4, budget=2000))
        peer.send(request("done", 4, budget=1))
        peer.finish("done")
        peer.send(AbortRequests(("a", "b", "done", "unknown")))
        wait_until_empty(rank)
        peer.send(request("last", 4, budget=3))
        rest = {request_id for request_id, _ in _until(peer, "last")}
    assert "early" not in rest
    assert "done" not in rest


def _until(peer: WirePeer, request_id: str) -> list[tuple[str, Any]]:
    found = []
    for each, chunk in peer.chunks():
        found.append((each, chunk))
        if each == request_id and chunk.finish is not None:
            break
    return found


def test_a_gone_front_end_leaves_nothing_running(folder: Path, rank: Rank) -> None:
    """The requests of a front end that died are released, and the next one is served."""
    with WirePeer(folder) as peer:
        peer.accept()
        peer.send(request("a", 20, budget=4000), request("b", 20, budget=4000))
        peer.next_output()
    wait_until_empty(rank)
    with WirePeer(folder) as peer:
        peer.accept()
        peer.send(request("a", 20, budget=3))
        tokens = [token for chunk in peer.finish("a") for token in chunk.token_ids]
    assert tokens == telling_tokens(3)


def test_control_requests_are_answered(folder: Path, rank: Rank) -> None:
    """Each control request gets its one reply, an unknown one included."""
    with WirePeer(folder) as peer:
        peer.accept()
        for name in ("is_paused", "no_such_thing"):
            peer.send(ControlRequest(name))
            output = peer.next_output()
            assert isinstance(output, ReceivedReply)
            assert (output.engine_index, output.reply.name) == (0, name)
            assert output.reply.success is (name == "is_paused")


def test_junk_disturbs_nobody(folder: Path, rank: Rank) -> None:
    """A request runs to its end whatever else comes in meanwhile."""
    with WirePeer(folder) as peer:
        peer.accept()
        peer.send(request("healthy", 20, budget=100))
        sample = AddRequest("junk", [1, 2], SamplingParams(max_new_tokens=1))
        for frames in mutated(encode_message(sample), seed=6, count=300):
            peer.send_frames(frames)
        tokens = [token for chunk in peer.finish("healthy") for token in chunk.token_ids]
    assert tokens == telling_tokens(100)
