# SPDX-License-Identifier: MIT
"""The operators' commands: each asks a running server for one control operation."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from attrs import frozen

from tokenspeed_core.cli.parser import CommandParser, command_parser
from tokenspeed_core.cli.running_server import EngineReply, RunningServer, add_server_flags
from tokenspeed_core.errors import EngineError

PAUSE_MODES = {
    "abort": "running requests were aborted",
    "wait": "running requests came to their end",
    "keep": "running requests are kept as they are",
}
Given = argparse.Namespace


@frozen(kw_only=True)
class Operation:
    """A command: `done` says what it did when every engine has done it."""

    name: str
    path: str
    help: str
    done: Callable[[Given], str]
    body: Callable[[Given], Mapping[str, Any]] = lambda given: {}
    add_flags: Callable[[CommandParser], None] = lambda parser: None

    def run(self, arguments: list[str]) -> int:
        """Run the command; returns its exit code."""
        parser = command_parser(self.name, description=self.help)
        self.add_flags(parser)
        add_server_flags(parser)
        given = parser.parse_args(arguments)
        replies = RunningServer.of(given).ask(self.path, self.body(given))
        if given.json:
            print(json.dumps({"replies": [attrs.asdict(reply) for reply in replies]}))
            return 0 if all(reply.success for reply in replies) else 1
        _raise_refusals(self.name, replies)
        notes = dict.fromkeys(reply.message for reply in replies if reply.message)
        print("; ".join([self.done(given), *notes]))
        return 0


def _raise_refusals(name: str, replies: Sequence[EngineReply]) -> None:
    """EngineError names each engine that refused, where there are several."""
    refusals = [(index, each.message) for index, each in enumerate(replies) if not each.success]
    if not replies:
        raise EngineError(f"{name}: no engine answered")
    if refusals:
        texts = [
            f"engine {index}: {text or 'refused'}" if len(replies) > 1 else text or "refused"
            for index, text in refusals
        ]
        raise EngineError(f"{name}: " + "; ".join(texts))


def _add_mode(parser: CommandParser) -> None:
    parser.add_argument(
        "--mode",
        choices=tuple(PAUSE_MODES),
        default="abort",
        help="what running requests do: end now (the default), run to their end, or stand still",
    )


def _add_tags(parser: CommandParser) -> None:
    parser.add_argument(
        "--tags",
        type=lambda text: [tag.strip() for tag in text.split(",") if tag.strip()],
        metavar="A,B",
        help="which memory, such as kv_cache or weights; all without it",
    )


def _tags(given: Given) -> dict[str, Any]:
    return {} if given.tags is None else {"tags": given.tags}


def _add_weights(parser: CommandParser) -> None:
    parser.add_argument("path", metavar="PATH", help="a folder that the server can read")
    parser.add_argument("--version", help="a name for these weights, for others to compare")
    parser.add_argument(
        "--keep-cache",
        action="store_true",
        help="keep cached prefixes, though the old weights made them",
    )


def _weights(given: Given) -> dict[str, Any]:
    # The server's working folder is another one.
    path = os.path.abspath(given.path) if os.path.exists(given.path) else given.path
    body = {"model_path": path, "flush_cache": not given.keep_cache}
    return body if given.version is None else {**body, "weight_version": given.version}


def _add_profile(parser: CommandParser) -> None:
    parser.add_argument(
        "type", choices=("start", "stop"), help="start a trace, or end and write it"
    )
    parser.add_argument("--steps", type=int, metavar="N", help="end by itself after N forwards")
    parser.add_argument("--folder", metavar="NAME", help="a name below the server's trace folder")


def _profile(given: Given) -> dict[str, Any]:
    wishes = {"output_dir": given.folder, "num_steps": given.steps}
    return {"type": given.type, **{key: each for key, each in wishes.items() if each is not None}}


def _told(tags: Sequence[str] | None) -> str:
    return "all memory" if tags is None else ", ".join(tags)


pause = Operation(
    name="pause",
    path="/engine/pause",
    help="Let no further request run until `tokenspeed resume`; new ones wait.",
    done=lambda given: f"paused; {PAUSE_MODES[given.mode]}",
    body=lambda given: {"mode": given.mode},
    add_flags=_add_mode,
).run

resume = Operation(
    name="resume",
    path="/engine/resume",
    help="Let requests run again after a pause.",
    done=lambda given: "running",
).run

flush = Operation(
    name="flush",
    path="/engine/flush_cache",
    help="Forget every cached prefix.",
    done=lambda given: "the prefix cache is empty",
).run

release = Operation(
    name="release",
    path="/engine/release_memory",
    help="Give the memory of the cache and the weights back, once what runs has ended.",
    done=lambda given: f"released: {_told(given.tags)}",
    body=_tags,
    add_flags=_add_tags,
).run

wake = Operation(
    name="wake",
    path="/engine/resume_memory",
    help="Take released memory again; the engine runs once it has all of it.",
    done=lambda given: f"awake: {_told(given.tags)}",
    body=_tags,
    add_flags=_add_tags,
).run

weights = Operation(
    name="weights",
    path="/engine/update_weights_from_disk",
    help="Load other weights of the same shape into the running engine.",
    done=lambda given: f"the weights are those of {given.path}",
    body=_weights,
    add_flags=_add_weights,
).run

profile = Operation(
    name="profile",
    path="/engine/profile",
    help="Start or stop a trace of what runs, written where the server says.",
    done=lambda given: f"profile {given.type}",
    body=_profile,
    add_flags=_add_profile,
).run
