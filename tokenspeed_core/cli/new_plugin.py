# SPDX-License-Identifier: MIT
"""`tokenspeed new-plugin`: write a package that installs and passes its own tests at once."""

from __future__ import annotations

from pathlib import Path

from tokenspeed_core.cli.parser import command_parser
from tokenspeed_core.errors import ConfigError
from tokenspeed_core.template.package import NewPackage


def run(arguments: list[str]) -> int:
    """Run the command."""
    parser = command_parser(
        "new-plugin",
        description="Write a package for a new plugin: hooks, data-plane extension, tests.",
    )
    parser.add_argument("name", metavar="NAME", help="lower-case words joined by _")
    parser.add_argument(
        "--into", type=Path, default=Path(), metavar="FOLDER", help="where its folder goes (here)"
    )
    given = parser.parse_args(arguments)
    if not given.into.is_dir():
        raise ConfigError([f"--into: there is no folder {given.into}"])
    package = NewPackage(given.name)
    try:
        folder = package.write(given.into)
    except OSError as error:
        raise ConfigError([f"the package cannot be written: {error}"]) from error
    print(f"wrote {folder}")
    print("next:")
    print(f"  pip install -e {folder}")
    print(f"  pytest {folder}")
    print(f"  tokenspeed check {package.name}")
    return 0
