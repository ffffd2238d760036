# SPDX-License-Identifier: MIT
"""`tokenspeed serve`: an engine in a process of its own, and a front end that answers clients."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from functools import partial

import attrs
from attrs import evolve

from tokenspeed_core.cli.engine_flags import Parsed, parse_with_engine, shown_config
from tokenspeed_core.cli.parser import CommandParser, command_parser
from tokenspeed_core.cli.serve_status import PersonStatus, ProgramStatus
from tokenspeed_core.composition.discovery import sorted_entry_points
from tokenspeed_core.composition.drivers import FRONTENDS
from tokenspeed_core.config import add_flags, add_table_flags, from_flags
from tokenspeed_core.config.engine_config import FRONTEND
from tokenspeed_core.config.values import from_text
from tokenspeed_core.errors import ConfigError
from tokenspeed_core.serving.plan import DRIVER, driver_class, serve_plan

MODEL = "engine.model"
HELP = {"-h", "--help"}


def run(arguments: list[str]) -> int:
    """Run the command until Ctrl-C or SIGTERM, which end it with code 0."""
    parsed = _parse(arguments)
    if parsed.own.show_config:
        sys.stdout.write(shown_config(parsed.config))
        return 0
    from tokenspeed_core.composition.report import plugins_report
    from tokenspeed_core.composition.resolve import resolve
    from tokenspeed_core.model_tokenizer import model_folder
    from tokenspeed_core.models.rich_progress import RichProgress
    from tokenspeed_core.serving.server import Server
    from tokenspeed_core.serving.torchrun import follow

    if follow(parsed.config):
        return 0
    resolve(parsed.config)
    plan = serve_plan(parsed.config, log_level=parsed.own.log_level)
    with RichProgress() as progress:
        model = model_folder(plan.config, progress)
    server = Server(
        plan=plan,
        status=ProgramStatus() if parsed.own.json else PersonStatus(plan),
        model=model,
        composition=attrs.asdict(plugins_report(plan.config)),
    )
    asyncio.run(server.run())
    return 0


def _parse(arguments: Sequence[str]) -> Parsed:
    parser = command_parser(
        "serve",
        description="Answer clients over HTTP; Ctrl-C stops.",
        usage="%(prog)s [MODEL] [flags]",
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="as --model")
    parser.add_argument("--json", action="store_true", help="print one JSON object an event")
    _add_frontend_flags(parser, arguments)
    parsed = parse_with_engine(parser, arguments)
    model = parsed.own.model
    if model is None:
        return parsed
    if MODEL in vars(parsed.own):
        raise ConfigError([f"the model is given twice: {model!r} and by --model"])
    config = parsed.config
    return evolve(parsed, config=evolve(config, engine=evolve(config.engine, model=model)))


def _add_frontend_flags(parser: CommandParser, arguments: Sequence[str]) -> None:
    """Add ours, read which front end is meant, and add its own."""
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_flags(first)
    for each in (first, parser):
        _add_our_flags(each)
    if HELP & {*arguments} and not sorted_entry_points(FRONTENDS):
        return  # help is for those as well who have no front end yet
    chosen, _ = first.parse_known_args(arguments)
    driver = driver_class(from_flags(chosen).frontend)
    try:
        add_table_flags(parser, driver.Options, table=FRONTEND)
    except argparse.ArgumentError as error:
        raise ConfigError([f"an option of the front end cannot be a flag: {error}"]) from error


def _add_our_flags(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("serving")
    group.add_argument(
        "--frontend",
        dest=f"{FRONTEND}.{DRIVER}",
        default=argparse.SUPPRESS,
        metavar="NAME",
        help="the front end that serves clients (openai)",
    )
    group.add_argument(
        "--drain-timeout",
        dest=f"{FRONTEND}.drain_timeout",
        type=partial(from_text, wanted=float),
        default=argparse.SUPPRESS,
        metavar="S",
        help="seconds that running requests get when the server is stopped (5)",
    )
