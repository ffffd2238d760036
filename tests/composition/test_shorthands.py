# SPDX-License-Identifier: MIT
"""The flag that is named like a plugin."""

from __future__ import annotations

import argparse

import pytest

from tokenspeed_core.composition.plugin_flags import parse
from tokenspeed_core.composition.resolve import resolve
from tokenspeed_core.config import EngineConfig, add_flags
from tokenspeed_core.errors import CompositionError, ConfigError
from tokenspeed_core.testing.site import Site

SHORT = """
from attrs import frozen
from tokenspeed_hookspecs import Plugin

class Installed(Plugin):
    name = "{name}"
    shorthand = "size"

    @frozen
    class Options:
        size: int = 3
        other: str = "x"
"""


def parsed(*arguments: str) -> EngineConfig:
    """The configuration of a command's arguments."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser)
    return parse(parser, arguments)[1]


@pytest.mark.parametrize("arguments", [["--my-rates", "7"], ["--my-rates=7"]])
def test_the_flag_chooses_the_plugin_and_sets_its_option(site: Site, arguments: list[str]) -> None:
    """Either way of writing it, and the option is of the option's type."""
    site.install("my_rates", source=SHORT)
    config = parsed(*arguments)
    assert (config.plugins, config.tables["my_rates"]) == (("my_rates",), {"size": 7})
    (chosen,) = [each for each in resolve(config).loaded if each.name == "my_rates"]
    assert chosen.options.size == 7


def test_other_flags_of_the_plugin_go_with_it(site: Site) -> None:
    """The plugin is chosen, so its options are flags; naming it twice is once."""
    site.install("rates", source=SHORT)
    config = parsed("--rates", "7", "--rates-other", "y", "--plugins", "rates")
    assert (config.plugins, config.tables["rates"]) == (("rates",), {"size": 7, "other": "y"})


def test_a_plugin_without_one_has_no_such_flag(site: Site) -> None:
    """It is chosen by --plugins."""
    site.install("rates")
    with pytest.raises(ConfigError, match="--rates"):
        parsed("--rates", "7")


def test_a_wrong_value_is_told_as_one_of_the_option(site: Site) -> None:
    """As with the option's own flag."""
    site.install("rates", source=SHORT)
    with pytest.raises(CompositionError, match=r"rates\.size.*many"):
        resolve(parsed("--rates", "many"))


def test_help_lists_the_flags_of_all_installed_plugins(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody who asks for help has not chosen any yet."""
    site.install("rates", source=SHORT)
    with pytest.raises(SystemExit):
        parsed("--help")
    assert "--rates SIZE" in capsys.readouterr().out


def test_a_shorthand_names_an_option_of_the_plugin(site: Site) -> None:
    """A slip is a problem of the plugin, with the nearest option."""
    site.install("rates", source=SHORT.replace('shorthand = "size"', 'shorthand = "sise"'))
    with pytest.raises(CompositionError, match=r"shorthand.*sise.*size"):
        resolve(EngineConfig(plugins=("rates",)))
