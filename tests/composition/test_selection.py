# SPDX-License-Identifier: MIT
"""Selection and loading: what was asked for starts, or one report says why not."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from tokenspeed_core.composition import selection
from tokenspeed_core.composition.discovery import Installed
from tokenspeed_core.composition.rank import Rank
from tokenspeed_core.composition.resolve import resolve
from tokenspeed_core.composition.selection import PluginChoice
from tokenspeed_core.config import EngineConfig
from tokenspeed_core.errors import CompositionError
from tokenspeed_core.testing.site import Site
from tokenspeed_hookspecs import Plugin, Round, hookimpl

BUILT_IN = ["batch_log", "finish_line"]
Compose = Callable[..., Rank]

FAULTS = {
    "import error": ("import not_there_at_all", "No module named 'not_there_at_all'"),
    "exit while importing": ("raise SystemExit(3)", "cannot be imported: SystemExit: 3"),
    "not a plugin": ("class Installed: name = '{name}'", "expected a subclass"),
    "not a class": ("Installed = 3", "expected a subclass"),
}


class Quiet(Plugin):
    """Does nothing."""

    name = "quiet"


def names(config: EngineConfig, *plugins: type[Plugin]) -> list[str]:
    """The loaded plugins' names in order."""
    return [plugin.name for plugin in resolve(config, plugins).loaded]


def test_built_in_observers_are_loaded_by_default() -> None:
    """An empty configuration has the batch log and the finish line."""
    assert names(EngineConfig()) == BUILT_IN


