# SPDX-License-Identifier: MIT
"""Picking one of many: scheduler, data plane and front end are entry points with a name."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

from tokenspeed_core.composition.discovery import sorted_entry_points
from tokenspeed_core.config.nearest import unknown
from tokenspeed_core.errors import ConfigError

SCHEDULERS = "tokenspeed.schedulers"
DATA_PLANES = "tokenspeed.data_planes"
FRONTENDS = "tokenspeed.frontends"


def check_driver(group: str, name: str, *, option: str) -> None:
    """ConfigError, with the choices, if no driver of that name is installed; imports nothing."""
    names = [point.name for point in sorted_entry_points(group)]
    if name not in names:
        raise ConfigError([f"{option}: {unknown('driver', name, known=names)}"])


def pick_driver(group: str, name: str, *, option: str) -> Callable[..., Any]:
    """Load a driver's class; ConfigError names the option, the value and the choices."""
    # Importing stevedore takes 0.1 s, which an engine that brings its drivers need not pay.
    from stevedore import DriverManager
    from stevedore.exception import MultipleMatches

    class Driver(DriverManager[Any]):
        """A driver whose listing is never stale and keeps its distribution."""

        def list_entry_points(self) -> list[EntryPoint]:
            return sorted_entry_points(self.namespace)

    check_driver(group, name, option=option)
    try:
        # The driver's class is taken, not `driver`: that is the class too if an instance is falsy.
        found: Callable[..., Any] = Driver(group, name, on_load_failure_callback=_raise)[
            name
        ].plugin
        return found
    except MultipleMatches as error:
        raise ConfigError([f"{option}: several distributions install {name!r}: {error}"]) from error
    except Exception as error:
        raise ConfigError(
            [f"{option}: driver {name!r} cannot be imported: {type(error).__name__}: {error}"]
        ) from error


def _raise(_: object, __: object, error: BaseException) -> None:
    raise error
