# SPDX-License-Identifier: MIT
"""What `tokenspeed plugins` shows, and the command line of an engine with plugins."""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from attrs import frozen
from rich.console import Console

from tokenspeed_core.composition.plugin_flags import cli_commands, parse
from tokenspeed_core.composition.rank import Rank
from tokenspeed_core.composition.report import plugins_report
from tokenspeed_core.config import EngineConfig, add_flags
from tokenspeed_core.errors import CompositionError, ConfigError
from tokenspeed_core.testing.site import Site
from tokenspeed_hookspecs import CliCommand, Plugin, Round, hookimpl

WITH_OPTIONS = """
from attrs import frozen
from tokenspeed_hookspecs import Plugin

class Installed(Plugin):
    name = "{name}"

    @frozen
    class Options:
        limit: int = 3
"""


class Shouting(Plugin):
    """Has a command of its own."""

    name = "shouting"

    @frozen
    class Options:
        """Nothing much."""

        loud: bool = False

    @hookimpl
    def cli_commands(self) -> Sequence[CliCommand]:
        return [CliCommand("shout", "says it louder", len)]


def parser() -> argparse.ArgumentParser:
    """A command's parser."""
    made = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(made)
    return made


def test_every_plugin_has_a_row_with_its_state(site: Site) -> None:
    """Loaded, failed, not chosen and switched off, each with its reason."""
    site.install("rates", source=WITH_OPTIONS)
    site.install("broken", source="raise OSError('no disk')")
    site.install("moss")
    config = EngineConfig(plugins=("rates",), optional=("broken",), without=("batch_log",))
    rows = {row.name: row for row in plugins_report(config).plugins}
    states = {name: rows[name].state for name in ("rates", "broken", "moss", "batch_log")}
    assert states == {
        "rates": "loaded",
        "broken": "failed",
        "moss": "not chosen",
        "batch_log": "switched off",
    }
    assert (rows["rates"].version, rows["rates"].options) == ("1.5", {"limit": 3})
    assert "OSError: no disk" in rows["broken"].reasons[0]


def test_a_report_does_not_stop_at_a_problem(site: Site) -> None:
    """A plugin that stops a start is a row here, and its problem is listed."""
    site.install("broken", source="raise OSError('no disk')")
    report = plugins_report(EngineConfig(plugins=("broken", "nobody")))
    assert "failed" in {row.state for row in report.plugins if row.name == "broken"}
    assert len(report.problems) == 2


def test_the_report_is_json_and_a_table() -> None:
    """Both forms show the same plugins."""
    report = plugins_report(EngineConfig(), [Shouting])
    data = json.loads(report.to_json())
    text = io.StringIO()
    Console(file=text, width=200).print(report.table())
    loaded = [row["name"] for row in data["plugins"] if row["state"] == "loaded"]
    assert loaded == ["batch_log", "finish_line", "shouting"]
    assert all(row["name"] in text.getvalue() for row in data["plugins"])


@pytest.mark.parametrize("option", ["tryfirst", "trylast", "wrapper", None])
def test_the_order_shown_is_the_order_of_the_calls(
    compose: Callable[..., Rank], option: str | None
) -> None:
    """Each hook's plugins are listed as pluggy will call them."""
    seen: list[str] = []

    def made(name: str, is_marked: bool) -> type[Plugin]:
        def method(self: Plugin, round: Round) -> Any:
            seen.append(name)

        def wrapping(self: Plugin, round: Round) -> Any:
            seen.append(name)
            return (yield)

        options: dict[str, Any] = {option: True} if option and is_marked else {}
        chosen = wrapping if options.get("wrapper") else method
        return type(name, (Plugin,), {"name": name, "planned": hookimpl(**options)(chosen)})

    plugins = [made(name, is_marked=name in "bd") for name in "abcd"]
    hooks = compose(*plugins).hooks
    assert hooks.planned is not None
    hooks.planned(Round(1))
    assert plugins_report(EngineConfig(), plugins).hooks["planned"] == tuple(seen)


def test_those_that_started_last_are_shown_to_stop_first() -> None:
    """Starts are shown in the plugins' order, stops in reverse."""

    def made(name: str) -> type[Plugin]:
        def method(self: Plugin) -> None:
            """Nothing."""

        hooks = {hook: hookimpl(method) for hook in ("start", "stop")}
        return type(name, (Plugin,), {"name": name, **hooks})

    hooks = plugins_report(EngineConfig(), [made(name) for name in "abc"]).hooks
    assert (hooks["start"], hooks["stop"]) == (("a", "b", "c"), ("c", "b", "a"))


def test_plugin_flags_follow_the_chosen_plugins(site: Site) -> None:
    """`--plugins rates` makes `--rates-limit` known, in any order of the arguments."""
    site.install("rates", source=WITH_OPTIONS)
    _, config = parse(parser(), ["--rates-limit", "5", "--plugins", "rates"])
    assert config.tables == {"rates": {"limit": 5}}
    with pytest.raises(ConfigError, match="--rates-limit is a flag of the plugin 'rates'; add it"):
        parse(parser(), ["--rates-limit", "5"])


def test_a_flag_taken_twice_is_reported() -> None:
    """A plugin whose option would hide another flag is refused by name."""

    class Max(Plugin):
        name = "max"

        @frozen
        class Options:
            batch_size: int = 1

    with pytest.raises(CompositionError, match=r"plugin 'max': .*--max-batch-size"):
        parse(parser(), [], plugins=[Max])


def test_a_plugins_commands_need_no_engine() -> None:
    """They are asked of the class."""
    assert [each.name for each in cli_commands(EngineConfig(), [Shouting])] == ["shout"]


def test_a_command_taken_twice_is_refused() -> None:
    """The second plugin is named."""
    other = type("Other", (Shouting,), {"name": "yelling"})
    with pytest.raises(CompositionError, match="'yelling': command 'shout' is taken"):
        cli_commands(EngineConfig(), [Shouting, other])
