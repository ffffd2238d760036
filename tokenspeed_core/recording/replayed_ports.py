# SPDX-License-Identifier: MIT
"""The ports of a loop that is replayed: each gives what the recording has, in its order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec
from attrs import define, evolve, field, frozen

from tokenspeed_core.errors import EngineError
from tokenspeed_core.loop import relay
from tokenspeed_core.loop.parts import RoundHooks
from tokenspeed_core.ranks.membership import Whereabouts
from tokenspeed_core.ranks.single import SingleGroup
from tokenspeed_core.recording import codec
from tokenspeed_core.recording.recorded_ports import OUTSIDE
from tokenspeed_core.recording.tape import Frame, Header
from tokenspeed_hookspecs import (
    AdmissionStage,
    AdmittedRequest,
    CacheAcknowledgment,
    CacheGroup,
    ControlReply,
    ControlRequest,
    DataPlaneExtension,
    Dispatch,
    ForwardResult,
    ForwardTable,
    Group,
    HostPages,
    Load,
    Message,
    ModelInfo,
    OutputBatch,
    PendingForward,
    Plan,
    Request,
    Round,
    Verdict,
)

T = TypeVar("T")
STAGE_LIMIT_S = 10.0
WORDS: Mapping[str, str] = {
    "m": "messages",
    "o": "outputs",
    "e": "a plan for the device",
    "r": "a forward's result",
    "a": "cache acknowledgments",
    "c": "a device operation's reply",
    "v": "a value of the device's thread",
    "x": "what ranks agreed on",
    "s": "what a stage saw",
    "t": "decoded text",
    "p": "plugins' reports",
    "k": "whether plugins forgot the cache",
}


class ReplayPartedError(EngineError):
    """The loop asked for, or answered, something else than in the recording."""


@define(eq=False)
class Tape:
    """The frame that is replayed; every port takes its next event from it."""

    _events: deque[tuple[str, Any]] = field(factory=deque)
    _clocks: deque[float] = field(factory=deque)
    _now: float = 0.0
    number: int = 0

    def load(self, frame: Frame, number: int) -> None:
        """Put a round's frame in. ReplayPartedError if something of the last one was not asked."""
        self.expect_end()
        self._events.extend(frame.events)
        self._clocks = deque(frame.clocks)
        self.number = number

    def expect_end(self) -> None:
        """ReplayPartedError if something is left."""
        if self._events and self._events[0][0] != "!":
            left = WORDS[self._events[0][0]]
            raise ReplayPartedError(f"round {self.number}: the loop did not ask for {left}")

    def take(self, kind: str) -> Any:
        """The next event, which must be of this kind."""
        if not self._events:
            raise ReplayPartedError(
                f"round {self.number}: the loop asks for {WORDS[kind]}, the recording ends here"
            )
        found, value = self._events.popleft()
        if found == "!":
            raise EngineError(f"in round {self.number}, waiting for {WORDS[kind]}: {value}")
        if found != kind:
            raise ReplayPartedError(
                f"round {self.number}: the loop asks for {WORDS[kind]}, the recording has "
                f"{WORDS[found]}"
            )
        return value

    def match(self, kind: str, digest: bytes) -> None:
        """ReplayPartedError unless the next event is this answer."""
        if self.take(kind) != digest:
            raise ReplayPartedError(f"round {self.number}: {WORDS[kind]} differ from the recording")

    def clock(self) -> float:
        """The next time that was read; the last one again where it was read less often."""
        if self._clocks:
            self._now = self._clocks.popleft()
        return self._now


@define(eq=False)
class ReplayedFrontend:
    """Messages of the recording; what is sent must be what was sent, and is counted."""

    tape: Tape
    is_closed: bool = False
    num_requests: int = 0
    num_tokens: int = 0
    num_replies: int = 0
    ends: dict[str, int] = field(factory=dict)

    def receive(self, wait_s: float | None) -> Sequence[Message]:
        """The round's messages."""
        self.is_closed, _, told = relay.decode(self.tape.take("m"))
        return [each for each in told if not isinstance(each, relay.Unrelayable)]

    def send(self, outputs: OutputBatch, load: Load) -> None:
        """Compare a round's chunks."""
        self.tape.match("o", codec.outputs_digest(outputs))
        self.num_tokens += len(outputs.token_ids)
        for details in outputs.details.values():
            if details.finish is not None:
                kind = details.finish.kind.value
                self.num_requests += 1
                self.ends[kind] = self.ends.get(kind, 0) + 1

    def reply(self, reply: ControlReply) -> None:
        """Compare a reply."""
        self.tape.match("o", codec.reply_digest(reply))
        self.num_replies += 1


class ReplayedForward:
    """Stands for a forward; its result is next on the tape when it is asked for."""


