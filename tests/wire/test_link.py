# SPDX-License-Identifier: MIT
"""A link between a front end and an engine: how it comes about, carries, and ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tokenspeed_core.testing.wire_peer import WirePeer
from tokenspeed_core.wire.codec import ABORT, ADD, CONTROL, DEATH
from tokenspeed_core.wire.control import ReceivedReply
from tokenspeed_core.wire.frontend import ZmqFrontend
from tokenspeed_core.wire.handshake import READY, pack_init
from tokenspeed_core.wire.outputs import ReceivedBatch, unpack_batch
from tokenspeed_core.wire.settings import WireSettings
from tokenspeed_hookspecs import (
    AbortRequests,
    AddRequest,
    ChunkDetails,
    ControlReply,
    ControlRequest,
    FinishKind,
    FinishReason,
    Load,
    Message,
    OutputBatch,
)

Dial = Callable[..., ZmqFrontend]
LOAD = Load(1, 0, 2, 64)
STOP = FinishReason(FinishKind.STOP, matched=5)


def taken(frontend: ZmqFrontend, count: int = 1) -> list[Message]:
    """The next messages for the loop, as many as named."""
    found: list[Message] = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        found += frontend.receive(0.05)
    return found


def row(request_id: str, finish: FinishReason | None = None) -> OutputBatch:
    """A batch of one row with one token."""
    details = {} if finish is None else {0: ChunkDetails(finish)}
    return OutputBatch([request_id], [5], [1], [1], [1], [0], details)


def test_requests_go_in_and_chunks_come_out(folder: Path, dial: Dial) -> None:
    """After the handshake the loop gets what the front end sends, and the other way round."""
    frontend = dial()
    with WirePeer(folder) as peer:
        peer.accept()
        peer.send(AddRequest("a", [1]), ControlRequest("resume"), AbortRequests(("b",)))
        assert taken(frontend, 3) == [
            AddRequest("a", [1]),
            ControlRequest("resume"),
            AbortRequests(("b",)),
        ]
        frontend.send(row("a", STOP), LOAD)
        frontend.reply(ControlReply("resume", True))
        [chunk] = peer.finish("a")
        assert (chunk.token_ids, chunk.finish) == ([5], STOP)
        assert peer.next_output() == ReceivedReply(0, ControlReply("resume", True))


def test_the_first_message_tells_the_load(folder: Path, dial: Dial) -> None:
    """A front end learns at once how much room an idle engine has."""
    dial()
    with WirePeer(folder) as peer:
        peer.accept()
        [payload] = peer.next_frames()
        assert unpack_batch(payload).load == Load(0, 0, 0, 64)


def test_an_engine_waits_for_its_front_end(folder: Path, dial: Dial) -> None:
    """An engine that dials before anybody listens is accepted when somebody does."""
    dial()
    time.sleep(0.1)
    with WirePeer(folder) as peer:
        assert [info.index for info in peer.accept()] == [0]


def test_ranks_register_in_any_order(folder: Path, dial: Dial) -> None:
    """Several engines of one front end are told apart by their identities and indices."""
    frontends = [dial(index=index) for index in (2, 0, 1)]
    with WirePeer(folder) as peer:
        assert [info.index for info in peer.accept(3)] == [0, 1, 2]
        peer.send(AddRequest("a", [1]), to=1)
        assert taken(frontends[2]) == [AddRequest("a", [1])]
        frontends[2].send(row("a"), LOAD)
        output = peer.next_output()
        assert isinstance(output, ReceivedBatch)
        assert output.engine_index == 1


@pytest.mark.parametrize("stage", ["after HELLO", "after INIT", "after READY"])
def test_a_lost_handshake_is_made_anew(folder: Path, dial: Dial, stage: str) -> None:
    """An engine whose front end ends within the handshake says HELLO once on a new connection."""
    dial()
    with WirePeer(folder) as peer:
        identity = peer.greet()
        if stage != "after HELLO":
            peer.handshake.send_multipart([identity, pack_init(peer.init)])
        if stage == "after READY":
            peer.expect(READY)
    with WirePeer(folder, name="2") as peer:
        peer.accept()
        assert peer.handshake.closed


def test_hello_is_said_once_a_connection(folder: Path, dial: Dial) -> None:
    """An engine that waits for INIT does not repeat itself."""
    dial()
    with WirePeer(folder) as peer:
        peer.greet()
        assert peer.handshake.poll(200) == 0


def test_an_init_that_makes_no_sense_is_refused(folder: Path, dial: Dial) -> None:
    """After a broken INIT the engine dials again."""
    dial()
    with WirePeer(folder) as peer:
        peer.handshake.send_multipart([peer.greet(), b"\xc1"])
        peer.greet()


def test_a_restarted_front_end_starts_afresh(folder: Path, dial: Dial) -> None:
    """When its front end restarts the engine ends its requests and shakes hands again; what they
    still say does not reach the new one, even for the same id."""
    frontend = dial()
    with WirePeer(folder) as peer:
        peer.accept()
        peer.send(AddRequest("a", [1]), AddRequest("b", [1]), AddRequest("c", [1]))
        taken(frontend, 3)
        frontend.send(row("b", STOP), LOAD)
        peer.finish("b")
    with WirePeer(folder) as peer:
        peer.accept()
        peer.send(AddRequest("a", [2]))
        time.sleep(0.05)
        frontend.send(row("a"), LOAD)
        assert taken(frontend, 2) == [AbortRequests(("a", "c")), AddRequest("a", [2])]
        frontend.send(row("a", STOP), LOAD)
        [chunk] = peer.finish("a")
        assert chunk.finish == STOP


def test_an_aborted_request_is_not_aborted_again(folder: Path, dial: Dial) -> None:
    """Requests that their client aborted do not count among those of a lost link."""
    frontend = dial()
    with WirePeer(folder) as peer:
        peer.accept()
        peer.send(AddRequest("a", [1]), AddRequest("b", [1]), AbortRequests(("a", "unknown")))
        taken(frontend, 3)
    assert taken(frontend) == [AbortRequests(("b",))]


def test_an_abort_of_the_last_request_tells_the_load(folder: Path, dial: Dial) -> None:
    """A front end that leaves an engine without requests learns that it is idle."""
    frontend = dial()
    with WirePeer(folder) as peer:
        peer.accept()
        peer.send(AddRequest("a", [1]), AddRequest("b", [1]))
        taken(frontend, 2)
        frontend.send(row("a"), LOAD)
        loads = [unpack_batch(peer.next_frames()[0]).load for _ in range(2)]
        peer.send(AbortRequests(("a",)), AbortRequests(("b",)))
        loads += [unpack_batch(peer.next_frames()[0]).load]
    assert loads == [Load(0, 0, 0, 64), LOAD, Load(0, 0, 0, 64)]


def test_a_slow_front_end_counts_as_gone(folder: Path, dial: Dial) -> None:
    """A front end that takes nothing loses its link and requests; sending never waits for it."""
    frontend = dial(WireSettings(retry_s=0.01, send_limit_s=0.2))
    with WirePeer(folder) as peer:
        peer.accept()
        peer.send(AddRequest("a", [1]))
        taken(frontend)
        large = OutputBatch(["a"], [5] * 50_000, [50_000], [1], [1], [0])
        for _ in range(2000):
            frontend.send(large, LOAD)
        assert taken(frontend) == [AbortRequests(("a",))]


def test_a_bound_on_unsent_batches(folder: Path, dial: Dial) -> None:
    """More waiting batches than the bound lose the link."""
    frontend = dial(WireSettings(retry_s=0.01, max_queued=10))
    with WirePeer(folder) as peer:
        peer.accept()
        peer.send(AddRequest("a", [1]))
        taken(frontend)
        large = OutputBatch(["a"], [5] * 50_000, [50_000], [1], [1], [0])
        for _ in range(2000):
            frontend.send(large, LOAD)
        assert taken(frontend) == [AbortRequests(("a",))]


def test_a_gateway_gets_no_reply(folder: Path, dial: Dial) -> None:
    """A gateway's control message is junk, and a reply is not sent to it."""
    frontend = dial()
    with WirePeer(folder, is_own_client=False) as peer:
        peer.accept()
        peer.send(ControlRequest("resume"), AddRequest("a", [1]))
        assert taken(frontend) == [AddRequest("a", [1])]
        frontend.reply(ControlReply("resume", True))
        frontend.send(row("a"), LOAD)
        assert isinstance(peer.next_output(), ReceivedBatch)
        assert frontend.num_dropped == 1


