# SPDX-License-Identifier: MIT
"""`tokenspeed engine`: one engine that connects to a gateway, which speaks to the clients."""

from __future__ import annotations

import asyncio
import sys
from functools import partial

from tokenspeed_core.cli.engine_flags import parse_with_engine, shown_config
from tokenspeed_core.cli.parser import CommandParser, command_parser
from tokenspeed_core.errors import ConfigError


def run(arguments: list[str]) -> int:
    """Run the command until Ctrl-C or SIGTERM, which end it with code 0."""
    parsed = parse_with_engine(_parser(), arguments)
    own, config = parsed.own, parsed.config
    if own.show_config:
        sys.stdout.write(shown_config(config))
        return 0
    from tokenspeed_core.composition.resolve import resolve
    from tokenspeed_core.model_tokenizer import model_folder
    from tokenspeed_core.models.rich_progress import RichProgress
    from tokenspeed_core.serving.gateway import handshake_address
    from tokenspeed_core.serving.messages import EngineOrder
    from tokenspeed_core.serving.supervisor import supervise

    if (own.connect is None) == (own.gateway is None):
        raise ConfigError(["give --gateway ipc://PATH or --connect ADDRESS, and only one of them"])
    resolve(config)
    with RichProgress() as progress:
        model_folder(config, progress)
    order = EngineOrder(
        config=config.to_toml(),
        handshake=own.connect or handshake_address(own.gateway),
        index=own.index,
        log_level=own.log_level,
    )
    asyncio.run(supervise(order, hear=partial(print, file=sys.stderr, flush=True)))
    return 0


def _parser() -> CommandParser:
    parser = command_parser(
        "engine",
        description="Run one engine behind a gateway; Ctrl-C stops.",
        usage="%(prog)s (--gateway ipc://PATH | --connect ADDRESS) [flags]",
    )
    group = parser.add_argument_group("gateway")
    group.add_argument(
        "--gateway", metavar="URL", help="the worker's URL as the gateway was given it: ipc://PATH"
    )
    group.add_argument(
        "--connect", metavar="ADDRESS", help="where the handshake is: tcp://127.0.0.1:PORT"
    )
    group.add_argument(
        "--index", type=int, default=0, metavar="N", help="which of several engines this is (0)"
    )
    return parser
