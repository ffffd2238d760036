# SPDX-License-Identifier: MIT
"""`tokenspeed chat`: a conversation. Each turn sends all of it; the prefix cache has most."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from tokenspeed_core.cli.engine_flags import parse_with_engine, shown_config
from tokenspeed_core.cli.parser import CommandParser, command_parser
from tokenspeed_core.cli.request_flags import RequestFlags
from tokenspeed_core.cli.sampling_flags import add_sampling_flags, sampling_of
from tokenspeed_hookspecs import FinishKind

if TYPE_CHECKING:
    from tokenspeed_core.engine import LocalEngine

MAX_TOKENS = 512
PROMPT = "[bold]you>[/bold] "


def run(arguments: list[str]) -> int:
    """Run the command; returns its exit code."""
    flags = RequestFlags()
    parsed = parse_with_engine(_parser(), arguments, add_more=flags.add)
    if parsed.own.show_config:
        sys.stdout.write(shown_config(parsed.config))
        return 0
    wishes = {"sampling": sampling_of(parsed.own), "features": flags.features(parsed.own)}

    from tokenspeed_core.assembly import compose
    from tokenspeed_core.models.rich_progress import RichProgress

    with RichProgress() as progress:
        engine = compose(config=parsed.config, progress=progress)
    talk = Conversation(engine, wishes, system=parsed.own.system)
    console = Console()
    with engine:
        for said in _lines(console):
            talk.turn(said, console)
    return 0


def _parser() -> CommandParser:
    parser = command_parser(
        "chat",
        description="Talk to the model; Ctrl-D ends, Ctrl-C as well.",
        usage="%(prog)s [flags]",
    )
    parser.add_argument("--system", metavar="TEXT", help="what the model is told first")
    add_sampling_flags(parser, max_tokens=MAX_TOKENS)
    return parser


class Conversation:
    """What was said so far; `wishes` are those of `LocalEngine.chat`, for every turn."""

    def __init__(
        self, engine: LocalEngine, wishes: Mapping[str, Any], *, system: str | None = None
    ) -> None:
        self._engine = engine
        self._wishes = wishes
        self.messages: list[dict[str, str]] = []
        if system is not None:
            self.messages.append({"role": "system", "content": system})

    def turn(self, said: str, console: Console) -> None:
        """Send a message, write the answer as it comes, and say what the cache saved."""
        from tokenspeed_core.cli.speed import Stopwatch

        self.messages.append({"role": "user", "content": said})
        watch = Stopwatch()
        with self._engine.chat(self.messages, **self._wishes) as stream:
            for text in stream:
                console.out(text, end="", highlight=False)
            completion = stream.completion()
        console.out()
        if completion.finish.kind is FinishKind.ABORT:
            self.messages.pop()
            console.print(f"aborted: {completion.finish.message}", style="red", markup=False)
            return
        self.messages.append({"role": "assistant", "content": completion.text})
        console.print(f"[dim]{watch.told([completion])}[/dim]", highlight=False, soft_wrap=True)


def _lines(console: Console) -> Iterator[str]:
    """What a person types, or the lines of a pipe, until it ends; blank ones are passed over."""
    while True:
        try:
            said = console.input(PROMPT) if sys.stdin.isatty() else _piped(console)
        except EOFError:
            return
        if said.strip():
            yield said.strip()


def _piped(console: Console) -> str:
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    console.print(PROMPT + escape(line.rstrip("\n")), highlight=False, soft_wrap=True)
    return line
