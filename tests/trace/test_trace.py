# SPDX-License-Identifier: MIT
"""The plugin `trace`: what is in the file, and that a rank without it measures nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tokenspeed_core.cli.engine_flags import traced
from tokenspeed_core.composition.selection import PluginChoice
from tokenspeed_core.config import EngineConfig
from tokenspeed_core.errors import ConfigError
from tokenspeed_core.loop.event_loop import EventLoop
from tokenspeed_core.observers.batch_log import BatchLog
from tokenspeed_core.testing import EngineFixture, EngineSetup
from tokenspeed_core.testing.conformance.mirror_plan import Companion
from tokenspeed_hookspecs import Plugin, Round, hookimpl

Events = list[dict[str, Any]]


class Planning(Plugin):
    """Takes part in a phase."""

    name = "planning"

    @hookimpl
    def planned(self, round: Round) -> None:
        return None


@pytest.fixture
def traced_run(tmp_path: Path) -> Callable[..., Events]:
    """Run two requests with a trace, and read its file."""

    def run(*, depth: int = 1, requests: Sequence[str] = ("a", "b"), **options: object) -> Events:
        file = tmp_path / "trace.json"
        chosen = PluginChoice("trace", {"file": str(file), **options})
        engine = EngineFixture(EngineSetup(depth=depth, plugins=(chosen, Planning)))
        for name in requests:
            engine.add(name, 40, budget=5)
        engine.run_to_end(*requests)
        engine.rounds(20)
        engine.rank.stop()
        events: Events = json.loads(file.read_text())["traceEvents"]
        return events

    return run


def _slices(events: Events, track: str) -> Events:
    names = {each["tid"]: each["args"]["name"] for each in events if each["name"] == "thread_name"}
    return [e for e in events if e["ph"] == "X" and names[e["tid"]] == track]


def _holds(outer: dict[str, Any], at: float, end: float) -> bool:
    begin: float = outer["ts"]
    return begin <= at + 0.002 and end <= begin + outer["dur"] + 0.002  # rounded to nanoseconds


def test_a_plugins_call_is_inside_its_phase(traced_run: Callable[..., Events]) -> None:
    """Each phase has a track, and a plugin's call lies within one slice of its phase."""
    plan = _slices(traced_run(), "plan")
    calls = [each for each in plan if each["name"] == "planning.planned"]
    phases = [each for each in plan if each["name"] == "plan"]
    assert len(calls) == len(phases) > 5
    for call in calls:
        assert any(_holds(p, call["ts"], call["ts"] + call["dur"]) for p in phases)


def test_a_stages_calls_are_slices(tmp_path: Path) -> None:
    """What an admission stage takes is told with its plugin, stage and verb."""
    file = tmp_path / "trace.json"
    chosen = PluginChoice("trace", {"file": str(file)})
    engine = EngineFixture(EngineSetup(plugins=(chosen, Companion)))
    engine.add("a", 3, budget=2)
    engine.run_to_end("a")
    engine.rank.stop()
    names = {each["name"] for each in json.loads(file.read_text())["traceEvents"]}
    assert {f"companion.one_poll.{verb}" for verb in ("enter", "poll", "settle")} <= names


def test_the_slices_of_a_track_do_not_cross(traced_run: Callable[..., Events]) -> None:
    """Slices of one track follow or contain each other, as the viewer needs it."""
    events = traced_run(depth=2)
    for track in {each["args"]["name"] for each in events if each["name"] == "thread_name"}:
        open_ends: list[float] = []
        for each in sorted(_slices(events, track), key=lambda e: (e["ts"], -e["dur"])):
            end = each["ts"] + each["dur"]
            open_ends = [other for other in open_ends if other > each["ts"] + 0.002]
            assert all(end <= other + 0.002 for other in open_ends), (track, each)
            open_ends.append(end)


def test_forwards_in_flight_have_lanes(traced_run: Callable[..., Events]) -> None:
    """At depth 2 up to three forwards overlap, each in a lane of its own."""
    events = traced_run(depth=2)
    lanes = {each["args"]["name"] for each in events if each["name"] == "thread_name"}
    named = [f"forwards {n}, dispatch to commit" in lanes for n in (1, 2, 3, 4)]

    assert named == [True, True, True, False]


def test_a_request_is_an_arrow_between_phases(traced_run: Callable[..., Events]) -> None:
    """A request's flow begins in admit, goes through a dispatch and a commit, and ends there."""
    events = traced_run(requests=("a",))
    flow = [each for each in events if each["ph"] in "stf"]
    assert [each["ph"] for each in flow] == ["s", "t", "t", "f"]
    assert {each["id"] for each in flow} == {1}
    tracks = ("admit", "dispatch", "commit", "commit")
    for step, track in zip(flow, tracks, strict=True):
        assert any(_holds(each, step["ts"], step["ts"]) for each in _slices(events, track))


def test_idle_rounds_are_left_out(traced_run: Callable[..., Events]) -> None:
    """Twenty rounds after the last request leave nothing."""
    rounds = _slices(traced_run(), "rounds")
    assert 5 < len(rounds) < 15


def test_only_the_last_events_are_kept(traced_run: Callable[..., Events]) -> None:
    """The trace is bounded, and its end is what is kept."""
    events = traced_run(most_events=100)
    shown = [each for each in events if each["ph"] != "M"]
    assert len(shown) == 100
    assert any(each["ph"] == "f" for each in shown)


def test_a_rank_without_a_trace_measures_nothing() -> None:
    """No loop that watches, no call that is timed: the hooks are the plugins' own methods."""
    engine = EngineFixture(EngineSetup(plugins=(Planning,)))
    assert type(engine.loop) is EventLoop
    call = engine.rank.hooks.planned
    assert call is not None
    closure = [cell.cell_contents for cell in call.__closure__ or ()]
    (plugin,) = [each.instance for each in engine.rank.plugins]
    assert plugin is not None
    assert plugin.planned in closure


def test_a_trace_that_cannot_be_written_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Stopping goes on, and the log says why there is no file."""
    chosen = PluginChoice("trace", {"file": str(tmp_path / "gone" / "trace.json")})
    engine = EngineFixture(EngineSetup(plugins=(chosen, BatchLog)))
    engine.add("a", 3, budget=2)
    engine.run_to_end("a")
    engine.rank.stop()
    assert "the trace was not written" in caplog.text


def test_the_flag_is_the_plugin() -> None:
    """`--trace FILE` names the plugin and its file in the configuration."""
    config = traced(EngineConfig(optional=("other",)), Path("some.json"))
    assert config.optional == ("other", "trace")
    assert config.tables["trace"] == {"file": str(Path("some.json").absolute())}


def test_a_folder_that_is_missing_is_refused() -> None:
    """A trace that could never be written is refused before the engine starts."""
    with pytest.raises(ConfigError, match="there is no folder"):
        traced(EngineConfig(), Path("no-such-folder/some.json"))
