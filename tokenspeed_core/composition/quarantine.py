# SPDX-License-Identifier: MIT
"""Observers that fail: logged once, counted, and dropped after three failures in a row."""

from __future__ import annotations

import logging
from collections.abc import Callable

from attrs import define, field

from tokenspeed_core.composition.instruments import NoInstruments
from tokenspeed_core.composition.participant_calls import Implementations
from tokenspeed_hookspecs import Instruments, Round

TOLERATED = 3


@define
class Quarantine:
    """The observers of one rank that still watch, and the failures of each by plugin name."""

    log: logging.Logger
    instruments: Instruments = field(factory=NoInstruments)
    errors: dict[str, int] = field(factory=dict)
    _streaks: dict[tuple[str, str], int] = field(factory=dict)
    _failed_now: set[str] = field(factory=set)
    _dropped: set[str] = field(factory=set)

    @property
    def dropped(self) -> frozenset[str]:
        """The observers that were switched off."""
        return frozenset(self._dropped)

    def watch(self, found: Implementations) -> Callable[[Round], None]:
        """Return one call for a hook's observers; it never raises."""
        if len(found.functions) == 1:
            return self._watch_one(found)
        hook, streaks, dropped = found.hook, self._streaks, self._dropped
        named = tuple(zip(found.plugins, found.functions, strict=True))

        def call(round: Round) -> None:
            for plugin, function in named:
                if dropped and plugin in dropped:
                    continue
                try:
                    function(round)
                except Exception as cause:  # the failure policy of observers is owned here
                    self.log.debug("observer failed", exc_info=True)
                    self.failed(plugin, hook, cause=cause)
            if streaks:
                self.settle(hook)

        return call

    def _watch_one(self, found: Implementations) -> Callable[[Round], None]:
        hook, streaks, dropped = found.hook, self._streaks, self._dropped
        (plugin,), (function,) = found.plugins, found.functions

        def call(round: Round) -> None:
            if dropped and plugin in dropped:
                return
            try:
                function(round)
            except Exception as cause:  # the failure policy of observers is owned here
                self.log.debug("observer failed", exc_info=True)
                self.failed(plugin, hook, cause=cause)
            if streaks:
                self.settle(hook)

        return call

    def failed(self, plugin: str, hook: str, *, cause: Exception) -> None:
        """Take note of a failure; the third in a row in one hook drops the observer."""
        count = self.errors[plugin] = self.errors.get(plugin, 0) + 1
        streak = self._streaks[plugin, hook] = self._streaks.get((plugin, hook), 0) + 1
        self._failed_now.add(plugin)
        self.instruments.counter(
            "observer_errors", "Failures of each observer.", labels={"plugin": plugin}
        ).add()
        if count == 1:
            self.log.error("observer %r failed in hook %s", plugin, hook, exc_info=cause)
        if streak >= TOLERATED and plugin not in self._dropped:
            self._drop(plugin, hook)

    def settle(self, hook: str) -> None:
        """End a call: who did not fail in it has no streak in this hook any more."""
        for plugin, each in list(self._streaks):
            if each == hook and plugin not in self._failed_now:
                del self._streaks[plugin, each]
        self._failed_now.clear()

    def _drop(self, plugin: str, hook: str) -> None:
        self._dropped.add(plugin)
        self.log.error(
            "observer %r is switched off: %d failures in a row in hook %s", plugin, TOLERATED, hook
        )
