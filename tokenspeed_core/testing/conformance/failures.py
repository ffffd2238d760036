# SPDX-License-Identifier: MIT
"""A raise at each hook is handled by the hook's mode, and whatever raised can still be stopped."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, cast

from tokenspeed_core.composition.round_hooks import OBSERVED, ROUND_HOOKS
from tokenspeed_core.composition.signatures import implementation_options, implemented
from tokenspeed_core.errors import CompositionError, PluginError
from tokenspeed_core.testing.conformance.leaks import Footprint, left_over, new_objects_only
from tokenspeed_core.testing.conformance.running import ContractEngine, PluginFaultError
from tokenspeed_core.testing.conformance.subject import Subject
from tokenspeed_hookspecs import Plugin, Round, hookimpl

PLANTED = "planted by the check"
SET_UP = ("start",)  # the others run before anything of the plugin is open


class PlantedError(RuntimeError):
    """What the check raises."""


class Bystander(Plugin):
    """Another plugin, that fails: nobody may hide it."""

    name = "zz_bystander"

    @hookimpl
    def planned(self, round: Round) -> None:
        if round.batch is None and round.number > 2:
            raise PlantedError(PLANTED)


def check_failures(subject: Subject) -> list[str]:
    """Plant a raise in each hook the plugin has, once before its own code and once after."""
    problems = []
    for hook in implemented(subject.plugin):
        options = implementation_options(subject.plugin).get(hook) or {}
        if options.get("wrapper") or hook not in (*SET_UP, *ROUND_HOOKS):
            continue
        with new_objects_only():
            for is_late in (False, True):
                problems += _planted(subject, hook, is_late=is_late)
    return [*problems, *_hidden(subject)]


def _planted(subject: Subject, hook: str, *, is_late: bool) -> list[str]:
    before = Footprint.now()
    place = f"a raise {'at the end' if is_late else 'at the start'} of {hook}"
    failing = _failing(subject.plugin, hook, is_late=is_late)
    problems = []
    try:
        engine = ContractEngine(subject, plugin=failing)
    except CompositionError as error:
        if PLANTED not in str(error):
            problems.append(f"{place} hid behind {error}")
        notes = [each for each in _notes(error) if "while stopping" in each]
        problems += [f"{place}: stop failed afterwards, {each}" for each in notes]
    else:
        problems += _run(engine, hook, place=place)
        del engine
    return problems + [f"after {place} {each}" for each in left_over(before)]


def _run(engine: ContractEngine, hook: str, *, place: str) -> list[str]:
    problems = []
    try:
        for kind in engine.subject.kinds:
            engine.until_ended(engine.new(kind))
        engine.to_idle()
    except PluginError as error:
        if hook in OBSERVED or error.hook != hook:
            problems.append(f"{place} ended the engine as {error}")
    except PluginFaultError as fault:
        problems.append(f"{place} left the engine hanging: {fault}")
    except Exception as error:
        if PLANTED not in str(error):
            problems.append(f"{place} became {type(error).__name__}: {error}")
    try:
        engine.stop()
    except Exception as error:
        problems.append(f"{place}: stop failed afterwards, {type(error).__name__}: {error}")
    return problems


def _failing(plugin: type[Plugin], hook: str, *, is_late: bool) -> type[Plugin]:
    """The class with a hook that raises whenever it is called."""
    method = implemented(plugin)[hook]
    original: Callable[..., Any] = getattr(plugin, method)

    @wraps(original)
    def call(self: Plugin, *arguments: Any, **named: Any) -> Any:
        if is_late:
            original(self, *arguments, **named)
        raise PlantedError(PLANTED)

    members = {method: call, "__module__": plugin.__module__}
    return cast("type[Plugin]", type(plugin.__name__, (plugin,), members))


def _hidden(subject: Subject) -> list[str]:
    """A plugin that wraps hooks lets the failures of others through."""
    engine = ContractEngine(subject, Bystander)
    try:
        for kind in subject.kinds:
            engine.until_ended(engine.new(kind))
        engine.rounds(5)
    except PluginError as error:
        if error.plugin == Bystander.name:
            return []
        return [f"a failure of plugin {Bystander.name!r} in planned is told as {error}"]
    finally:
        engine.stop()
    return [f"it hides a failure of plugin {Bystander.name!r} in hook planned; do not swallow"]


def _notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", ()))
