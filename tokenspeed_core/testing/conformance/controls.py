# SPDX-License-Identifier: MIT
"""What operators do to an engine while the plugin holds requests: pauses, releases, a stop."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from tokenspeed_core.testing.conformance.leaks import Footprint, left_over, new_objects_only
from tokenspeed_core.testing.conformance.running import (
    ContractEngine,
    PluginFaultError,
    running,
)
from tokenspeed_core.testing.conformance.subject import Features, Subject
from tokenspeed_hookspecs import Round

MOMENTS = (1, 4)  # rounds after a request came: held in a stage, and running if it passed
FROZEN_ROUNDS = 6
IDLE_ROUNDS = 50


def check_pauses(subject: Subject) -> list[str]:
    """A pause in each mode, and a release, is answered once; what was held comes to its end."""
    with running(subject) as engine:
        acts = (_abort_pause, _wait_pause, _keep_pause, _release)
        for kind, act, moment in product(subject.kinds, acts, MOMENTS):
            _act(engine, kind, act=act, moment=moment)
        _flush(engine)
    return []


def _act(
    engine: ContractEngine,
    kind: Features,
    *,
    act: Callable[[ContractEngine], None],
    moment: int,
) -> None:
    names = [engine.new(kind), engine.new(kind), engine.new()]
    place = f"{act.__name__.strip('_').replace('_', ' ')} {moment} rounds after requests came"
    place += f" with features {dict(kind)}" if kind else ""
    try:
        engine.rounds(moment)
        act(engine)
        engine.until_ended(*names)
        engine.until_ended(engine.new(kind))
        engine.to_idle()
    except PluginFaultError as fault:
        raise PluginFaultError(f"{fault} ({place})") from fault
    except Exception as error:
        raise PluginFaultError(f"{type(error).__name__}: {error} ({place})") from error


def _abort_pause(engine: ContractEngine) -> None:
    _succeeds(engine, "pause", mode="abort")
    _resume(engine)


def _wait_pause(engine: ContractEngine) -> None:
    _succeeds(engine, "pause", mode="wait")
    _resume(engine)


def _keep_pause(engine: ContractEngine) -> None:
    _succeeds(engine, "pause", mode="keep")
    forwards = engine.engine.plane.num_forwards
    for _ in range(FROZEN_ROUNDS):
        engine.round()
        if engine.engine.plane.num_forwards != forwards:
            raise PluginFaultError(
                "a forward ran in a frozen round; storage_tick must not allow one while "
                "round.frozen is set"
            )
    _resume(engine)


def _release(engine: ContractEngine) -> None:
    _succeeds(engine, "release_memory")
    engine.rounds(2)
    _succeeds(engine, "resume_memory")


def _resume(engine: ContractEngine) -> None:
    engine.rounds(2)
    _succeeds(engine, "resume")


def _flush(engine: ContractEngine) -> None:
    engine.to_idle()
    _succeeds(engine, "flush_cache")


def _succeeds(engine: ContractEngine, name: str, **arguments: object) -> None:
    reply = engine.ask(name, **arguments)
    if not reply.success:
        raise PluginFaultError(f"control operation {name} {arguments} failed: {reply.message}")


def check_idle(subject: Subject) -> list[str]:
    """An idle engine waits for messages: nothing keeps it busy, and its memory can be released."""
    with running(subject) as engine:
        engine.until_ended(*(engine.new(kind) for kind in subject.kinds))
        engine.to_idle()
        hooks = engine.engine.rank.hooks
        for hook in ("busy", "drain_blocked"):
            call = getattr(hooks, hook)
            if call is None:
                continue

            def is_quiet(asked: Callable[[Round], bool] = call) -> bool:
                return not asked(engine.engine.loop.last_round)

            engine.until(is_quiet, f"{hook} stays true though no request is left")
        refuse = hooks.refuse_release
        if refuse is not None and (text := refuse(engine.engine.loop.last_round)):
            return [f"refuse_release refuses though no request is left: {text}"]
    return []


def check_stop(subject: Subject) -> list[str]:
    """An engine can be stopped at any moment, with requests held, and nothing of it is left."""
    with new_objects_only():
        return [each for moment in (0, *MOMENTS) for each in _stopped(subject, moment)]


def _stopped(subject: Subject, moment: int) -> list[str]:
    problems = []
    before = Footprint.now()
    engine = ContractEngine(subject)
    place = f"stopped {moment} rounds after requests came"
    try:
        for kind in subject.kinds:
            engine.new(kind)
            engine.new(kind)
        engine.rounds(moment)
    finally:
        try:
            engine.stop()
        except Exception as error:
            problems.append(f"stop failed, {place}: {type(error).__name__}: {error}")
    del engine
    return problems + [f"{place}: {each}" for each in left_over(before)]
