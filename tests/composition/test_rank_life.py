# SPDX-License-Identifier: MIT
"""A rank's life: composed, started in order, stopped in reverse, whatever fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from attrs import frozen

from tokenspeed_core.composition.rank import Rank
from tokenspeed_core.composition.selection import PluginChoice
from tokenspeed_core.config import EngineSection, SchedulerSection
from tokenspeed_core.errors import CompositionError, EngineError, PluginError
from tokenspeed_core.testing import ManualFrontend, request
from tokenspeed_hookspecs import (
    ControlOperation,
    ControlReply,
    Engine,
    Plugin,
    Refuse,
    Round,
    SchedulerSettings,
    hookimpl,
)

Compose = Callable[..., Rank]


def lived(name: str, events: list[str], *, fails_in: str = "") -> type[Plugin]:
    """A plugin that notes its start and stop, and fails in one of them."""

    class Lived(Plugin):
        @hookimpl
        def start(self) -> None:
            self.note("start")

        @hookimpl
        def stop(self) -> None:
            self.note("stop")

        def note(self, what: str) -> None:
            events.append(f"{what} {name}")
            if what == fails_in:
                raise OSError("no disk")

    Lived.name = name
    return Lived


class Limiter(Plugin):
    """Refuses long prompts and counts rounds: a plugin as a third party would write it."""

    name = "limiter"

    @frozen
    class Options:
        """How long is too long."""

        limit: int = 10

    def __init__(self, options: Options, engine: Engine) -> None:
        super().__init__(options, engine)
        self.rounds = 0

    @hookimpl
    def validate_request(self, round: Round) -> Refuse | None:
        assert round.candidate is not None
        is_long = len(round.candidate.prompt_ids) > self.options.limit
        return Refuse(f"more than {self.options.limit} tokens", 400) if is_long else None

    @hookimpl
    def round_done(self, round: Round) -> None:
        self.rounds += 1


def run(rank: Rank, rounds: int) -> None:
    """Run so many rounds of a started rank."""
    for _ in range(rounds):
        rank.loop.round()


# --- through the loop ------------------------------------------------------------------------


def test_a_plugin_of_ones_own_takes_part_in_rounds(compose: Compose) -> None:
    """It refuses one request, lets another through, and watches every round."""
    frontend = ManualFrontend()
    rank = compose(Limiter, frontend=frontend, tables={"limiter": {"limit": 5}})
    rank.start()
    frontend.put(request("long", 6, budget=2), request("short", 5, budget=2))
    run(rank, 10)
    long, short = frontend.received["long"].finish, frontend.received["short"].finish
    assert long is not None
    assert (long.kind.value, long.message) == ("abort", "more than 5 tokens")
    assert short is not None
    assert short.kind.value == "length"
    instance = rank.plugins[-1].instance
    assert isinstance(instance, Limiter)
    assert instance.rounds == 10


def test_a_broken_participant_ends_the_rounds(compose: Compose) -> None:
    """The loop raises the error that names plugin and hook; the rank still stops in order."""
    events: list[str] = []

    class Broken(Plugin):
        name = "broken"

        @hookimpl
        def planned(self, round: Round) -> None:
            raise OSError("no disk")

    rank = compose(lived("a", events), Broken)
    rank.start()
    with pytest.raises(PluginError, match="plugin 'broken' failed in hook planned of round 1"):
        rank.loop.round()
    rank.stop()
    assert events == ["start a", "stop a"]


def test_a_broken_observer_does_not_end_serving(compose: Compose) -> None:
    """Requests are served on while the observer is switched off."""

    class Broken(Plugin):
        name = "broken"

        @hookimpl
        def iteration(self, round: Round) -> None:
            raise OSError("no disk")

    frontend = ManualFrontend()
    rank = compose(Broken, frontend=frontend)
    rank.start()
    frontend.put(request("one", 5, budget=8))
    run(rank, 20)
    assert frontend.received["one"].finish is not None
    assert rank.dropped_observers == {"broken"}


def test_two_ranks_share_no_state(compose: Compose) -> None:
    """Each rank has its own instance of a plugin, its own loop and its own counters."""
    one, two = compose(Limiter), compose(Limiter)
    one.start()
    two.start()
    run(one, 3)
    first, second = one.plugins[-1].instance, two.plugins[-1].instance
    assert isinstance(first, Limiter)
    assert isinstance(second, Limiter)
    assert (first.rounds, second.rounds) == (3, 0)


# --- start and stop --------------------------------------------------------------------------


def test_start_is_in_order_and_stop_in_reverse(compose: Compose) -> None:
    """The last to start is the first to stop."""
    events: list[str] = []
    rank = compose(*(lived(name, events) for name in "cab"))
    rank.start()
    rank.stop()
    assert events == ["start a", "start b", "start c", "stop c", "stop b", "stop a"]


def test_a_failed_start_stops_what_had_begun(compose: Compose) -> None:
    """The failing plugin and those before it are stopped; the one after never ran."""
    events: list[str] = []
    rank = compose(lived("a", events), lived("b", events, fails_in="start"), lived("c", events))
    with pytest.raises(CompositionError, match="'b' failed in hook start: OSError: no disk"):
        rank.start()
    assert events == ["start a", "start b", "stop b", "stop a"]


def test_every_stop_runs(compose: Compose) -> None:
    """Two stops fail, the third still runs, and both errors are raised together."""
    events: list[str] = []
    failing = [lived(name, events, fails_in="stop") for name in "ac"]
    rank = compose(lived("b", events), *failing)
    rank.start()
    with pytest.raises(ExceptionGroup) as caught:
        rank.stop()
    assert events[3:] == ["stop c", "stop b", "stop a"]
    assert ["plugin 'c' in hook stop"] in [each.__notes__ for each in caught.value.exceptions]


def test_a_plugin_that_has_no_start_is_stopped(compose: Compose) -> None:
    """What a constructor opened is closed, even if composition fails afterwards."""
    events: list[str] = []

    class Opened(Plugin):
        name = "opened"

        @hookimpl
        def stop(self) -> None:
            events.append("stop")

    with pytest.raises(CompositionError):
        compose(Opened, engine=EngineSection(data_plane="nowhere"))
    assert events == ["stop"]


# --- composition -------------------------------------------------------------------------------


def test_settings_are_changed_before_the_drivers_are_built(compose: Compose) -> None:
    """The scheduler, the plane and `config` have what a plugin set."""

    class Small(Plugin):
        name = "small"

        @hookimpl
        def configure_scheduler(self, settings: SchedulerSettings) -> None:
            settings.num_pages = 17

        @hookimpl
        def configure_model(self, options: dict[str, Any]) -> None:
            options["vocab_size"] = 5000

    rank = compose(Small, scheduler=SchedulerSection(page_size=16))
    assert rank.config.scheduler.num_pages == 17
    assert rank.scheduler.sizes.total_pages == 16
    assert rank.engine.model.vocab_size == 5000


def test_check_config_reports_every_problem(compose: Compose) -> None:
    """All plugins' problems are in one report; each sees the whole configuration."""

    class Picky(Plugin):
        @hookimpl
        def check_config(self, config: Mapping[str, Any]) -> Sequence[str]:
            return [f"page_size is {config['scheduler']['page_size']}", str(config["limiter"])]

    picky = [type(f"Picky{n}", (Picky,), {"name": n}) for n in ("one", "two")]
    with pytest.raises(CompositionError) as caught:
        compose(*picky, Limiter)
    assert caught.value.problems == [
        f"plugin {name!r}: {text}"
        for name in ("one", "two")
        for text in ("page_size is 64", "{'limit': 10}")
    ]


