# SPDX-License-Identifier: MIT
"""The ports of a loop that is recorded: each passes everything on, and tells what came back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import msgspec
from attrs import define, evolve, frozen

from tokenspeed_core.loop import relay
from tokenspeed_core.loop.parts import RoundHooks
from tokenspeed_core.ranks.device_seat import DeviceSeat
from tokenspeed_core.ranks.membership import Membership, Whereabouts
from tokenspeed_core.recording import codec
from tokenspeed_hookspecs import (
    AdmissionStage,
    AdmittedRequest,
    CacheAcknowledgment,
    CacheGroup,
    ControlReply,
    ControlRequest,
    DataPlane,
    DataPlaneExtension,
    Dispatch,
    ForwardResult,
    ForwardTable,
    Frontend,
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
# What plugins bring in from outside: reports, and whether they could forget what they keep.
OUTSIDE: Mapping[str, str] = {"round_report": "p", "cache_clearing": "k"}
Note = Callable[[str, Any], None]


@frozen(eq=False)
class RecordedFrontend:
    """Messages as they came, and digests of what was answered."""

    port: Frontend
    note: Note

    def receive(self, wait_s: float | None) -> Sequence[Message]:
        """Tell the messages, and whether more can come."""
        messages = self.port.receive(wait_s)
        closed = self.port.is_closed
        self.note("m", relay.encode(closed, messages, now=0.0))
        return messages

    @property
    def is_closed(self) -> bool:
        """Whether no message can arrive any more."""
        return self.port.is_closed

    def send(self, outputs: OutputBatch, load: Load) -> None:
        """Tell a digest of the chunks."""
        self.note("o", codec.outputs_digest(outputs))
        self.port.send(outputs, load)

    def reply(self, reply: ControlReply) -> None:
        """Tell a digest of the reply."""
        self.note("o", codec.reply_digest(reply))
        self.port.reply(reply)


@frozen(eq=False)
class RecordedPlane:
    """What the device gave, and digests of what it was asked."""

    port: DataPlane
    note: Note

    @property
    def kind(self) -> str:
        """Which driver it is."""
        return self.port.kind

    @property
    def model(self) -> ModelInfo:
        """What was loaded."""
        return self.port.model

    @property
    def cache_groups(self) -> Sequence[CacheGroup]:
        """The page tables."""
        return self.port.cache_groups

    @property
    def num_host_pages(self) -> int:
        """Pages of the host tier."""
        return self.port.num_host_pages

    @property
    def host_pages(self) -> HostPages | None:
        """The host tier's memory: what is moved there and away is not recorded."""
        return self.port.host_pages

    @property
    def memory_regions(self) -> Sequence[str]:
        """What can be released."""
        return self.port.memory_regions

    def start(self, extensions: Sequence[DataPlaneExtension]) -> None:
        """Pass on."""
        self.port.start(extensions)

    def stop(self) -> None:
        """Pass on."""
        self.port.stop()

    def interrupt(self, reason: str) -> None:
        """Pass on."""
        self.port.interrupt(reason)

    def admit(self, requests: Sequence[AdmittedRequest]) -> None:
        """Pass on."""
        self.port.admit(requests)

    def release(self, request_ids: Sequence[str]) -> None:
        """Pass on."""
        self.port.release(request_ids)

    def release_memory(self, regions: Sequence[str]) -> None:
        """Pass on."""
        self.port.release_memory(regions)

    def resume_memory(self, regions: Sequence[str]) -> None:
        """Pass on."""
        self.port.resume_memory(regions)

    def idle_forward(self, table: ForwardTable) -> None:
        """Pass on."""
        self.port.idle_forward(table)

    def execute(self, plan: Plan, dispatch: Dispatch) -> PendingForward | None:
        """Tell a digest of the plan."""
        self.note("e", codec.plan_digest(plan))
        return self.port.execute(plan, dispatch)

    def complete(self, pending: PendingForward) -> ForwardResult:
        """Tell the result."""
        result = self.port.complete(pending)
        self.note("r", codec.result_to_plain(result))
        return result

    def poll_cache_operations(self) -> Sequence[CacheAcknowledgment]:
        """Tell what is done."""
        done = self.port.poll_cache_operations()
        self.note("a", codec.acknowledgments_to_plain(done))
        return done

    def control(self, request: ControlRequest) -> ControlReply:
        """Tell the reply."""
        reply = self.port.control(request)
        self.note("c", codec.reply_to_plain(reply))
        return reply

    def settle(self, name: str, *, agreed: bool) -> None:
        """Pass on."""
        self.port.settle(name, agreed=agreed)

    def call(self, function: Callable[[], T]) -> T:
        """Tell the value, where it is plain."""
        value = self.port.call(function)
        try:
            plain = msgspec.to_builtins(value)
        except TypeError:
            plain = None
        self.note("v", plain)
        return value


