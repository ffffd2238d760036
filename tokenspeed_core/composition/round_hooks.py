# SPDX-License-Identifier: MIT
"""Every round hook as one call, or None where nobody listens.

pluggy costs a microsecond for a hook that nobody implements. So its order is read once, after
registration, and the loop calls the methods themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pluggy
from attrs import define, fields, frozen

from tokenspeed_core.composition import participant_calls as direct
from tokenspeed_core.composition import wrapped_calls as wrapped
from tokenspeed_core.composition.participant_calls import Implementations
from tokenspeed_core.composition.quarantine import Quarantine
from tokenspeed_core.composition.timing import Calls, timed
from tokenspeed_hookspecs import Refuse, Round, StorageTick

Phase = Callable[[Round], None]


@define(kw_only=True)
class RoundHooks:
    """One rank's round hooks, in the order of the round; frozen when the rank is built.

    `committed` calls those of `forward_done`, too.
    """

    round_report: Callable[[Round], Mapping[str, bytes]] | None = None
    validate_request: Callable[[Round], Refuse | None] | None = None
    request_aborted: Phase | None = None
    refuse_weights: Callable[[Round], str | None] | None = None
    cache_clearing: Callable[[Round], bool] | None = None
    weights_loaded: Phase | None = None
    storage_tick: Callable[[Round], StorageTick | None] | None = None
    planned: Phase | None = None
    dispatch: Phase | None = None
    committed: Phase | None = None
    poll_events: Callable[[Round], Sequence[object]] | None = None
    scheduler_events: Phase | None = None
    drain_blocked: Callable[[Round], bool] | None = None
    refuse_release: Callable[[Round], str | None] | None = None
    busy: Callable[[Round], bool] | None = None
    request_finished: Phase | None = None
    iteration: Phase | None = None
    forward_done: Phase | None = None
    round_done: Phase | None = None


@frozen
class Joining:
    """How a participant hook's results become one: called directly, and from pluggy's results."""

    call: Callable[[Implementations], Callable[[Round], Any]]
    join: Callable[[Any], Any]


_NOTIFY = Joining(direct.notify, wrapped.joined_none)
_ANY = Joining(direct.any_true, wrapped.joined_any)
JOININGS: Mapping[str, Joining] = {
    "validate_request": Joining(partial(direct.first, wanted=Refuse), wrapped.joined_first),
    "request_aborted": _NOTIFY,
    "refuse_weights": Joining(partial(direct.first, wanted=str), wrapped.joined_text),
    "cache_clearing": Joining(direct.all_true, wrapped.joined_all),
    "weights_loaded": _NOTIFY,
    "storage_tick": Joining(partial(direct.first, wanted=StorageTick), wrapped.joined_first),
    "planned": _NOTIFY,
    "dispatch": _NOTIFY,
    "committed": _NOTIFY,
    "poll_events": Joining(direct.flatten, wrapped.joined_events),
    "scheduler_events": _NOTIFY,
    "drain_blocked": _ANY,
    "refuse_release": Joining(partial(direct.first, wanted=str), wrapped.joined_text),
    "busy": _ANY,
}
OBSERVED = frozenset({"request_finished", "iteration", "forward_done", "round_done"})
ROUND_HOOKS = tuple(attribute.name for attribute in fields(RoundHooks))


def freeze(
    plugins: pluggy.PluginManager,
    quarantine: Quarantine,
    *,
    noted: Calls | None = None,
) -> RoundHooks:
    """Return the round hooks of the plugins registered so far, each call added to `noted`."""
    calls: dict[str, Any] = {}
    for hook in ROUND_HOOKS:
        caller = getattr(plugins.hook, hook)
        found = list(reversed(caller.get_hookimpls()))  # pluggy calls the last one first
        if not found:
            continue
        implementations = Implementations(
            hook, tuple(each.plugin_name for each in found), tuple(each.function for each in found)
        )
        if noted is not None:
            implementations = timed(implementations, noted)
        has_wrapper = any(each.wrapper or each.hookwrapper for each in found)
        if hook == "round_report":
            calls[hook] = direct.by_plugin(implementations)
        elif hook in OBSERVED and has_wrapper:
            calls[hook] = wrapped.watch(plugins, hook, quarantine=quarantine)
        elif hook in OBSERVED:
            calls[hook] = quarantine.watch(implementations)
        elif has_wrapper:
            calls[hook] = wrapped.participate(caller, JOININGS[hook].join)
        else:
            calls[hook] = JOININGS[hook].call(implementations)
    hooks = RoundHooks(**calls)
    hooks.committed = _in_turn(hooks.committed, hooks.forward_done)
    if hooks.round_done is not None and hooks.committed is None:
        hooks.committed = _seen_later
    return hooks


def _seen_later(round: Round) -> None:
    """Nobody is told of a commit when it is made, but of all of a round's at its end."""


def _in_turn(first: Phase | None, then: Phase | None) -> Phase | None:
    """Both as one call: whoever only watches a commit comes behind whoever takes part in it."""
    if first is None or then is None:
        return first or then

    def call(round: Round) -> None:
        first(round)
        then(round)

    return call
