# SPDX-License-Identifier: MIT
"""The owner's messages, and each member's reports, to every member of the replica.

From here on every member sees the same messages, so every later decision can be made locally and
still be the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import cast

import msgspec
from attrs import define, fields, frozen

from tokenspeed_core.errors import EngineError
from tokenspeed_hookspecs import AbortRequests, AddRequest, ControlRequest, Group, Message


@frozen
class Unrelayable:
    """In place of a message the other ranks cannot be told, so that all refuse it alike: the id of
    its request or the name of its operation, in UTF-8 with surrogates, and why."""

    problem: str
    request_id: bytes | None = None
    operation: bytes | None = None


Told = Message | Unrelayable
PLAIN = frozenset((bool, int, float, str, bytes, type(None)))
_KINDS = (AddRequest, AbortRequests, ControlRequest, Unrelayable)
_Tagged = list[tuple[int, msgspec.Raw]]


@define(eq=False)
class Relayed:
    """What a round starts from, the same on every member. `now` is the owner's clock, in seconds:
    what ends by time ends on all members in the same round."""

    stop: bool
    now: float
    messages: Sequence[Told]
    reports: Mapping[str, Sequence[bytes]]


class Relay:
    """One exchange a round: a broadcast, or a gather once a plugin reports."""

    def __init__(self, replica: Group) -> None:
        self._replica = replica

    def exchange(
        self,
        stop: bool,
        received: Sequence[Message],
        *,
        now: float,
        reports: Mapping[str, bytes] | None,
    ) -> Relayed:
        """Give the owner's stop flag, clock and messages to all; `reports` is None without a
        reporter."""
        if self._replica.size == 1:
            own: dict[str, Sequence[bytes]] = {}
            for name, report in reports.items() if reports is not None else ():
                own[name] = (report,)
            return Relayed(stop, now, received, own)
        is_owner = self._replica.index == 0
        told, payload = _told(stop, received, now=now) if is_owner else ((), b"")
        gathered: dict[str, list[bytes]] = {}
        if reports is None:
            relayed = self._replica.broadcast(0, payload)
        else:
            relayed, gathered = self._gather(payload, reports)
        if is_owner:
            return Relayed(stop, now, told, gathered)
        return Relayed(*decode(relayed), gathered)

    def _gather(
        self, payload: bytes, reports: Mapping[str, bytes]
    ) -> tuple[bytes, dict[str, list[bytes]]]:
        mine = msgspec.msgpack.encode((payload, dict(reports)))
        parts = self._replica.gather(mine)
        members = [msgspec.msgpack.decode(p, type=tuple[bytes, dict[str, bytes]]) for p in parts]
        gathered = {name: [own.get(name, b"") for _, own in members] for name in reports}
        return members[0][0], gathered


def _told(stop: bool, received: Sequence[Message], *, now: float) -> tuple[Sequence[Told], bytes]:
    """What all members get, and its encoding."""
    try:
        payload = encode(stop, received, now=now)
        # What a front end's own kinds of values become on the others they become here as well.
        return received if all(map(_arrives_alike, received)) else decode(payload)[2], payload
    except (TypeError, ValueError, OverflowError, RecursionError):
        told = [_relayable(message) for message in received]
        return told, encode(stop, told, now=now)


def _arrives_alike(message: Message) -> bool:
    """Whether what it holds for others than the core is the same once it was decoded."""
    if isinstance(message, AddRequest):
        return not message.features or _is_plain(message.features)
    return not isinstance(message, ControlRequest) or _is_plain(message.arguments)


def _is_plain(value: object) -> bool:
    if type(value) is dict:
        return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
    if type(value) is list:
        return all(map(_is_plain, value))
    return type(value) in PLAIN


def _relayable(message: Message) -> Told:
    try:
        encode(False, [message], now=0.0)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(message, AbortRequests):
            return AbortRequests(())  # of an id that was refused
        if isinstance(message, AddRequest):
            return Unrelayable(str(error), _utf8(message.request_id))
        return Unrelayable(str(error), operation=_utf8(message.name))
    return message


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def encode(stop: bool, messages: Sequence[Told], *, now: float) -> bytes:
    """Messages as msgpack: the stop flag, the clock, then (kind, message) pairs."""
    encoder = msgspec.msgpack.Encoder(enc_hook=_plain_value)
    tagged = [(_KINDS.index(type(m)), msgspec.Raw(encoder.encode(_plain(m)))) for m in messages]
    return encoder.encode((stop, now, tagged))


def _plain(message: Told) -> Told | dict[str, object]:
    if not isinstance(message, AddRequest):
        return message
    # Prompts may be any sequence of ids; the wire knows lists.
    named = {attribute.name: getattr(message, attribute.name) for attribute in fields(AddRequest)}
    named["prompt_ids"] = [int(token) for token in message.prompt_ids]
    return named


def _plain_value(value: object) -> object:
    """What msgspec does not know: a front end's kinds of bytes and numbers."""
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise TypeError(f"other ranks cannot be told of a {type(value).__name__}: {value!r:.80}")


def decode(payload: bytes) -> tuple[bool, float, list[Told]]:
    """The stop flag, clock and messages of a round. EngineError if they do not decode."""
    try:
        stop, now, tagged = msgspec.msgpack.decode(payload, type=tuple[bool, float, _Tagged])
        messages = [msgspec.msgpack.decode(raw, type=_KINDS[kind]) for kind, raw in tagged]
        return stop, now, cast("list[Told]", messages)
    except (msgspec.MsgspecError, IndexError) as error:
        raise EngineError(
            f"the relayed messages of {len(payload)} bytes do not decode ({error}); the replica's "
            "members run different versions"
        ) from error
