# SPDX-License-Identifier: MIT
"""One rank's plugins: their instances, registered in order, and the hooks that set a rank up."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pluggy
from attrs import define, evolve, field, frozen

from tokenspeed_core.composition.plugin_class import LoadedPlugin
from tokenspeed_core.composition.resolve import FailedPlugin
from tokenspeed_core.errors import CompositionError
from tokenspeed_hookspecs import PROJECT, Engine, Plugin


@frozen
class Answer:
    """What a plugin's set-up hook returned."""

    plugin: str
    value: Any


@define(eq=False)
class PluginSet:
    """The plugins of a rank that were made, in order, and the optional ones that were not."""

    log: logging.Logger
    manager: pluggy.PluginManager = field(factory=partial(pluggy.PluginManager, PROJECT))
    members: list[LoadedPlugin] = field(factory=list)
    failed: list[FailedPlugin] = field(factory=list)
    _begun: set[str] = field(factory=set)

    def __attrs_post_init__(self) -> None:
        self.manager.add_hookspecs(Plugin)

    def ask(self, hook: str, **arguments: Any) -> list[Answer]:
        """Call a set-up hook on everyone, in order; CompositionError names who failed."""
        caller = getattr(self.manager.hook, hook)
        found = list(reversed(caller.get_hookimpls()))  # pluggy calls the last one first
        if any(each.wrapper for each in found):
            everyone = ", ".join(each.plugin_name for each in found)
            values = _attempt(everyone, hook, call=partial(caller, **arguments))
            return [Answer(everyone, value) for value in values]
        calls = [(each.plugin_name, partial(each.function, **arguments)) for each in found]
        return [Answer(plugin, _attempt(plugin, hook, call=call)) for plugin, call in calls]

    def ask_for_lists(self, hook: str, **arguments: Any) -> list[Answer]:
        """Call a set-up hook that returns lists; one answer an element."""
        answers = self.ask(hook, **arguments)
        for answer in answers:
            if not isinstance(answer.value, Sequence) or isinstance(answer.value, str):
                raise CompositionError(
                    [f"plugin {answer.plugin!r}: {hook} returned {answer.value!r}, not a list"]
                )
        return [Answer(answer.plugin, each) for answer in answers for each in answer.value]

    def drop(self, name: str, problems: Sequence[str]) -> None:
        """Take an optional plugin out again, before it changed anything."""
        member = next(each for each in self.members if each.name == name)
        if self.manager.has_plugin(name):
            self.manager.unregister(name=name)
        self.members.remove(member)
        self.failed.append(FailedPlugin(name, tuple(problems), member.source))
        self.warn(self.failed[-1])

    def warn(self, plugin: FailedPlugin) -> None:
        """Say that an optional plugin is left out: the engine starts without what it does."""
        reasons = "; ".join(plugin.problems)
        self.log.warning("optional plugin %r is not loaded: %s", plugin.name, reasons)

    def start(self) -> None:
        """Start everyone in order; the first failure ends it."""
        for each in reversed(self.manager.hook.start.get_hookimpls()):
            self._begun.add(each.plugin_name)
            _attempt(each.plugin_name, "start", call=each.function)

    def stop(self) -> list[Exception]:
        """Stop in reverse order whoever began to start or has no start; every stop runs."""
        errors: list[Exception] = []
        waiting = {each.plugin_name for each in self.manager.hook.start.get_hookimpls()}
        for each in self.manager.hook.stop.get_hookimpls():
            if each.plugin_name in waiting - self._begun:
                continue
            try:
                each.function()
            except Exception as error:  # the others must be closed all the same
                self.log.exception("plugin %r failed in stop", each.plugin_name)
                error.add_note(f"plugin {each.plugin_name!r} in hook stop")
                errors.append(error)
        self._begun.clear()
        return errors


def make_plugins(
    loaded: Sequence[LoadedPlugin], failed: Sequence[FailedPlugin], *, engine: Engine
) -> PluginSet:
    """Make and register one instance a plugin; CompositionError lists everyone who failed."""
    plugins = PluginSet(engine.log, members=list(loaded), failed=list(failed))
    problems: list[str] = []
    # pluggy calls whoever registered last first, so the order is registered from its end.
    for position, member in reversed(list(enumerate(loaded))):
        try:
            plugins.members[position] = _registered(member, engine, manager=plugins.manager)
        except CompositionError as error:
            problems.extend(error.problems if member.is_required else [])
            plugins.failed.append(FailedPlugin(member.name, tuple(error.problems), member.source))
    if problems:
        plugins.stop()
        raise CompositionError(problems[::-1])
    for plugin in plugins.failed:
        plugins.warn(plugin)
    plugins.members = [each for each in plugins.members if plugins.manager.has_plugin(each.name)]
    return plugins


def _registered(
    member: LoadedPlugin, engine: Engine, *, manager: pluggy.PluginManager
) -> LoadedPlugin:
    try:
        instance = _instance(member, engine)
        manager.register(instance, name=member.name)
        return evolve(member, instance=instance)
    except Exception as error:
        text = f"plugin {member.name!r} cannot be made: {type(error).__name__}: {error}"
        raise CompositionError([text]) from error


def _instance(member: LoadedPlugin, engine: Engine) -> Plugin:
    if member.instance is None:
        return member.plugin(member.options, engine)
    if getattr(member.instance, "engine", None) is not None:
        raise ValueError("this instance belongs to a rank already; give its class, or make another")
    member.instance.engine = engine
    return member.instance


def _attempt(plugin: str, hook: str, *, call: Callable[[], Any]) -> Any:
    try:
        return call()
    except CompositionError as error:
        raise CompositionError([f"plugin {plugin!r}: {each}" for each in error.problems]) from error
    except Exception as error:
        raise CompositionError(
            [f"plugin {plugin!r} failed in hook {hook}: {type(error).__name__}: {error}"]
        ) from error
