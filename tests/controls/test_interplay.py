# SPDX-License-Identifier: MIT
"""Every control operation in every state: accepted or refused, and the engine whole afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest
from attrs import field, frozen

from tokenspeed_core.loop.controls import State
from tokenspeed_core.testing import EngineFixture, scripted_engine, telling_tokens
from tokenspeed_hookspecs import ControlReply, ControlRequest

PROMPT, BUDGET = 40, 40  # whole pages of it are in the prefix cache, and pinned


def running(engine: EngineFixture) -> None:
    """A request decodes."""
    engine.add("busy", PROMPT, budget=BUDGET)
    engine.rounds(4)


def draining(engine: EngineFixture) -> None:
    """A `wait` pause waits for the request."""
    running(engine)
    ask(engine, "pause", mode="wait")


def paused(engine: EngineFixture) -> None:
    """A `wait` pause was answered."""
    draining(engine)
    engine.run_until(lambda: engine.received.replies)


def frozen_(engine: EngineFixture) -> None:
    """A `keep` pause holds the request where it is."""
    running(engine)
    ask(engine, "pause", mode="keep")


def releasing(engine: EngineFixture) -> None:
    """A release waits for the request."""
    running(engine)
    ask(engine, "release_memory")


def released(engine: EngineFixture) -> None:
    """All memory is gone."""
    releasing(engine)
    engine.run_until(lambda: engine.received.replies)


STATES: Mapping[str, Callable[[EngineFixture], None]] = {
    "running": running,
    "draining": draining,
    "paused": paused,
    "frozen": frozen_,
    "releasing": releasing,
    "released": released,
}


@frozen
class Cell:
    """What comes of an operation in one state: `says` is in the message of a refusal, and a `late`
    answer waits until the request that runs has ended (None: it may, at depth 1)."""

    says: str = ""
    late: bool | None = False
    values: Mapping[str, object] = field(factory=dict)


OK, LATE, SOON = Cell(), Cell(late=True), Cell(late=None)
PAUSING = Cell("a pause is already in progress")
EITHER = Cell("a pause or release is already in progress")
ASLEEP = Cell("memory is released")
IN_USE = Cell("the cache was not cleared")


def each(name: str, *cells: bool) -> tuple[Cell, ...]:
    """A query that answers these in the states' order."""
    return tuple(Cell(values={name: value}) for value in cells)


# Columns as in STATES. A pause or release in "running" and "frozen" ends once the request has.
WEIGHTS = "update_weights_from_disk"
NOT_FLUSHED = Cell("cache flush failed")
NOT_GONE, AWAKE = Cell("tags not released: ['weights']"), Cell("no memory is released")
GONE = Cell("tags already released: ['kv_cache', 'weights']")
TABLE: Sequence[tuple[str, dict[str, object], Sequence[Cell]]] = (
    ("pause", {"mode": "wait"}, (LATE, PAUSING, OK, LATE, PAUSING, ASLEEP)),
    ("pause", {"mode": "abort"}, (SOON, PAUSING, OK, SOON, PAUSING, ASLEEP)),
    ("pause", {"mode": "keep"}, (OK, PAUSING, OK, OK, PAUSING, ASLEEP)),
    ("pause", {"mode": "halt"}, (Cell("invalid pause mode: 'halt'"),) * 6),
    ("resume", {}, (OK, OK, OK, OK, OK, ASLEEP)),
    ("resume", {"now": True}, (Cell("unknown argument 'now'"),) * 6),
    ("is_paused", {}, each("is_paused", False, True, True, True, True, True)),
    ("is_sleeping", {}, each("is_sleeping", False, False, False, False, False, True)),
    ("flush_cache", {}, (IN_USE, IN_USE, OK, IN_USE, IN_USE, OK)),
    (WEIGHTS, {"model_path": "m", "flush_cache": False}, (OK,) * 6),
    (WEIGHTS, {"model_path": "m", "flush_cache": 1}, (Cell("flush_cache: expected true"),) * 6),
    (WEIGHTS, {"model_path": "m"}, (*(NOT_FLUSHED,) * 2, OK, *(NOT_FLUSHED,) * 2, OK)),
    ("release_memory", {}, (LATE, EITHER, OK, LATE, EITHER, GONE)),
    ("release_memory", {"tags": ["disk"]}, (Cell("invalid tags: ['disk']; valid: ["),) * 6),
    ("release_memory", {"tags": []}, (Cell("invalid tags: []; valid: ["),) * 6),
    ("resume_memory", {}, (OK, EITHER, AWAKE, AWAKE, EITHER, OK)),
    (
        "resume_memory",
        {"tags": ["weights"]},
        (NOT_GONE, EITHER, NOT_GONE, NOT_GONE, EITHER, OK),
    ),
    ("profile", {"type": 1}, (OK,) * 6),
    ("describe", {}, (OK,) * 6),
    ("explode", {}, (Cell("unknown control operation 'explode'"),) * 6),
)
CELLS = [
    pytest.param(state, name, arguments, cell, id=f"{name}-{arguments}-{state}")
    for name, arguments, cells in TABLE
    for state, cell in zip(STATES, cells, strict=True)
]