def test_an_optional_plugin_that_refuses_the_configuration_is_left_out(compose: Compose) -> None:
    """It is listed with its reason, and none of its hooks is called."""

    class Picky(Plugin):
        name = "picky"

        @hookimpl
        def check_config(self, config: Mapping[str, Any]) -> Sequence[str]:
            return ["no"]

        @hookimpl
        def planned(self, round: Round) -> None: ...

    rank = compose(PluginChoice(Picky, is_optional=True))
    assert [(each.name, each.problems) for each in rank.failed] == [
        ("picky", ("plugin 'picky': no",))
    ]
    assert rank.hooks.planned is None
    assert "picky" not in [plugin.name for plugin in rank.plugins]


@pytest.mark.parametrize("hook", ["admission_stages", "control_operations", "check_config"])
def test_a_hook_that_returns_no_list_is_reported(compose: Compose, hook: str) -> None:
    """None, or a text, instead of a list names the plugin and the hook."""

    def method(self: Plugin) -> Any: ...

    def method_of_config(self: Plugin, config: Any) -> Any:
        return "no"

    chosen = method_of_config if hook == "check_config" else method
    wrong = type("Wrong", (Plugin,), {"name": "wrong", hook: hookimpl(chosen)})
    with pytest.raises(CompositionError, match=f"plugin 'wrong': {hook} returned .*, not a list"):
        compose(wrong)


