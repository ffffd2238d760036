# SPDX-License-Identifier: MIT
"""What `tokenspeed serve` is asked for: an engine's configuration, and a front end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from attrs import evolve, frozen

from tokenspeed_core.composition.drivers import FRONTENDS, pick_driver
from tokenspeed_core.config import EngineConfig
from tokenspeed_core.config.engine_config import FRONTEND
from tokenspeed_core.config.tables import check_limits, field_types, from_table, option
from tokenspeed_core.errors import ConfigError
from tokenspeed_hookspecs import FrontendServer

DRIVER = "driver"


@frozen(kw_only=True)
class ServeOptions:
    """The keys of `[frontend]` that are not the driver's own."""

    driver: str = option("openai", "the front end that serves clients")
    drain_timeout: float = option(
        5.0, "seconds that running requests get when the server is stopped", minimum=0
    )

    def __attrs_post_init__(self) -> None:
        check_limits(self)


@frozen(kw_only=True)
class ServePlan:
    """A deployment as it was asked for, checked as far as it can be without starting anything."""

    config: EngineConfig
    options: ServeOptions
    server: FrontendServer
    log_level: str = "warning"

    @property
    def model(self) -> str:
        """The model as clients name it."""
        return self.config.engine.model


def driver_class(table: Mapping[str, Any]) -> Any:
    """The class of the front end that `[frontend]` names, and no instance of it."""
    name = _own(table).driver
    found = pick_driver(FRONTENDS, name, option=f"{FRONTEND}.{DRIVER}")
    options = getattr(found, "Options", None)
    if not isinstance(options, type) or not attrs.has(options):
        raise ConfigError(
            [f"front end {name!r}: expected an attrs class as its Options, got {options!r}"]
        )
    if taken := sorted(field_types(options).keys() & field_types(ServeOptions).keys()):
        raise ConfigError([f"front end {name!r}: its options may not be named {taken}"])
    return found


def serve_plan(config: EngineConfig, *, log_level: str) -> ServePlan:
    """Make the front end; ConfigError lists what is wrong with its options and surroundings."""
    driver = driver_class(config.frontend)
    ours = field_types(ServeOptions)
    theirs = {key: value for key, value in config.frontend.items() if key not in ours}
    options = _own(config.frontend)
    server: FrontendServer = driver(from_table(driver.Options, theirs, place=FRONTEND))
    if problems := list(server.check()):
        raise ConfigError(problems)
    engine = evolve(config, frontend={})
    return ServePlan(config=engine, options=options, server=server, log_level=log_level)


def _own(table: Mapping[str, Any]) -> ServeOptions:
    ours = field_types(ServeOptions)
    given = {key: value for key, value in table.items() if key in ours}
    return from_table(ServeOptions, given, place=FRONTEND)
