# SPDX-License-Identifier: MIT
"""`tokenspeed replay`: run a recorded engine again, without its device, peers or clients."""

from __future__ import annotations

import json
from pathlib import Path

from tokenspeed_core.cli.parser import command_parser
from tokenspeed_core.composition.selection import PluginChoice
from tokenspeed_core.errors import ConfigError, EngineError
from tokenspeed_core.recording.replay import Replayed, last_frames, replay
from tokenspeed_core.recording.told_frame import told

FAILED = 1


def run(arguments: list[str]) -> int:
    """Run the command; returns 1 if the replay is not what was recorded."""
    parser = command_parser(
        "replay",
        description="Run a recording (serve, engine and generate write one with --record FILE) "
        "and compare what it answers with what was answered then.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the recording")
    parser.add_argument("--until", type=int, metavar="ROUND", help="stop after this round")
    parser.add_argument(
        "--last",
        type=int,
        metavar="N",
        help="only print what the last N rounds took in, also those after the file was full",
    )
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="write the rounds to FILE, for ui.perfetto.dev"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    given = parser.parse_args(arguments)
    if given.last is not None and given.last < 1:
        raise ConfigError([f"--last: expected at least 1, got {given.last}"])
    if given.until is not None and given.until < 1:
        raise ConfigError([f"--until: expected at least 1, got {given.until}"])
    trace = () if given.trace is None else (PluginChoice("trace", {"file": str(given.trace)}),)
    try:
        if given.last is not None:
            return _show_last(given.file, given.last, as_json=given.json)
        found = replay(given.file, until=given.until, plugins=trace)
    except OSError as error:
        raise ConfigError([f"cannot read {given.file}: {error.strerror}"]) from error
    except EngineError as error:
        raise ConfigError([str(error)]) from error
    print(json.dumps(found.as_map()) if given.json else _told(found))
    return FAILED if found.parted else 0


def _show_last(file: Path, count: int, *, as_json: bool) -> int:
    frames = [told(frame) for frame in last_frames(file, count)]
    if as_json:
        print(json.dumps({"rounds": frames}))
    else:
        print("\n".join(line for lines in frames for line in lines))
    return 0


def _told(found: Replayed) -> str:
    ends = ", ".join(f"{count} by {kind}" for kind, count in sorted(found.ends.items()))
    lines = [
        f"{found.rounds} rounds, {found.tokens} tokens, {found.requests} requests ended "
        f"({ends or 'none'}), {found.replies} control replies"
    ]
    if found.unreplayed:
        lines.append(
            f"{found.unreplayed} more rounds came after the file was full; --last shows them"
        )
    if not found.is_whole:
        lines.append(
            "the file has no end: its engine was killed or still runs, or the file was cut; "
            "what came afterwards is not known"
        )
    if found.failure:
        lines.append(f"the engine ended by itself: {found.failure}")
    lines.append(f"parted: {found.parted}" if found.parted else "every answer is the recorded one")
    return "\n".join(lines)