def test_a_control_operation_taken_twice_is_refused(compose: Compose) -> None:
    """The report names the operation and both plugins."""

    def operations(self: Plugin) -> list[ControlOperation]:
        return [ControlOperation("rebalance", lambda _: ControlReply("rebalance", success=True))]

    both = [
        type(name, (Plugin,), {"name": name, "control_operations": hookimpl(operations)})
        for name in ("one", "two")
    ]
    with pytest.raises(CompositionError, match="'rebalance' is claimed by 'one' and 'two'"):
        compose(*both)


def test_the_engine_says_when_it_is_asked_too_early(compose: Compose) -> None:
    """`engine.requests` in a constructor is an error that says where to read it."""

    class Early(Plugin):
        name = "early"

        def __init__(self, options: Any, engine: Engine) -> None:
            super().__init__(options, engine)
            with pytest.raises(EngineError, match=r"engine\.requests is not there yet"):
                _ = engine.requests

    compose(Early)


def test_the_engine_is_complete_at_start(compose: Compose) -> None:
    """Everything of the contract's Engine can be read in the hook `start`."""
    names = (
        "requests",
        "scheduler",
        "ranks",
        "controls",
        "gate",
        "data_plane",
        "model",
        "clock",
        "log",
    )
    found: list[object] = []

    class Reader(Plugin):
        name = "reader"

        @hookimpl
        def start(self) -> None:
            found.extend(getattr(self.engine, name) for name in names)

    compose(Reader).start()
    assert len(found) == len(names)


# --- fingerprint -------------------------------------------------------------------------------


def test_equal_compositions_have_equal_fingerprints(compose: Compose) -> None:
    """The digest does not depend on the process's objects."""
    assert compose(Limiter).fingerprint() == compose(Limiter).fingerprint()


@pytest.mark.parametrize(
    "change",
    [
        {"tables": {"limiter": {"limit": 11}}},
        {"without": ("batch_log",)},
        {"scheduler": SchedulerSection(page_size=32)},
        {"data_plane": {"vocab_size": 5000}},
        {"engine": EngineSection(data_plane="scripted", depth=0)},
    ],
)
def test_a_difference_changes_the_fingerprint(compose: Compose, change: dict[str, Any]) -> None:
    """Options, plugins, scheduler, model and engine settings all count."""
    assert compose(Limiter).fingerprint() != compose(Limiter, **change).fingerprint()


def test_what_is_each_ranks_own_does_not_count(compose: Compose) -> None:
    """Ranks differ in their device and may differ in threads."""
    own = EngineSection(data_plane="scripted", device="cuda:1", threads=3)
    assert compose().fingerprint() == compose(engine=own).fingerprint()