def test_a_request_that_cannot_be_read_is_answered(folder: Path, dial: Dial) -> None:
    """The sender of a broken request learns of it, unless its id is one that runs."""
    frontend = dial()
    with WirePeer(folder) as peer:
        peer.accept()
        peer.send(AddRequest("runs", [1]))
        for request_id in ("runs", "broken"):
            wrong: list[Any] = ["x"]
            peer.send(AddRequest(request_id, wrong))
        output = peer.next_output()
        assert isinstance(output, ReceivedBatch)
        [(request_id, chunk)] = output.chunks
        assert request_id == "broken"
        assert chunk.finish is not None
        assert chunk.finish.status_code == 400
        assert "Expected `int`, got `str`" in str(chunk.finish.message)
        assert frontend.num_dropped == 2


def test_a_gateways_aborts_are_logged(
    folder: Path, dial: Dial, caplog: pytest.LogCaptureFixture
) -> None:
    """A gateway cannot be told why a request was refused, so the log is."""
    caplog.set_level("INFO", "tokenspeed")
    frontend = dial()
    reason = FinishReason(FinishKind.ABORT, message="too long", status_code=400)
    with WirePeer(folder, is_own_client=False) as peer:
        peer.accept()
        frontend.send(row("a", reason), LOAD)
        peer.next_output()
    assert "request a was aborted: too long" in caplog.text


