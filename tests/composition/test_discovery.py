# SPDX-License-Identifier: MIT
"""Discovery and drivers: what is installed, from its metadata alone."""

from __future__ import annotations

import sys

import pytest

from tokenspeed_core.composition.discovery import installed
from tokenspeed_core.composition.drivers import DATA_PLANES, SCHEDULERS, pick_driver
from tokenspeed_core.errors import ConfigError
from tokenspeed_core.testing.scripted_plane import ScriptedDataPlane
from tokenspeed_core.testing.site import Site


def test_a_listed_plugin_is_not_imported(site: Site) -> None:
    """Listing reads metadata: name, distribution, version, requirements; no module is run."""
    module = site.install("rates", requires=["tokenspeed-hookspecs>=1,<2"])
    found = installed().plugins["rates"]
    assert (found.distribution, found.version) == ("other-rates", "1.5")
    assert found.requires == ("tokenspeed-hookspecs>=1,<2",)
    assert module not in sys.modules


def test_listing_is_sorted_whatever_was_installed_first(site: Site) -> None:
    """The list is in the order of names, not of folders."""
    for name in ("zebra", "aster", "moss"):
        site.install(name)
    names = [name for name in installed().plugins if name in {"zebra", "aster", "moss"}]
    assert names == ["aster", "moss", "zebra"]


def test_listing_twice_is_the_same(site: Site) -> None:
    """Discovery is idempotent."""
    site.install("rates")
    assert installed() == installed()


def test_what_is_installed_later_is_seen(site: Site) -> None:
    """No listing is kept from an earlier call."""
    before = installed().plugins
    site.install("rates")
    assert "rates" not in before
    assert "rates" in installed().plugins


def test_a_name_of_two_distributions_is_reported(site: Site) -> None:
    """A name two distributions install is a problem that names both."""
    site.install("rates", distribution="other-one")
    site.install("rates", distribution="other-two")
    assert "other-one 1.5" in installed().problems["rates"]
    assert "other-two 1.5" in installed().problems["rates"]


def test_a_driver_is_its_class() -> None:
    """Picking a driver returns the class that the entry point names."""
    assert pick_driver(DATA_PLANES, "scripted", option="engine.data_plane") is ScriptedDataPlane


@pytest.mark.parametrize(
    ("group", "name", "near"),
    [(DATA_PLANES, "scriptd", "scripted"), (SCHEDULERS, "nativ", "native")],
)
def test_an_unknown_driver_names_the_choices(group: str, name: str, near: str) -> None:
    """The error names the option, the value, the nearest name and the choices."""
    with pytest.raises(ConfigError) as caught:
        pick_driver(group, name, option="engine.x")
    assert f"engine.x: unknown driver {name!r}; did you mean {near!r}?" in str(caught.value)
    assert "there are:" in str(caught.value)
