# SPDX-License-Identifier: MIT
"""`tokenspeed generate`: complete prompts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenspeed_core.cli.engine_flags import parse_with_engine, shown_config
from tokenspeed_core.cli.parser import CommandParser, command_parser
from tokenspeed_core.cli.request_flags import RequestFlags
from tokenspeed_core.cli.sampling_flags import add_sampling_flags, sampling_of
from tokenspeed_core.errors import ConfigError
from tokenspeed_hookspecs import FinishKind

if TYPE_CHECKING:
    from tokenspeed_core.completion import Completion
    from tokenspeed_core.engine import LocalEngine
    from tokenspeed_core.streams import TextStream

# How a prompt is called where there are several, and what came of it.
Told = tuple[str, "Completion"]
MAX_TOKENS = 256
CLIENT_ERROR = 400


def run(arguments: list[str]) -> int:
    """Run the command; returns its exit code."""
    flags = RequestFlags()
    parsed = parse_with_engine(_parser(), arguments, add_more=flags.add)
    own = parsed.own
    if own.show_config:
        sys.stdout.write(shown_config(parsed.config))
        return 0
    sampling, features = sampling_of(own), flags.features(own)
    prompts = [*own.prompt, *(_read_prompts(own.prompts) if own.prompts else ())]
    if not prompts:
        raise ConfigError(["no prompt: write one after `generate`, or name a file by --prompts"])

    from tokenspeed_core.serving.torchrun import follow

    if follow(parsed.config):
        return 0
    from tokenspeed_core.assembly import compose
    from tokenspeed_core.cli.speed import Stopwatch
    from tokenspeed_core.models.rich_progress import RichProgress

    with RichProgress() as progress:
        engine = compose(config=parsed.config, progress=progress)
    with engine:
        watch = Stopwatch()
        wishes = {"sampling": sampling, "features": features}
        streams = [_open(engine, prompt, as_chat=own.chat, **wishes) for prompt in prompts]
        write = _write_json if own.json else _write_text
        completions = list(write(streams, prompts))
        if any(each.token_ids for each in completions):
            print(watch.told(completions), file=sys.stderr)
    told = _named(completions)
    _tell_cuts(told, budget=sampling.max_new_tokens)
    return _exit_code(told)


def _parser() -> CommandParser:
    parser = command_parser(
        "generate",
        description="Complete prompts, several at once.",
        usage="%(prog)s [flags] [prompt ...]",
    )
    parser.add_argument("prompt", nargs="*", help="a text to complete")
    parser.add_argument("--prompts", metavar="FILE", help="a file with a prompt a line; - is stdin")
    parser.add_argument(
        "--chat", action="store_true", help="answer each prompt, through the model's chat template"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a prompt")
    add_sampling_flags(parser, max_tokens=MAX_TOKENS)
    return parser


def _read_prompts(name: str) -> list[str]:
    """The lines of a file that are not blank; ConfigError if it cannot be read."""
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError([f"--prompts: cannot read {name}: {error.strerror}"]) from error
    except UnicodeDecodeError as error:
        raise ConfigError([f"--prompts: {name} is not UTF-8 text: {error}"]) from error
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise ConfigError([f"--prompts: {name} holds no prompt, but one a line was expected"])
    return lines


def _open(engine: LocalEngine, prompt: str, *, as_chat: bool, **wishes: Any) -> TextStream:
    if as_chat:
        return engine.chat([{"role": "user", "content": prompt}], **wishes)
    return engine.stream(prompt, **wishes)


def _write_json(streams: Sequence[TextStream], prompts: Sequence[str]) -> Iterator[Completion]:
    for stream in streams:
        completion = stream.completion()
        print(json.dumps(completion.as_json(), ensure_ascii=False), flush=True)
        yield completion


def _write_text(streams: Sequence[TextStream], prompts: Sequence[str]) -> Iterator[Completion]:
    """Write each text as it comes, below its prompt where there are several."""
    for stream, prompt in zip(streams, prompts, strict=True):
        if len(streams) > 1:
            print(f"> {prompt}")
        for text in stream:
            print(text, end="", flush=True)
        completion = stream.completion()
        if completion.token_ids or len(streams) > 1:
            print(flush=True)
        yield completion


def _named(completions: Sequence[Completion]) -> list[Told]:
    if len(completions) == 1:
        return [("", completions[0])]
    return [(f"prompt {number}: ", each) for number, each in enumerate(completions, 1)]


def _tell_cuts(told: Sequence[Told], *, budget: int | None) -> None:
    """Tell of texts that were cut before what was asked for: a program sees it in the usage."""
    for name, each in told:
        count = len(each.token_ids)
        if each.finish.kind is FinishKind.LENGTH and budget is not None and count < budget:
            print(
                f"tokenspeed: {name}ended after {count} of {budget} tokens: no more fit into the "
                "context (--max-model-len, and the model's own) or the cache (--num-pages)",
                file=sys.stderr,
            )


def _exit_code(told: Sequence[Told]) -> int:
    """Tell why requests were aborted; 2 if one was asked for wrongly, 1 if the engine gave up."""
    aborted = [(name, each.finish) for name, each in told if each.finish.kind is FinishKind.ABORT]
    for name, finish in aborted:
        wrong = finish.status_code == CLIENT_ERROR
        print(f"tokenspeed: {name}{'' if wrong else 'aborted: '}{finish.message}", file=sys.stderr)
    if any(finish.status_code == CLIENT_ERROR for _, finish in aborted):
        return 2
    return 1 if aborted else 0
