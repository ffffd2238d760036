# SPDX-License-Identifier: MIT
"""A frame of a recording in words, for people who look for what went wrong."""

from __future__ import annotations

from typing import Any

from tokenspeed_core.loop import relay
from tokenspeed_core.recording import codec
from tokenspeed_core.recording.replayed_ports import WORDS
from tokenspeed_core.recording.tape import Frame
from tokenspeed_hookspecs import AbortRequests, AddRequest, ControlRequest

FAILURE = "!"
MOST_SHOWN = 100


def told(frame: Frame) -> list[str]:
    """A line for the round, then one for each thing it took in or answered, in its order."""
    title = f"round {frame.number}" if frame.number else "before the first round"
    if frame.repeats > 1:
        title += f", and {frame.repeats - 1} more with the same"
    if frame.beyond:
        title += " (after the file was full: it cannot be replayed)"
    return [title, *(f"  {_told_event(kind, value)}" for kind, value in frame.events)]


def _told_event(kind: str, value: Any) -> str:
    if kind == FAILURE:
        return f"failed: {value}"
    return f"{WORDS[kind]}: {_cut(_told_value(kind, value))}"


def _told_value(kind: str, value: Any) -> str:
    match kind:
        case "m":
            closed, _, messages = relay.decode(value)
            texts = [_told_message(each) for each in messages]
            return ", ".join([*texts, *(["no more can come"] if closed else [])]) or "none"
        case "r":
            result = codec.result_from_plain(value)
            nan = f", NaN in rows {list(result.nan_rows)}" if result.nan_rows else ""
            return f"tokens {[int(token) for token in result.tokens]}{nan}"
        case "o" | "e":
            return f"digest {value.hex()}"
        case _:
            return repr(value)


def _told_message(message: object) -> str:
    match message:
        case AddRequest():
            return f"request {message.request_id!r} of {len(message.prompt_ids)} tokens"
        case AbortRequests():
            return f"abort of {', '.join(map(repr, message.request_ids))}"
        case ControlRequest():
            return f"{message.name} {dict(message.arguments)}"
        case _:
            return type(message).__name__


def _cut(text: str) -> str:
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
