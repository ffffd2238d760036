# SPDX-License-Identifier: MIT
"""The `tokenspeed` command: which subcommand runs, and how a failure looks.

Exit codes: 0 done, 1 the engine failed, 2 what was asked for cannot be done, 130 interrupted.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from attrs import frozen

from tokenspeed_core.cli.parser import command_parser
from tokenspeed_core.config.flags import reject_unknown
from tokenspeed_core.config.nearest import unknown
from tokenspeed_core.errors import CompositionError, ConfigError, EngineError
from tokenspeed_core.models.errors import ModelError

if TYPE_CHECKING:
    from tokenspeed_hookspecs import CliCommand

FAILED, REFUSED, INTERRUPTED = 1, 2, 130
# As many as the Python between two operations takes several times over.
SPINS = "10000"
Run = Callable[[list[str]], int]


@frozen
class Command:
    """A subcommand of ours: a module's function, imported only to run it."""

    module: str
    help: str
    function: str = "run"


OPERATE = "tokenspeed_core.cli.operate"
COMMANDS = {
    "serve": Command("tokenspeed_core.cli.serve", "answer clients over HTTP"),
    "engine": Command("tokenspeed_core.cli.engine", "run one engine behind a gateway"),
    "generate": Command("tokenspeed_core.cli.generate", "complete prompts"),
    "chat": Command("tokenspeed_core.cli.chat", "talk to the model"),
    "plugins": Command("tokenspeed_core.cli.plugins", "show the plugins, and each hook's order"),
    "new-plugin": Command("tokenspeed_core.cli.new_plugin", "write a package for a new plugin"),
    "check": Command("tokenspeed_core.cli.check", "hold plugins to the contract"),
    "trace": Command("tokenspeed_core.cli.trace", "complete prompts, and write their rounds"),
    "replay": Command("tokenspeed_core.cli.replay", "run a recorded engine again"),
    "simulate": Command("tokenspeed_core.cli.simulate", "run seeds, with faults, without a model"),
    "bench": Command("tokenspeed_core.cli.bench", "run the benchmarks of a checkout"),
    "top": Command("tokenspeed_core.cli.top", "watch a running server"),
    "pause": Command(OPERATE, "let no request run in a running server", "pause"),
    "resume": Command(OPERATE, "let requests run again", "resume"),
    "flush": Command(OPERATE, "empty a running server's prefix cache", "flush"),
    "release": Command(OPERATE, "give a running server's memory back", "release"),
    "wake": Command(OPERATE, "take released memory again", "wake"),
    "weights": Command(OPERATE, "load other weights into a running server", "weights"),
    "profile": Command(OPERATE, "trace a running server", "profile"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    if arguments is None:
        _wait_briefly()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return _run(given)
    except (CompositionError, ModelError) as error:
        return _fail(error, code=REFUSED)
    except EngineError as error:
        return _fail(error, code=FAILED)
    except KeyboardInterrupt as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            _end_at_once()
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone; keep the interpreter from writing to them again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED


def _wait_briefly() -> None:
    """Let torch's threads soon leave their cores to others while they wait for work.

    Its OpenMP reads this when torch is imported, and lets them spin for milliseconds by default:
    where another process wants the cores too, a step takes more than twice as long.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


def _end_at_once() -> None:
    """End without what a usual end waits for: a second Ctrl-C has cut short how the first one was
    cleaned up after, and threads that are left may abort the process."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()
    os._exit(INTERRUPTED)


def _run(given: list[str]) -> int:
    if not given or given[0].startswith("-"):
        return _without_command(given)
    name, *rest = given
    return _find(name)(rest)


def _find(name: str) -> Run:
    if name in COMMANDS:
        command = COMMANDS[name]
        run: Run = getattr(importlib.import_module(command.module), command.function)
        return run
    theirs = _of_plugins()
    if name not in theirs:
        raise ConfigError([unknown("command", name, known=[*COMMANDS, *theirs])])
    return theirs[name].run


def _of_plugins() -> dict[str, CliCommand]:
    """The commands of every installed plugin, by name."""
    from tokenspeed_core.composition.plugin_flags import cli_commands
    from tokenspeed_core.config import EngineConfig

    found = {command.name: command for command in cli_commands(EngineConfig(plugins="auto"))}
    if taken := sorted(found.keys() & COMMANDS.keys()):
        raise CompositionError([f"command {name!r} of a plugin is built in" for name in taken])
    return found


def _without_command(given: list[str]) -> int:
    parser = command_parser(
        "",
        description="An LLM inference engine composed from plugins. "
        "`tokenspeed COMMAND --help` tells the rest.",
        usage="%(prog)s COMMAND ...",
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    group = parser.add_argument_group("commands")
    theirs = {name: command.help for name, command in _of_plugins().items()}
    for name, words in ({name: each.help for name, each in COMMANDS.items()} | theirs).items():
        group.add_argument(name, nargs="?", help=words)
    parsed, extras = parser.parse_known_args(given)
    reject_unknown(parser, extras)
    if parsed.version:
        from importlib.metadata import version

        print(version("tokenspeed-core"))
        return 0
    parser.print_help()
    return 0 if given else REFUSED


def _fail(error: Exception, *, code: int) -> int:
    problems = error.problems if isinstance(error, CompositionError) else [str(error)]
    text = problems[0] if len(problems) == 1 else str(error)
    print(f"tokenspeed: {text}", file=sys.stderr)
    return code
