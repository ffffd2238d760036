# SPDX-License-Identifier: MIT
"""What an operator may set, in our way or as the one JSON value that vLLM takes."""

from __future__ import annotations

import json
from typing import Literal

from attrs import evolve, field, frozen

from tokenspeed_hookspecs import Plugin
from tokenspeed_kv_events.endpoints import endpoint_problem
from tokenspeed_kv_events.events import Form

SWITCH = "enable_kv_cache_events"
# The keys of vLLM's value; its readers are told ours by them.
KEYS = (
    "publisher",
    "endpoint",
    "replay_endpoint",
    "buffer_steps",
    "hwm",
    "max_queue_size",
    "topic",
)


@frozen
class EventOptions(Plugin.Options):
    """Where events go and what they look like. They hold the tokens of people's prompts: an address
    that others can reach shows those to them."""

    publisher: str = field(default="zmq", metadata={"help": "zmq, log, null or another's"})
    endpoint: str = field(default="tcp://127.0.0.1:5557", metadata={"help": "where to publish"})
    replay_endpoint: str | None = field(
        default=None, metadata={"help": "where readers ask for what they missed"}
    )
    bind: bool = field(default=True, metadata={"help": "bind the addresses, or connect to them"})
    topic: str = field(
        default="", metadata={"help": "a message's first frame; {host} and {model} are filled in"}
    )
    buffer_steps: int = field(
        default=10_000, metadata={"help": "batches kept for replays", "minimum": 1}
    )
    hwm: int = field(
        default=100_000, metadata={"help": "messages kept for a slow reader", "minimum": 0}
    )
    max_queue_size: int = field(
        default=100_000, metadata={"help": "rounds waiting to be published", "minimum": 1}
    )
    encoding: Form = field(
        default="array",
        metadata={"help": "all by position; all by name; or only the events by name"},
    )
    hash_encoding: Literal["uint64", "int64"] = field(
        default="uint64", metadata={"help": "hashes without a sign or with one"}
    )
    partial_blocks: bool = field(
        default=False, metadata={"help": "also tell of blocks that are not full"}
    )
    config: str = field(
        default="", metadata={"help": "all of it as JSON, as for vLLM's --kv-events-config"}
    )

    def resolved(self) -> EventOptions | None:
        """The options with the JSON value's keys in place, or None where it switches events off.

        ValueError says what is wrong with the value.
        """
        if not self.config:
            return self
        try:
            given = json.loads(self.config)
        except json.JSONDecodeError as error:
            raise ValueError(f"expected JSON, got {self.config!r}: {error}") from error
        known = [SWITCH, *KEYS]
        if not isinstance(given, dict) or not set(given) <= set(known):
            raise ValueError(f"expected an object with keys of {', '.join(known)}, got {given!r}")
        is_on = given.pop(SWITCH, True)
        return evolve(self, **given, config="") if is_on else None

    def problems(self) -> list[str]:
        """A sentence for each option that cannot be."""
        try:
            options = self.resolved()
        except (TypeError, ValueError) as error:
            return [f"kv_events.config: {error}"]
        if options is None:
            return []
        places = {"endpoint": options.endpoint, "replay_endpoint": options.replay_endpoint}
        found = {key: endpoint_problem(each) for key, each in places.items() if each is not None}
        return [f"kv_events.{key}: {problem}" for key, problem in found.items() if problem]
