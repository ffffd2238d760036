# SPDX-License-Identifier: MIT
"""A round hook that has a wrapper keeps pluggy's own call; only its failures are named here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import pluggy

from tokenspeed_core.composition.quarantine import Quarantine
from tokenspeed_core.errors import PluginError
from tokenspeed_hookspecs import Round

T = TypeVar("T")


def participate(caller: pluggy.HookCaller, join: Callable[[Any], T]) -> Callable[[Round], T]:
    """Return pluggy's call of a participant hook; `join` makes its results the hook's own."""

    def call(round: Round) -> T:
        try:
            return join(caller(round=round))
        except Exception as cause:
            culprit = _culprit(caller, cause)
            raise PluginError(
                culprit, caller.name, round_number=round.number, cause=cause
            ) from cause

    return call


def watch(
    plugins: pluggy.PluginManager, hook: str, *, quarantine: Quarantine
) -> Callable[[Round], None]:
    """Return pluggy's call of an observer hook, without the observers that were dropped."""

    def call(round: Round) -> None:
        dropped = [plugins.get_plugin(name) for name in sorted(quarantine.dropped)]
        caller = plugins.subset_hook_caller(hook, dropped)
        try:
            caller(round=round)
        except Exception as cause:  # the failure policy of observers is owned by the quarantine
            quarantine.log.debug("observer failed", exc_info=True)
            quarantine.failed(_culprit(caller, cause), hook, cause=cause)
        quarantine.settle(hook)

    return call


def joined_first(answer: T) -> T:
    """A hook that ends at the first answer: pluggy returned it."""
    return answer


def joined_none(answers: Iterable[object]) -> None:
    """A hook without results."""


def joined_any(answers: Iterable[object]) -> bool:
    """A question anyone may answer with yes."""
    return any(answers)


def joined_all(answers: Iterable[object]) -> bool:
    """A question everyone has to answer with yes."""
    return all(answers)


def joined_text(answers: Iterable[str]) -> str | None:
    """The first reason given; pluggy leaves None out."""
    return next(iter(answers), None)


def joined_events(answers: Iterable[Iterable[object]]) -> list[object]:
    """Everyone's events, in order."""
    return [event for events in answers for event in events]


def _culprit(caller: pluggy.HookCaller, cause: Exception) -> str:
    """Name the plugin whose method the exception came out of: the innermost one on its way."""
    owners = {id(each.plugin): each.plugin_name for each in caller.get_hookimpls()}
    found = " or ".join(sorted(owners.values()))
    trace = cause.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        first = trace.tb_frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
        found = owners.get(id(first), found)
        trace = trace.tb_next
    return found