def test_what_names_nothing_installed_reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Classes and what is built in need no look at what is installed; another name does."""
    looks: list[None] = []

    def look() -> Installed:
        looks.append(None)
        return Installed({}, {})

    monkeypatch.setattr(selection, "installed", look)
    assert names(EngineConfig(plugins=("trace",)), Quiet) == [*BUILT_IN, "quiet", "trace"]
    assert looks == []
    with pytest.raises(CompositionError, match="unknown plugin 'elsewhere'"):
        resolve(EngineConfig(plugins=("elsewhere",)))
    assert names(EngineConfig(plugins="auto")) == BUILT_IN
    assert len(looks) == 2


def test_a_built_in_observer_can_be_switched_off() -> None:
    """`without` keeps even a built-in plugin out."""
    assert names(EngineConfig(without=("batch_log",))) == ["finish_line"]


def test_only_named_plugins_are_loaded(site: Site) -> None:
    """What is installed and not named stays out."""
    site.install("rates")
    site.install("moss")
    assert names(EngineConfig(plugins=("moss",))) == [*BUILT_IN, "moss"]


def test_auto_loads_what_is_installed(site: Site) -> None:
    """`auto` is every installed plugin, but what `without` names."""
    site.install("rates")
    site.install("moss")
    found = names(EngineConfig(plugins="auto", without=("rates",)))
    assert "moss" in found
    assert "rates" not in found


def test_an_unknown_name_is_reported_with_the_nearest(site: Site) -> None:
    """The report names the nearest installed plugin."""
    site.install("rates")
    with pytest.raises(CompositionError, match=r"plugin 'ratse'; did you mean 'rates'\?"):
        resolve(EngineConfig(plugins=("ratse",)))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_plugin_stops_the_start_by_name(site: Site, fault: str) -> None:
    """A plugin that was asked for and cannot be loaded is an error that names it and why."""
    source, text = FAULTS[fault]
    site.install("rates", source=source)
    with pytest.raises(CompositionError, match="plugin 'rates': ") as caught:
        resolve(EngineConfig(plugins=("rates",)))
    assert text in str(caught.value)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_optional_plugin_is_shown_as_failed(site: Site, fault: str) -> None:
    """Marked optional, it is left out and listed with its reason."""
    source, text = FAULTS[fault]
    site.install("rates", source=source)
    resolved = resolve(EngineConfig(optional=("rates",)))
    assert [plugin.name for plugin in resolved.loaded] == BUILT_IN
    assert [failed.name for failed in resolved.failed] == ["rates"]
    assert text in resolved.failed[0].problems[0]


def test_a_missing_optional_plugin_is_shown_as_failed() -> None:
    """An optional plugin that is not installed stops nothing and is listed."""
    resolved = resolve(EngineConfig(optional=("rates",)))
    assert "unknown plugin 'rates'" in resolved.failed[0].problems[0]


def test_a_broken_plugin_nobody_asked_for_stops_nothing(
    site: Site, compose: Compose, caplog: pytest.LogCaptureFixture
) -> None:
    """Ten good ones and a broken one under `auto`: the ten start, one warning names the other,
    whatever else is installed."""
    for number in range(10):
        site.install(f"good{number}")
    site.install("broken", source="raise OSError('no disk')")
    with caplog.at_level(logging.WARNING):
        rank = compose(plugins="auto")
    assert len([each for each in rank.plugins if each.name.startswith("good")]) == 10
    assert "broken" in [failed.name for failed in rank.failed]
    warnings = [each.getMessage() for each in caplog.records if "'broken'" in each.getMessage()]
    assert len(warnings) == 1
    assert "'broken' is not loaded: " in warnings[0]


def test_a_class_under_two_entry_names_is_called_once(site: Site, compose: Compose) -> None:
    """The second entry name does not match the class, so its hooks are registered once."""
    source = """
    from tokenspeed_hookspecs import Plugin, Round, hookimpl
    class Installed(Plugin):
        name = "rates"
        @hookimpl
        def planned(self, round: Round) -> None: round.num_outputs += 1
    """
    for entry in ("rates", "rates_again"):
        site.install(entry, distribution="other-rates", source=source)
    rank, round = compose(plugins=("rates", "rates"), optional=("rates_again",)), Round(1)
    assert rank.hooks.planned is not None
    rank.hooks.planned(round)
    assert round.num_outputs == 1
    assert [failed.name for failed in rank.failed] == ["rates_again"]


def test_a_class_chosen_in_python_needs_no_installation() -> None:
    """A class is a choice of its own."""
    assert names(EngineConfig(), Quiet) == [*BUILT_IN, "quiet"]


def test_an_instance_chosen_in_python_is_used_itself(compose: Compose) -> None:
    """The rank's plugin is the object that was given, with the rank's engine."""
    instance = Quiet(None, engine=None)  # type: ignore[arg-type]  # composition gives it one
    rank = compose(instance)
    assert rank.plugins[-1].instance is instance
    assert instance.engine is rank.engine


def test_an_instance_belongs_to_one_rank(compose: Compose) -> None:
    """Two ranks cannot share an instance, whose state would mix."""
    instance = Quiet(None, engine=None)  # type: ignore[arg-type]  # composition gives it one
    compose(instance)
    with pytest.raises(CompositionError, match="this instance belongs to a rank already"):
        compose(instance)


def test_a_raising_constructor_names_its_plugin(compose: Compose) -> None:
    """An exception in `__init__` is a composition error that names the plugin."""

    class Broken(Plugin):
        name = "broken"

        def __init__(self, options: object, engine: object) -> None:
            raise OSError("no disk")

    with pytest.raises(CompositionError, match="'broken' cannot be made: OSError: no disk"):
        compose(Broken)


def test_an_optional_plugin_that_cannot_be_made_is_left_out(
    compose: Compose, caplog: pytest.LogCaptureFixture
) -> None:
    """It is listed as failed, a warning says so, and none of its hooks stays registered."""

    class Broken(Plugin):
        name = "broken"

        def __init__(self, options: object, engine: object) -> None:
            raise OSError("no disk")

        @hookimpl
        def planned(self, round: Round) -> None: ...

    with caplog.at_level(logging.WARNING):
        rank = compose(PluginChoice(Broken, is_optional=True))
    assert [failed.name for failed in rank.failed] == ["broken"]
    assert rank.hooks.planned is None
    assert "'broken' cannot be made" in caplog.text
