# SPDX-License-Identifier: MIT
"""A participant hook's implementations as one function of the round.

One function a way of joining results, each a plain loop over bound methods: this is what a round
pays for its plugins. What every round calls goes without the loop where one plugin implements it,
the usual case: the loop is a third of what a call takes. An exception ends the engine, as a
`PluginError` that names the plugin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from attrs import frozen

from tokenspeed_core.errors import PluginError
from tokenspeed_hookspecs import Round

T = TypeVar("T")
Function = Callable[[Round], Any]


@frozen
class Implementations:
    """Who implements a hook, in the order of the calls."""

    hook: str
    plugins: tuple[str, ...]
    functions: tuple[Function, ...]

    def failure(self, function: Function, round: Round, *, cause: Exception) -> PluginError:
        """Return the error that names the plugin a function belongs to."""
        plugin = self.plugins[self.functions.index(function)]
        return PluginError(plugin, self.hook, round_number=round.number, cause=cause)


def notify(found: Implementations) -> Callable[[Round], None]:
    """Call everyone; nothing comes back."""
    functions = found.functions
    if len(functions) == 1:
        return _notify_one(found)

    def call(round: Round) -> None:
        try:
            for function in functions:
                function(round)
        except Exception as cause:
            raise found.failure(function, round, cause=cause) from cause

    return call


def _notify_one(found: Implementations) -> Callable[[Round], None]:
    (function,) = found.functions

    def call(round: Round) -> None:
        try:
            function(round)
        except Exception as cause:
            raise found.failure(function, round, cause=cause) from cause

    return call


def first(found: Implementations, wanted: type[T]) -> Callable[[Round], T | None]:
    """Call until one answers; an answer is of the wanted type."""
    functions = found.functions
    if len(functions) == 1:
        return _first_one(found, wanted)

    def call(round: Round) -> T | None:
        try:
            for function in functions:
                answer = function(round)
                if answer is not None:
                    return _checked(answer, wanted)
        except Exception as cause:
            raise found.failure(function, round, cause=cause) from cause
        return None

    return call


def _first_one(found: Implementations, wanted: type[T]) -> Callable[[Round], T | None]:
    (function,) = found.functions

    def call(round: Round) -> T | None:
        try:
            answer = function(round)
            return None if answer is None else _checked(answer, wanted)
        except Exception as cause:
            raise found.failure(function, round, cause=cause) from cause

    return call


def any_true(found: Implementations) -> Callable[[Round], bool]:
    """Call until one says yes."""
    functions = found.functions

    def call(round: Round) -> bool:
        try:
            for function in functions:
                if function(round):
                    return True
        except Exception as cause:
            raise found.failure(function, round, cause=cause) from cause
        return False

    return call


def all_true(found: Implementations) -> Callable[[Round], bool]:
    """Call until one says no."""
    functions = found.functions

    def call(round: Round) -> bool:
        try:
            for function in functions:
                if not function(round):
                    return False
        except Exception as cause:
            raise found.failure(function, round, cause=cause) from cause
        return True

    return call


def flatten(found: Implementations) -> Callable[[Round], Sequence[object]]:
    """Call everyone and chain what they return."""
    functions = found.functions
    if len(functions) == 1:
        return _flatten_one(found)

    def call(round: Round) -> Sequence[object]:
        events: list[object] = []
        try:
            for function in functions:
                events.extend(function(round))
        except Exception as cause:
            raise found.failure(function, round, cause=cause) from cause
        return events

    return call


def _flatten_one(found: Implementations) -> Callable[[Round], Sequence[object]]:
    (function,) = found.functions

    def call(round: Round) -> Sequence[object]:
        try:
            return list(function(round))
        except Exception as cause:
            raise found.failure(function, round, cause=cause) from cause

    return call


def by_plugin(found: Implementations) -> Callable[[Round], Mapping[str, bytes]]:
    """Call everyone; the bytes each returns, by its name."""
    named = tuple(zip(found.plugins, found.functions, strict=True))
    if len(named) == 1:
        return _by_plugin_one(found)

    def call(round: Round) -> Mapping[str, bytes]:
        reports: dict[str, bytes] = {}
        try:
            for plugin, function in named:
                report = reports[plugin] = function(round)
                if report.__class__ is not bytes:
                    _checked(report, bytes)
        except Exception as cause:
            raise found.failure(function, round, cause=cause) from cause
        return reports

    return call


def _by_plugin_one(found: Implementations) -> Callable[[Round], Mapping[str, bytes]]:
    (plugin,), (function,) = found.plugins, found.functions

    def call(round: Round) -> Mapping[str, bytes]:
        try:
            report = function(round)
            return {plugin: report if report.__class__ is bytes else _checked(report, bytes)}
        except Exception as cause:
            raise found.failure(function, round, cause=cause) from cause

    return call


def _checked(answer: object, wanted: type[T]) -> T:
    if not isinstance(answer, wanted):
        raise TypeError(f"expected {wanted.__name__}, got {answer!r}")
    return answer