@frozen(eq=False)
class RecordedGroup:
    """What the members agreed on."""

    port: Group
    note: Note

    @property
    def size(self) -> int:
        """How many ranks it has."""
        return self.port.size

    @property
    def index(self) -> int:
        """This rank's place in it."""
        return self.port.index

    def agree_min(self, values: Sequence[int]) -> list[int]:
        """Tell the minimum."""
        return self._told(self.port.agree_min(values))

    def agree_max(self, values: Sequence[int]) -> list[int]:
        """Tell the maximum."""
        return self._told(self.port.agree_max(values))

    def total(self, values: Sequence[int]) -> list[int]:
        """Tell the sum."""
        return self._told(self.port.total(values))

    def gather(self, payload: bytes) -> list[bytes]:
        """Tell the payloads."""
        return self._told(self.port.gather(payload))

    def broadcast(self, source: int, payload: bytes) -> bytes:
        """Tell the payload."""
        return self._told(self.port.broadcast(source, payload))

    def _told(self, value: T) -> T:
        self.note("x", value)
        return value


@define(eq=False)
class RecordedRanks:
    """A rank's groups; the recording ends when the rank leaves them."""

    port: Membership
    note: Note
    end: Callable[[], None]

    @property
    def rank(self) -> int:
        """This rank."""
        return self.port.rank

    @property
    def world_size(self) -> int:
        """How many there are."""
        return self.port.world_size

    @property
    def replica(self) -> Group:
        """The ranks that mirror one scheduler."""
        return self._heard(self.port.replica)

    @property
    def pp(self) -> Group | None:
        """The pipeline's stages."""
        return None if self.port.pp is None else self._heard(self.port.pp)

    @property
    def dp(self) -> Group | None:
        """Every rank, with data parallelism."""
        return None if self.port.dp is None else self._heard(self.port.dp)

    @property
    def ep(self) -> Group | None:
        """The expert-parallel group."""
        return None if self.port.ep is None else self._heard(self.port.ep)

    @property
    def where(self) -> Whereabouts:
        """This rank's place, in words."""
        return self.port.where

    @property
    def seat(self) -> DeviceSeat | None:
        """Where data planes meet."""
        return self.port.seat

    def on_end(self, hear: Callable[[str], None]) -> None:
        """Pass on."""
        self.port.on_end(hear)

    def fail(self, reason: str) -> None:
        """Tell why this rank ends."""
        self.note("!", reason)
        self.port.fail(reason)

    def close(self) -> None:
        """Pass on, and end the recording."""
        self.port.close()
        self.end()

    def _heard(self, group: Group) -> Group:
        return group if group.size == 1 else RecordedGroup(group, self.note)


@frozen(eq=False)
class RecordedStage:
    """What a stage saw of the requests it holds: work of its threads, another rank, the time."""

    port: AdmissionStage
    note: Note

    @property
    def name(self) -> str:
        """The stage's name."""
        return self.port.name

    def enter(self, request: Request) -> Verdict:
        """Pass on."""
        return self.port.enter(request)

    def poll(self, held: Sequence[Request]) -> Sequence[int]:
        """Tell the codes."""
        codes = [int(code) for code in self.port.poll(held)]
        self.note("s", codes)
        return codes

    def settle(self, held: Sequence[Request], agreed: Sequence[int]) -> Sequence[Verdict]:
        """Pass on."""
        return self.port.settle(held, agreed)

    def leave(self, request_id: str) -> None:
        """Pass on."""
        self.port.leave(request_id)


def recorded_hooks(hooks: RoundHooks, note: Note) -> RoundHooks:
    """The hooks by which plugins bring in what the loop cannot ask again, heard."""

    def heard(call: Callable[[Round], T], kind: str) -> Callable[[Round], T]:
        def told(round: Round) -> T:
            value = call(round)
            note(kind, value)
            return value

        return told

    found = {hook: getattr(hooks, hook) for hook in OUTSIDE}
    changed: RoundHooks = evolve(
        cast(Any, hooks),
        **{hook: heard(call, OUTSIDE[hook]) for hook, call in found.items() if call},
    )
    return changed