@pytest.mark.parametrize(
    "frames", [[b""], [ADD], [b"\x07", b"x"], [ADD, b"\xc1"], [CONTROL, b"\x91\x01"], [b"x"] * 9]
)
def test_junk_is_dropped_and_counted(folder: Path, dial: Dial, frames: list[bytes]) -> None:
    """What is no message is dropped; the next message is read."""
    frontend = dial()
    with WirePeer(folder) as peer:
        peer.accept()
        peer.send_frames(frames)
        peer.send(AddRequest("a", [1]))
        assert taken(frontend) == [AddRequest("a", [1])]
        assert frontend.num_dropped == 1


def test_silent_work_shows_signs_of_life(folder: Path, dial: Dial) -> None:
    """While a request runs and the loop goes round, an empty batch comes now and then."""
    frontend = dial(WireSettings(retry_s=0.01, heartbeat_s=0.05))
    with WirePeer(folder) as peer:
        peer.accept()
        peer.next_frames()
        peer.send(AddRequest("a", [1]))
        taken(frontend)
        frontend.receive(None)
        [payload] = peer.next_frames()
        assert unpack_batch(payload).chunks == []
        with pytest.raises(TimeoutError):
            peer.next_frames(0.2)


@pytest.mark.parametrize("is_own_client", [False, True])
def test_a_closed_engine_says_so(folder: Path, dial: Dial, is_own_client: bool) -> None:
    """Closing sends what is left, then the death notice as this front end reads it."""
    frontend = dial()
    with WirePeer(folder, is_own_client=is_own_client) as peer:
        peer.accept()
        peer.next_frames()
        frontend.send(row("a", STOP), LOAD)
        frontend.close()
        assert frontend.is_closed
        assert unpack_batch(peer.next_frames()[0]).chunks[0][0] == "a"
        assert peer.next_frames() == ([DEATH, b"\0\0"] if is_own_client else [DEATH])


def test_closing_needs_no_front_end(dial: Dial) -> None:
    """An engine that nobody accepted closes at once."""
    frontend = dial(WireSettings(linger_s=60.0))
    frontend.close()
    assert frontend.is_closed


def test_receive_waits_no_longer_than_told(dial: Dial) -> None:
    """Without messages the loop goes on after its wait."""
    frontend = dial()
    assert frontend.receive(None) == []
    assert frontend.receive(0.01) == []


def test_hello_is_said_anew_after_a_time(folder: Path, dial: Dial) -> None:
    """A HELLO that nobody answers within the limit is said on a new connection."""
    dial(WireSettings(retry_s=0.01, init_limit_s=0.05))
    with WirePeer(folder) as peer:
        peer.greet()
        peer.accept()


def test_large_batches_arrive_whole(folder: Path, dial: Dial) -> None:
    """Batches around and above 64 KiB, many under way at once, arrive in order and unchanged."""
    frontend = dial()
    # Five bytes a token and a few dozen around them.
    counts = [13_080 + extra for extra in range(30)] + [250_000, 1]
    with WirePeer(folder) as peer:
        peer.accept()
        for count in counts:
            ids = [(1 << 31) + count + each for each in range(count)]
            frontend.send(OutputBatch(["a"], ids, [count], [1], [count], [0]), LOAD)
        for count in counts:
            output = peer.next_output()
            assert isinstance(output, ReceivedBatch)
            [(_, chunk)] = output.chunks
            assert chunk.token_ids == [(1 << 31) + count + each for each in range(count)]


def test_a_pickle_is_never_loaded(folder: Path, dial: Dial) -> None:
    """Pickles that would write a file do not, neither as a frame nor as an extension."""
    victim = folder / "victim"
    pickled = f"cposix\nsystem\n(S'touch {victim}'\ntR.".encode()
    frontend = dial()
    with WirePeer(folder) as peer:
        peer.handshake.send_multipart([peer.greet(), pickled])
        peer.accept()
        for code in (1, 2, 3):
            value = msgspec.msgpack.encode(msgspec.msgpack.Ext(code, pickled))
            for kind in (ADD, ABORT, CONTROL):
                peer.send_frames([kind, pickled])
                peer.send_frames([kind, value])
        peer.send(AddRequest("a", [1]))
        assert taken(frontend) == [AddRequest("a", [1])]
    assert not victim.exists()
