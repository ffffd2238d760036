# SPDX-License-Identifier: MIT
"""Traces of the plane's forwards: what is in them, where they go, and when they begin and end."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tokenspeed_core.testing.messages import request
from tokenspeed_core.testing.torch_engine import TorchEngine
from tokenspeed_hookspecs import ControlReply

MakeEngine = Callable[..., TorchEngine]
PRODUCT = "mkldnn::_linear_pointwise"
# Four a layer and the head.
PRODUCTS_A_FORWARD = 2 * 4 + 1


@pytest.fixture
def engine(start_engine: MakeEngine, tmp_path: Path) -> TorchEngine:
    """An engine that writes its traces below a folder of the test."""
    return start_engine(data_plane={"traces": str(tmp_path / "traces")}, depth=0)


def start(engine: TorchEngine, **order: object) -> ControlReply:
    """Ask for a recording."""
    return engine.ask("profile", type=1, **order)


def forwards(engine: TorchEngine, count: int) -> None:
    """Run a request of so many forwards."""
    name = f"r{len(engine.frontend.received.ids())}"
    engine.generate([request(name, 10, budget=count, temperature=0.0, ignore_eos=True)])
    engine.rank.data_plane.call(lambda: None)


def traces(folder: Path) -> list[list[dict[str, Any]]]:
    """The events of every trace below a folder."""
    files = sorted(folder.rglob("*.trace.json.gz"))
    return [json.loads(gzip.open(file).read())["traceEvents"] for file in files]


def num_forwards(events: list[dict[str, Any]]) -> float:
    """Forwards of the tiny model in a trace, by their products."""
    products = [event for event in events if event.get("name") == PRODUCT]
    return len(products) / PRODUCTS_A_FORWARD


def test_what_runs_between_start_and_stop_is_recorded(engine: TorchEngine, tmp_path: Path) -> None:
    """The plane's own thread is in the trace, and each forward between the two requests."""
    forwards(engine, 2)
    assert start(engine).message.startswith("Succeeded")
    forwards(engine, 3)
    reply = engine.ask("profile", type=2)
    assert reply.success, reply.message
    (events,) = traces(tmp_path)
    assert num_forwards(events) == 3


def test_a_recording_ends_by_itself(engine: TorchEngine, tmp_path: Path) -> None:
    """With a number of steps the trace is there after so many forwards, and no stop is needed."""
    start(engine, num_steps=2)
    forwards(engine, 5)
    assert [num_forwards(events) for events in traces(tmp_path)] == [2]
    reply = engine.ask("profile", type=2)
    assert reply == ControlReply(
        "profile", False, "Profiling is not in progress. Call /start_profile first."
    )


def test_a_recording_begins_where_it_was_asked_to(engine: TorchEngine, tmp_path: Path) -> None:
    """A start step counts all forwards of the plane; before it nothing is recorded."""
    forwards(engine, 3)
    start(engine, start_step=5, num_steps=10)
    forwards(engine, 4)
    engine.ask("profile", type=2)
    assert [num_forwards(events) for events in traces(tmp_path)] == [2]


def test_what_never_began_leaves_no_trace(engine: TorchEngine, tmp_path: Path) -> None:
    """A stop before the start step gives up the recording, and another may begin."""
    start(engine, start_step=100)
    assert "Nothing was recorded" in engine.ask("profile", type=2).message
    assert traces(tmp_path) == []
    assert start(engine).success


def test_a_second_recording_is_refused(engine: TorchEngine) -> None:
    """One at a time, and the first goes on."""
    start(engine)
    reply = start(engine)
    assert not reply.success
    assert reply.message == "Profiling is already in progress. Call /stop_profile first."
    assert engine.ask("profile", type=2).success


def test_shapes_and_stacks_are_recorded_if_wanted(engine: TorchEngine, tmp_path: Path) -> None:
    """Each option adds what it says to the events."""
    start(engine, record_shapes=True, with_stack=True, num_steps=1, activities=["CPU", "GPU"])
    forwards(engine, 1)
    (events,) = traces(tmp_path)
    assert any("Input Dims" in event.get("args", {}) for event in events)
    assert any("decoder.py" in event.get("name", "") for event in events)


def test_an_engine_that_stops_writes_its_trace(start_engine: MakeEngine, tmp_path: Path) -> None:
    """What was recorded until then is not lost."""
    engine = start_engine(data_plane={"traces": str(tmp_path)}, depth=0)
    start(engine)
    forwards(engine, 1)
    engine.rank.data_plane.stop()
    assert len(traces(tmp_path)) == 1


def test_a_trace_that_cannot_be_written_costs_only_itself(
    engine: TorchEngine, tmp_path: Path
) -> None:
    """The next stop tells of it, and the engine serves on."""
    start(engine, output_dir="gone", num_steps=1)
    (tmp_path / "traces" / "gone").rmdir()
    forwards(engine, 3)
    reply = engine.ask("profile", type=2)
    assert not reply.success
    assert "could not be written" in reply.message
    forwards(engine, 1)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ({"output_dir": "../elsewhere"}, "expected a folder below"),
        ({"output_dir": "/elsewhere"}, "expected a folder below"),
        ({"output_dir": "link"}, "expected a folder below"),
        ({"output_dir": "a\0b"}, "cannot write"),
        ({"output_dir": "a" * 4096}, "cannot write"),
        ({"profile_id": "../x"}, "expected a file's name"),
        ({"profile_id": "a" * 300}, "expected a file's name"),
        ({"activities": ["GPU"]}, "no GPU to record"),
        ({"activities": ["TPU"]}, "got 'TPU'"),
        ({"num_steps": 0}, "at least 1"),
        ({"start_step": -1}, "at least 0"),
        ({"profile_by_stage": True}, "all forwards alike"),
        ({"type": 3}, "expected 1 to start"),
        ({"with_stack": "yes"}, "Expected `bool"),
    ],
    ids=str,
)
def test_orders_that_make_no_sense_are_refused(
    engine: TorchEngine, tmp_path: Path, *, order: dict[str, object], message: str
) -> None:
    """Nothing is written anywhere, and a right order works afterwards."""
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "link").symlink_to(tmp_path)
    reply = engine.ask("profile", **{"type": 1, **order})
    assert not reply.success
    assert message in reply.message
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["link", "traces"]
    assert start(engine, output_dir="~").success


def test_the_default_folder_is_told(start_engine: MakeEngine) -> None:
    """Without a folder of its own an engine makes a temporary one and says which."""
    engine = start_engine()
    told = Path(start(engine, num_steps=1).message.rpartition(" ")[2])
    forwards(engine, 2)
    assert told.exists()
    assert told.parent.name.startswith("tokenspeed-traces-")
    told.unlink()
    told.parent.rmdir()
