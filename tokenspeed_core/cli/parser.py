# SPDX-License-Identifier: MIT
"""A command's parser: its errors are ours, and its help is only coloured when it is shown."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from tokenspeed_core.errors import ConfigError


class CommandParser(argparse.ArgumentParser):
    """Raises ConfigError for a bad argument, where argparse prints its whole usage and exits."""

    def error(self, message: str) -> NoReturn:
        """Refuse the arguments."""
        raise ConfigError([message])


def command_parser(name: str, *, description: str, **options: Any) -> CommandParser:
    """Make the parser of `tokenspeed <name>`."""
    return CommandParser(
        prog=f"tokenspeed {name}".strip(),
        description=description,
        allow_abbrev=False,
        formatter_class=_rich_formatter,
        **options,
    )


def _rich_formatter(prog: str) -> argparse.HelpFormatter:
    # argparse makes a formatter only for a help text; rich would slow down every other start.
    from rich_argparse import RichHelpFormatter

    return RichHelpFormatter(prog)
