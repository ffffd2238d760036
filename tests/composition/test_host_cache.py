# SPDX-License-Identifier: MIT
"""The size of the host tier as people write it."""

from __future__ import annotations

import pytest

from tokenspeed_core.composition.build import build_rank
from tokenspeed_core.config import EngineConfig, EngineSection, SchedulerSection
from tokenspeed_core.config.byte_sizes import parse_bytes
from tokenspeed_core.config.engine_config import from_tables
from tokenspeed_core.errors import ConfigError

SIZES: list[tuple[int | str, int]] = [
    (4096, 4096),
    ("4096", 4096),
    ("2GiB", 2 << 30),
    ("2 gib", 2 << 30),
    ("512MB", 512_000_000),
    ("1.5k", 1500),
    ("3T", 3 * 10**12),
    ("10b", 10),
]


@pytest.mark.parametrize(("given", "expected"), SIZES)
def test_sizes(given: int | str, expected: int) -> None:
    """Units are decimal, or binary with an i; a bare number is bytes."""
    assert parse_bytes(given) == expected


@pytest.mark.parametrize("given", ["", "GiB", "2 gallons", "-1", "1e9", "2GiBs", "0x10", "1,5GB"])
def test_what_is_no_size(given: str) -> None:
    """The option, the value and what was expected are named."""
    with pytest.raises(ConfigError, match=r"scheduler\.host_cache: expected a size") as caught:
        from_tables({"scheduler": {"host_cache": given}})
    assert repr(given) in str(caught.value)


@pytest.mark.parametrize("given", [0, "0GiB", "0.1b"])
def test_nothing_is_no_size(given: int | str) -> None:
    """Who wants no host tier leaves the option out."""
    with pytest.raises(ConfigError, match="at least a byte"):
        from_tables({"scheduler": {"host_cache": given}})


def test_pages_or_bytes() -> None:
    """Both at a time would say two things."""
    with pytest.raises(ConfigError, match="give one of the two"):
        from_tables({"scheduler": {"host_cache": "1GiB", "host_pages": 9}})


def test_plugins_see_bytes_and_may_change_them() -> None:
    """In a scheduler's settings it is a number, and what a plugin makes of it is kept."""
    section = SchedulerSection(host_cache="1MiB")
    settings = section.settings()
    assert (settings.host_bytes, settings.host_pages) == (1 << 20, 0)
    settings.host_bytes, settings.host_pages = 0, 33
    changed = section.changed(settings)
    assert (changed.host_cache, changed.host_pages) == (None, 33)


def test_a_plane_without_bytes_takes_pages() -> None:
    """The scripted plane has no memory to fill."""
    config = EngineConfig(
        engine=EngineSection(data_plane="scripted"), scheduler=SchedulerSection(host_cache="1MiB")
    )
    with pytest.raises(ConfigError, match="'scripted' knows no bytes of a page; use host_pages"):
        build_rank(config)