class ReplayedPlane:
    """Gives what the recorded device gave."""

    def __init__(self, tape: Tape, described: Mapping[str, Any]) -> None:
        self._tape = tape
        self.kind = str(described["kind"])
        self.model = msgspec.convert(described["model"], ModelInfo)
        self.cache_groups: Sequence[CacheGroup] = msgspec.convert(
            described["cache_groups"], list[CacheGroup]
        )
        self.num_host_pages = int(described.get("num_host_pages", 0))
        self.host_pages: HostPages | None = None
        self.memory_regions: Sequence[str] = list(described["memory_regions"])

    def start(self, extensions: Sequence[DataPlaneExtension]) -> None:
        """There is no device to load."""

    def stop(self) -> None:
        """Nothing is held."""

    def interrupt(self, reason: str) -> None:
        """Nothing waits."""

    def admit(self, requests: Sequence[AdmittedRequest]) -> None:
        """Nobody asks."""

    def release(self, request_ids: Sequence[str]) -> None:
        """Nobody asks."""

    def release_memory(self, regions: Sequence[str]) -> None:
        """There is none."""

    def resume_memory(self, regions: Sequence[str]) -> None:
        """There is none."""

    def idle_forward(self, table: ForwardTable) -> None:
        """Nothing runs."""

    def execute(self, plan: Plan, dispatch: Dispatch) -> PendingForward | None:
        """Compare a plan."""
        self._tape.match("e", codec.plan_digest(plan))
        return None if plan.batch is None else ReplayedForward()

    def complete(self, pending: PendingForward) -> ForwardResult:
        """The recorded result."""
        return codec.result_from_plain(self._tape.take("r"))

    def poll_cache_operations(self) -> Sequence[CacheAcknowledgment]:
        """The recorded acknowledgments."""
        return codec.acknowledgments_from_plain(self._tape.take("a"))

    def control(self, request: ControlRequest) -> ControlReply:
        """The recorded reply."""
        return codec.reply_from_plain(self._tape.take("c"))

    def settle(self, name: str, *, agreed: bool) -> None:
        """Nothing is ready."""

    def call(self, function: Callable[[], T]) -> T:
        """The recorded value, if it was a plain one."""
        value: T = self._tape.take("v")
        return value


@frozen(eq=False)
class ReplayedGroup:
    """What the recorded members agreed on."""

    tape: Tape
    size: int
    index: int

    def agree_min(self, values: Sequence[int]) -> list[int]:
        """The recorded minimum."""
        return list(self.tape.take("x"))

    agree_max = total = agree_min

    def gather(self, payload: bytes) -> list[bytes]:
        """The recorded payloads."""
        return list(self.tape.take("x"))

    def broadcast(self, source: int, payload: bytes) -> bytes:
        """The recorded payload."""
        return bytes(self.tape.take("x"))


class ReplayedRanks:
    """The groups of the recorded rank, without its peers."""

    seat = None

    def __init__(self, tape: Tape, header: Header) -> None:
        self.rank = header.rank
        self.world_size = header.world_size
        self.where = Whereabouts()
        groups: dict[str, Group] = {
            name: SingleGroup() if size == 1 else ReplayedGroup(tape, size, index)
            for name, (size, index) in header.groups.items()
        }
        self.replica = groups["replica"]
        self.pp, self.dp, self.ep = (groups.get(name) for name in ("pp", "dp", "ep"))

    def on_end(self, hear: Callable[[str], None]) -> None:
        """Nobody ends."""

    def fail(self, reason: str) -> None:
        """Nobody listens."""

    def close(self) -> None:
        """Nothing is held."""


@frozen(eq=False)
class ReplayedStage:
    """A stage that sees what it saw: it is asked until its own work is as far as it was then."""

    port: AdmissionStage
    tape: Tape

    @property
    def name(self) -> str:
        """The stage's name."""
        return self.port.name

    def enter(self, request: Request) -> Verdict:
        """Pass on."""
        return self.port.enter(request)

    def poll(self, held: Sequence[Request]) -> Sequence[int]:
        """The recorded codes, once the stage's own are no lower."""
        recorded = [int(code) for code in self.tape.take("s")]
        until = time.monotonic() + STAGE_LIMIT_S
        while any(own < code for own, code in zip(self.port.poll(held), recorded, strict=False)):
            if time.monotonic() > until:
                break  # what depends on time may never come to it again; the codes decide
            time.sleep(0.001)
        return recorded

    def settle(self, held: Sequence[Request], agreed: Sequence[int]) -> Sequence[Verdict]:
        """Pass on."""
        return self.port.settle(held, agreed)

    def leave(self, request_id: str) -> None:
        """Pass on."""
        self.port.leave(request_id)


def replayed_hooks(hooks: RoundHooks, tape: Tape) -> RoundHooks:
    """The hooks by which plugins bring something in: they are called, and the recording answers."""

    def answered(call: Callable[[Round], object], kind: str) -> Callable[[Round], Any]:
        def told(round: Round) -> Any:
            call(round)
            return tape.take(kind)

        return told

    found = {hook: getattr(hooks, hook) for hook in OUTSIDE}
    changed: RoundHooks = evolve(
        cast(Any, hooks),
        **{hook: answered(call, OUTSIDE[hook]) for hook, call in found.items() if call},
    )
    return changed
