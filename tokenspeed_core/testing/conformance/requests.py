# SPDX-License-Identifier: MIT
"""A request ends exactly once, whatever state it is in when its client or the engine ends it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from tokenspeed_core.composition.signatures import implemented
from tokenspeed_core.testing.conformance.running import (
    ContractEngine,
    PluginFaultError,
    check_tokens,
    running,
)
from tokenspeed_core.testing.conformance.subject import Features, Subject

MOST_ROUNDS = 40
Ending = Callable[[ContractEngine, str], None]


def _by_client(engine: ContractEngine, request_id: str) -> None:
    engine.engine.abort(request_id)


def _by_engine(engine: ContractEngine, request_id: str) -> None:
    engine.engine.loop.requests.abort(request_id, "ended by the engine")


def _twice(engine: ContractEngine, request_id: str) -> None:
    engine.engine.abort(request_id, request_id, "nobody-knows-this")
    engine.round()
    engine.engine.abort(request_id)


ENDINGS: dict[str, Ending] = {
    "its client left": _by_client,
    "the engine ended it": _by_engine,
    "its client left twice": _twice,
}


def check_traffic(subject: Subject) -> list[str]:
    """Requests of every kind end, alone and together, with tokens of their own."""
    with running(subject) as engine:
        for kind in subject.kinds:
            (stream,) = engine.until_ended(engine.new(kind))
            if not kind:
                check_tokens([stream])
        engine.to_idle()
        names = [engine.new(kind, budget=3 + at) for at in range(3) for kind in subject.kinds]
        engine.until_ended(*names)
        engine.to_idle()
        _check_replies(engine)
    return []


def check_aborts(subject: Subject) -> list[str]:
    """Each kind of request is ended after each number of rounds, until it ends by itself."""
    with running(subject) as engine:
        for kind, (told, end) in product(subject.kinds, ENDINGS.items()):
            _end_after_each(engine, kind, told=told, end=end)
        _check_reuse(engine)
    return []


def _end_after_each(engine: ContractEngine, kind: Features, *, told: str, end: Ending) -> None:
    for rounds in range(MOST_ROUNDS):
        place = f"{told} {rounds} rounds after it came{_of(kind)}"
        if _is_over_before(engine, kind, rounds=rounds, end=end, place=place):
            return


def _is_over_before(
    engine: ContractEngine, kind: Features, *, rounds: int, end: Ending, place: str
) -> bool:
    """Run a request beside a plain one, end it after so many rounds, and see both end."""
    plain = engine.new(budget=2)
    name = engine.new(kind)
    received = engine.engine.received
    try:
        engine.rounds(rounds)
        is_over = received[name].finish is not None
        end(engine, name)
        engine.until_ended(plain)
        engine.to_idle()
    except PluginFaultError as fault:
        raise PluginFaultError(f"{fault} ({place})") from fault
    except Exception as error:
        raise PluginFaultError(f"{type(error).__name__}: {error} ({place})") from error
    ends = [each for each in engine.engine.plane.released if each[0] == name]
    if len(ends) > 1:
        raise PluginFaultError(f"request {name!r} was released {len(ends)} times ({place})")
    return is_over


def _check_reuse(engine: ContractEngine) -> None:
    """An id may come again as soon as the engine has let go of it."""
    for kind, rounds in product(engine.subject.kinds, (1, 2, 4)):
        name = engine.new(kind)
        engine.rounds(rounds)
        _by_engine(engine, name)
        engine.until_gone(name)
        engine.round()  # an end between two rounds is told at the end of the next
        engine.reuse(name, kind)
        engine.until_ended_again(name)
        engine.to_idle()


def check_operations(subject: Subject) -> list[str]:
    """Each control operation of the plugin answers once, also to arguments it does not know."""
    with running(subject) as engine:
        if "control_operations" in implemented(subject.plugin):
            for operation in engine.instance.control_operations():
                engine.ask(operation.name)
                engine.ask(operation.name, no_such_argument=1)
                engine.rounds(3)
        engine.to_idle()
        _check_replies(engine)
    return []


def _check_replies(engine: ContractEngine) -> None:
    asked, came = engine.asked, [reply.name for reply in engine.engine.received.replies]
    if came != asked:
        raise PluginFaultError(f"control operations {asked} were asked, {came} were answered")


def _of(kind: Features) -> str:
    return f", with features {dict(kind)}" if kind else ""
