# SPDX-License-Identifier: MIT
"""Frontends without a client, and the streams they sort outputs into."""

from __future__ import annotations

import pytest

from tokenspeed_core.testing import Chunk, ManualFrontend, Received, ScriptedFrontend
from tokenspeed_core.testing.messages import request
from tokenspeed_hookspecs import (
    AbortRequests,
    ChunkDetails,
    FinishKind,
    FinishReason,
    Load,
    Message,
    OutputBatch,
)

LOAD = Load(running=0, waiting=0, active_pages=0, total_pages=0)
LENGTH = FinishReason(FinishKind.LENGTH, length=2)


def _outputs(*rows: tuple[str, list[int]], ended: tuple[int, ...] = ()) -> OutputBatch:
    return OutputBatch(
        request_ids=[name for name, _ in rows],
        token_ids=[token for _, tokens in rows for token in tokens],
        counts=[len(tokens) for _, tokens in rows],
        prompt_tokens=[3] * len(rows),
        completion_tokens=[len(tokens) for _, tokens in rows],
        cached_tokens=[0] * len(rows),
        details={row: ChunkDetails(finish=LENGTH) for row in ended},
    )


def test_rows_land_in_their_streams() -> None:
    """A batch's flat tokens are split among its requests by their counts."""
    received = Received()
    received.take(_outputs(("a", [1, 2]), ("b", [])))
    received.take(_outputs(("b", [3]), ("a", [4]), ended=(1,)))
    assert (received["a"].tokens, received["b"].tokens) == ([1, 2, 4], [3])
    assert (received["a"].kind, received["b"].kind) == ("length", None)


def test_a_reused_id_has_a_stream_of_its_own() -> None:
    """What comes for an id after its end belongs to the id's next request."""
    received = Received()
    received.take(_outputs(("a", [1]), ended=(0,)))
    received.take(_outputs(("a", [2])))
    assert [stream.tokens for stream in received.all_of("a")] == [[1], [2]]


def test_uncounted_tokens_are_found() -> None:
    """A batch with more tokens than its counts say is refused."""
    outputs = _outputs(("a", [1, 2]))
    outputs.counts[0] = 1
    with pytest.raises(AssertionError, match="1 tokens are counted, 2 were sent"):
        Received().take(outputs)


def _abort_at_end(request_id: str, chunk: Chunk) -> list[Message]:
    return [] if chunk.finish is None else [AbortRequests((request_id,))]


def test_a_script_gives_one_batch_a_round() -> None:
    """The script's batches come one a round; the frontend is closed once all were taken."""
    script = [[request("a", 3)], [], [request("b", 3)]]
    frontend = ScriptedFrontend(script)
    rounds = [(list(frontend.receive(None)), frontend.is_closed) for _ in range(3)]
    assert rounds == [(script[0], False), (script[1], False), (script[2], True)]


def test_reactions_go_before_the_script() -> None:
    """What the reaction made of the last outputs precedes the round's own batch."""
    late = request("late", 3)
    frontend = ScriptedFrontend([[], [late]], _abort_at_end)
    frontend.receive(None)
    frontend.send(_outputs(("a", [1]), ended=(0,)), LOAD)
    assert list(frontend.receive(None)) == [AbortRequests(("a",)), late]


def test_a_pending_reaction_keeps_a_script_open() -> None:
    """A frontend with reactions left to hand over is not closed."""
    frontend = ScriptedFrontend([[]], _abort_at_end)
    frontend.receive(None)
    frontend.send(_outputs(("a", [1]), ended=(0,)), LOAD)
    assert not frontend.is_closed
    frontend.receive(None)
    assert frontend.is_closed


def test_a_manual_frontend_hands_over_once() -> None:
    """Messages that were put are received once, and requests are counted by id."""
    frontend = ManualFrontend()
    frontend.put(request("a", 3), request("a", 3))
    assert len(frontend.receive(None)) == 2
    assert list(frontend.receive(None)) == []
    assert frontend.sent == {"a": 2}
