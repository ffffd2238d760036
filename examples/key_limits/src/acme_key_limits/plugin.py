# SPDX-License-Identifier: MIT
"""The plugin: options, the stage, and what it tells of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from attrs import asdict, field, frozen

from acme_key_limits.limits import KeyLimit
from acme_key_limits.stage import OTHERS, Turns
from tokenspeed_hookspecs import (
    AdmissionStage,
    ControlOperation,
    ControlReply,
    Engine,
    Plugin,
    Refuse,
    RequestFlag,
    Round,
    hookimpl,
)

OUTCOMES = ("admitted", "refused", "left")
BAD_REQUEST = 400


class KeyLimits(Plugin):
    """Requests wait until their API key may send and it is their turn."""

    name = "key_limits"
    features = ("api_key",)
    request_flags = (RequestFlag("api-key", "api_key", "the key that the request counts for"),)

    @frozen
    class Options:
        """Flags, and the tables `[key_limits]`, its `keys.<key>`, and its `others`."""

        running: int = field(
            default=64, metadata={"help": "requests of all keys that run together", "minimum": 1}
        )
        keys: Mapping[str, KeyLimit] = field(
            factory=dict, metadata={"help": "the limits of each key"}
        )
        others: KeyLimit = field(
            factory=KeyLimit, metadata={"help": "the limits of every other key, together"}
        )

    def __init__(self, options: Options, engine: Engine) -> None:
        super().__init__(options, engine)
        self._tell: dict[tuple[str, str], Callable[[], None]] = {}
        self.turns = Turns(
            engine, {**options.keys, OTHERS: options.others}, options.running, self._told
        )

    @hookimpl
    def check_config(self, config: Mapping[str, object]) -> Sequence[str]:
        if OTHERS in self.options.keys:
            return [f"key_limits.keys.{OTHERS}: the limits of other keys are [key_limits.{OTHERS}]"]
        return [
            f"key_limits.keys.{key}: expected numbers from 0, got {limit}"
            for key, limit in self.options.keys.items()
            if min(limit.per_second, limit.burst, limit.at_once, limit.waiting) < 0
        ]

    @hookimpl
    def start(self) -> None:
        requests = "Requests by key, and what became of them in the stage."
        for key in self.turns.limits:
            for outcome in OUTCOMES:
                self._tell[key, outcome] = self.engine.instruments.counter(
                    "key_limits_requests", requests, labels={"key": key, "outcome": outcome}
                ).add

    @hookimpl
    def admission_stages(self) -> Sequence[AdmissionStage]:
        return [self.turns]

    @hookimpl
    def validate_request(self, round: Round) -> Refuse | None:
        assert round.candidate is not None
        key = round.candidate.features.get("api_key")
        if key is None or isinstance(key, str):
            return None
        return Refuse(f"Invalid request: api_key must be a text, got {key!r}.", BAD_REQUEST)

    @hookimpl
    def control_operations(self) -> Sequence[ControlOperation]:
        return [ControlOperation("key_limits", self.describe, "who waits, and each key's limits")]

    def describe(self, arguments: Mapping[str, object]) -> ControlReply:
        """Answer the control operation."""
        keys = {
            key: {**asdict(limit), "waiting_now": self.turns.waiting[key]}
            for key, limit in self.turns.limits.items()
        }
        return ControlReply("key_limits", success=True, values={"keys": keys})

    def _told(self, key: str, outcome: str) -> None:
        self._tell[key, outcome]()