def ask(engine: EngineFixture, name: str, **arguments: object) -> None:
    """Send a control request and run the round that takes it."""
    engine.put(ControlRequest(name, arguments))
    engine.round()


def back_to_running(engine: EngineFixture) -> None:
    """Undo whatever state the engine is in, by what an operator would do."""
    controls = engine.loop.controls
    engine.run_until(lambda: controls.drain is None)
    ask(engine, "resume_memory" if controls.released else "resume")
    assert controls.state is State.RUNNING
    assert controls.take_replies() == []


def replies_of(engine: EngineFixture, name: str) -> list[ControlReply]:
    """The replies of one operation so far."""
    return [reply for reply in engine.received.replies if reply.name == name]


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize(("state", "name", "arguments", "cell"), CELLS)
def test_every_operation_in_every_state(
    state: str, name: str, arguments: dict[str, object], cell: Cell, depth: int
) -> None:
    """Each cell of the table, at the moment it is asked; then everything runs again."""
    engine = scripted_engine(depth=depth)
    STATES[state](engine)
    before = len(replies_of(engine, name))
    ask(engine, name, **arguments)
    now = replies_of(engine, name)[before:]
    assert cell.late is None or len(now) == (0 if cell.late else 1)
    engine.run_until(lambda: len(replies_of(engine, name)) > before)
    reply = replies_of(engine, name)[before:][-1]
    assert (reply.success, cell.says in reply.message) == (not cell.says, True), reply
    assert cell.values.items() <= reply.values.items()
    back_to_running(engine)
    engine.add("next", 5, budget=3)
    (stream,) = engine.run_to_end("next")
    assert stream.tokens == telling_tokens(3)
    engine.to_idle()
    asked = [*replies_of(engine, "pause"), *replies_of(engine, "release_memory")]
    assert len(asked) == sum(each in ("pause", "release_memory") for each in asked_for(state, name))


def asked_for(state: str, name: str) -> list[str]:
    """The operations a test sent besides what brought the engine back."""
    own = {"draining": ["pause"], "paused": ["pause"], "frozen": ["pause"]}
    return [*own.get(state, ["release_memory"] if state.startswith("releas") else []), name]


@pytest.mark.parametrize("state", STATES)
def test_a_new_request_runs_only_while_running(state: str) -> None:
    """A request that comes in any other state is withheld, and runs once the engine does."""
    engine = scripted_engine()
    STATES[state](engine)
    engine.add("new", 5, budget=3)
    engine.rounds(20)
    assert bool(engine.received["new"].chunks) == (state == "running")
    back_to_running(engine)
    (stream,) = engine.run_to_end("new")
    assert stream.tokens == telling_tokens(3)
    engine.to_idle()


@pytest.mark.parametrize("state", ["running", "draining", "releasing"])
def test_a_client_abort_reaches_a_running_request_in_every_state(state: str) -> None:
    """Nothing more is sent for it, and a drain does not wait for it."""
    engine = scripted_engine()
    STATES[state](engine)
    engine.abort("busy")
    engine.rounds(4)
    assert len(engine.received["busy"].tokens) < BUDGET
    assert engine.received["busy"].finish is None
    assert [request_id for request_id, _ in engine.plane.released] == ["busy"]
    back_to_running(engine)
    engine.to_idle()


def test_a_client_abort_in_a_freeze_is_carried_out_at_its_end() -> None:
    """Only a forward's commit can end a request that runs, and a freeze has none."""
    engine = scripted_engine()
    frozen_(engine)
    sent = len(engine.received["busy"].tokens)
    engine.abort("busy")
    engine.rounds(4)
    assert engine.plane.released == []
    back_to_running(engine)
    engine.to_idle()
    assert len(engine.received["busy"].tokens) == sent
