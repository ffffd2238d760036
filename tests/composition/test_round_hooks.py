# SPDX-License-Identifier: MIT
"""Round hooks, frozen: what each returns, what an exception in one means."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Sequence
from typing import Any

import pytest

from tokenspeed_core.composition.rank import Rank
from tokenspeed_core.composition.round_hooks import ROUND_HOOKS
from tokenspeed_core.composition.signatures import hook_specs
from tokenspeed_core.errors import PluginError
from tokenspeed_hookspecs import Mode, Plugin, Refuse, Round, StorageTick, hookimpl

Compose = Callable[..., Rank]
OFF = ("batch_log", "finish_line")


def plugin(name: str, hook: str, *, answer: Any = None, **options: Any) -> type[Plugin]:
    """A plugin with one round hook that returns `answer`, or raises it."""

    def method(self: Plugin, round: Round) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer(round) if callable(answer) else answer

    return type(name, (Plugin,), {"name": name, hook: hookimpl(**options)(method)})


def call(compose: Compose, hook: str, *plugins: type[Plugin]) -> Any:
    """Compose these plugins and call one hook."""
    frozen = getattr(compose(*plugins, without=OFF).hooks, hook)
    return frozen(Round(7))


def around(name: str, hook: str, *, seen: list[str]) -> type[Plugin]:
    """A plugin that wraps a round hook."""

    def method(self: Plugin, round: Round) -> Generator[None, Any, Any]:
        seen.append(f"{name} before")
        result = yield
        seen.append(f"{name} after")
        return result

    return type(name, (Plugin,), {"name": name, hook: hookimpl(wrapper=True)(method)})


def test_a_hook_nobody_implements_is_none(compose: Compose) -> None:
    """Without plugins every round hook is None: the loop pays one test for it."""
    hooks = compose(without=OFF).hooks
    assert [name for name in ROUND_HOOKS if getattr(hooks, name) is not None] == []


def test_every_hook_of_the_contract_with_a_round_is_frozen() -> None:
    """A hook added to the contract cannot be forgotten here."""
    of_rounds = [name for name, spec in hook_specs().items() if spec.arguments == ("round",)]
    assert sorted(of_rounds) == sorted(ROUND_HOOKS)


@pytest.mark.parametrize(
    ("hook", "answers", "expected"),
    [
        ("planned", ["ignored", None], None),
        ("round_report", [b"1", b"2"], {"a": b"1", "b": b"2"}),
        ("validate_request", [None, Refuse("no")], Refuse("no")),
        ("validate_request", [Refuse("first"), Refuse("second")], Refuse("first")),
        ("validate_request", [None, None], None),
        ("storage_tick", [StorageTick(1), StorageTick(2)], StorageTick(1)),
        ("poll_events", [[1, 2], (3,)], [1, 2, 3]),
        ("drain_blocked", [False, True], True),
        ("busy", [False, False], False),
        ("refuse_release", [None, "b is busy"], "b is busy"),
        ("refuse_weights", [None, "name a version"], "name a version"),
        ("cache_clearing", [True, True], True),
        ("cache_clearing", [True, False], False),
        ("iteration", [None, None], None),
    ],
)
def test_results_are_joined(
    compose: Compose, hook: str, answers: Sequence[Any], expected: Any
) -> None:
    """Each hook joins its plugins' answers in its own way, in their order."""
    plugins = [plugin(n, hook, answer=each) for n, each in zip("ab", answers, strict=True)]
    assert call(compose, hook, *plugins) == expected


@pytest.mark.parametrize(
    ("hook", "answers", "expected"),
    [
        ("planned", [None, None], None),
        ("validate_request", [None, Refuse("no")], Refuse("no")),
        ("storage_tick", [StorageTick(1), StorageTick(2)], StorageTick(1)),
        ("poll_events", [[1, 2], (3,)], [1, 2, 3]),
        ("drain_blocked", [False, True], True),
        ("refuse_release", [None, "b is busy"], "b is busy"),
        ("iteration", [None, None], None),
    ],
)
def test_a_wrapped_hook_joins_alike(
    compose: Compose, hook: str, answers: Sequence[Any], expected: Any
) -> None:
    """With a wrapper, pluggy makes the call and the results are the same."""
    seen: list[str] = []
    plugins = [plugin(n, hook, answer=each) for n, each in zip("ab", answers, strict=True)]
    assert call(compose, hook, around("w", hook, seen=seen), *plugins) == expected
    assert seen == ["w before", "w after"]


def test_first_answer_ends_the_call(compose: Compose) -> None:
    """Nobody is asked after the first answer."""
    asked: list[int] = []
    late = plugin("b", "validate_request", answer=lambda round: asked.append(round.number))
    call(compose, "validate_request", plugin("a", "validate_request", answer=Refuse("")), late)
    assert asked == []


@pytest.mark.parametrize("options", [{"tryfirst": True}, {"trylast": True}])
def test_pluggys_own_order_counts(compose: Compose, options: dict[str, bool]) -> None:
    """`tryfirst` and `trylast` move a plugin as they do in pluggy."""
    marked, other = ("b", "a") if "tryfirst" in options else ("a", "b")
    answers = {name: [name] for name in "ab"}
    plugins = [
        plugin(marked, "poll_events", answer=answers[marked], **options),
        plugin(other, "poll_events", answer=answers[other]),
    ]
    assert call(compose, "poll_events", *plugins) == ["b", "a"]


PARTICIPANT_HOOKS = [n for n in ROUND_HOOKS if hook_specs()[n].mode is Mode.PARTICIPANT]


@pytest.mark.parametrize("hook", PARTICIPANT_HOOKS)
@pytest.mark.parametrize("with_other", [False, True])
def test_a_broken_participant_is_named(compose: Compose, hook: str, with_other: bool) -> None:
    """An exception becomes an error that names plugin, hook, round and cause."""
    cause = OSError("no disk")
    broken = plugin("b", hook, answer=cause)
    benign = {"round_report": b"", "poll_events": (), "cache_clearing": True}.get(hook)
    others = [plugin("a", hook, answer=benign)] if with_other else []
    with pytest.raises(PluginError) as caught:
        call(compose, hook, *others, broken)
    assert str(caught.value) == f"plugin 'b' failed in hook {hook} of round 7: OSError: no disk"
    assert caught.value.__cause__ is cause


def test_a_broken_participant_of_a_wrapped_hook_is_named(compose: Compose) -> None:
    """pluggy's own call does not hide whose function raised."""
    wrapper = around("w", "planned", seen=[])

    class Broken(Plugin):
        name = "broken"

        @hookimpl
        def planned(self, round: Round) -> None:
            raise OSError("no disk")

    with pytest.raises(PluginError, match="plugin 'broken' failed in hook planned of round 7"):
        call(compose, "planned", wrapper, plugin("a", "planned"), Broken)


@pytest.mark.parametrize(
    ("hook", "answer", "text"),
    [
        ("validate_request", "no", "expected Refuse, got 'no'"),
        ("storage_tick", 3, "expected StorageTick, got 3"),
        ("round_report", None, "expected bytes, got None"),
        ("refuse_release", True, "expected str, got True"),
        ("poll_events", 3, "'int' object is not iterable"),
    ],
)
def test_an_answer_of_a_wrong_type_names_its_plugin(
    compose: Compose, hook: str, answer: Any, text: str
) -> None:
    """The plugin that answered wrongly is named, not the loop that would have tripped."""
    with pytest.raises(PluginError, match="plugin 'a' failed") as caught:
        call(compose, hook, plugin("a", hook, answer=answer))
    assert text in str(caught.value)


@pytest.mark.parametrize("failing_at", ["before", "after", "inside"])
def test_every_wrapper_is_closed(compose: Compose, failing_at: str) -> None:
    """Three wrappers, the middle one raises: the others' teardowns run, in reverse order."""
    seen: list[str] = []

    def middle(self: Plugin, round: Round) -> Generator[None, Any, Any]:
        if failing_at == "before":
            raise OSError("no disk")
        result = yield
        if failing_at == "after":
            raise OSError("no disk")
        return result

    def outer(name: str) -> type[Plugin]:
        def method(self: Plugin, round: Round) -> Generator[None, Any, Any]:
            try:
                return (yield)
            finally:
                seen.append(name)

        return type(name, (Plugin,), {"name": name, "planned": hookimpl(wrapper=True)(method)})

    wrap = hookimpl(wrapper=True)(middle)
    between = type("Middle", (Plugin,), {"name": "m", "planned": wrap})
    inside = OSError("no disk") if failing_at == "inside" else None
    with pytest.raises(PluginError, match="no disk"):
        call(
            compose,
            "planned",
            outer("a"),
            between,
            outer("z"),
            plugin("p", "planned", answer=inside),
        )
    assert seen == (["a"] if failing_at == "before" else ["z", "a"])


# --- observers -----------------------------------------------------------------------------


class Failing:
    """An answer that raises in the rounds it is told to."""

    def __init__(self, *rounds: int) -> None:
        self.rounds = rounds
        self.called = 0

    def __call__(self, round: Round) -> None:
        self.called += 1
        if round.number in self.rounds:
            raise OSError("no disk")


def watch(rank: Rank, count: int) -> None:
    """Run the observer hook of so many rounds, numbered from 1."""
    assert rank.hooks.round_done is not None
    for number in range(1, count + 1):
        rank.hooks.round_done(Round(number))


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_a_broken_observer_is_dropped(compose: Compose, is_wrapped: bool) -> None:
    """After three failures in a row it is not called again; others go on."""
    broken, good = Failing(*range(100)), Failing()
    watchers = [plugin("a", "round_done", answer=broken), plugin("b", "round_done", answer=good)]
    wrapper = [around("w", "round_done", seen=[])] if is_wrapped else []
    rank = compose(*watchers, *wrapper, without=OFF)
    watch(rank, 10)
    assert broken.called == 3
    assert rank.observer_errors == {"a": 3}
    assert rank.dropped_observers == {"a"}
    assert good.called == (7 if is_wrapped else 10)


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_only_failures_in_a_row_drop_an_observer(compose: Compose, is_wrapped: bool) -> None:
    """A round that goes well ends the streak; every failure is counted."""
    unlucky = Failing(1, 2, 4, 5, 7, 8)
    wrapper = [around("w", "round_done", seen=[])] if is_wrapped else []
    rank = compose(plugin("a", "round_done", answer=unlucky), *wrapper, without=OFF)
    watch(rank, 10)
    assert unlucky.called == 10
    assert rank.observer_errors == {"a": 6}
    assert not rank.dropped_observers


def test_a_dropped_observer_is_dropped_from_all_its_hooks(compose: Compose) -> None:
    """It watches nothing any more, in no other hook either."""
    other = Failing()

    class Watcher(Plugin):
        name = "watcher"

        @hookimpl
        def round_done(self, round: Round) -> None:
            raise OSError("no disk")

        @hookimpl
        def iteration(self, round: Round) -> None:
            other(round)

    rank = compose(Watcher, without=OFF)
    watch(rank, 3)
    assert rank.hooks.iteration is not None
    rank.hooks.iteration(Round(9))
    assert other.called == 0


def test_an_observers_failure_is_logged_once(
    compose: Compose, caplog: pytest.LogCaptureFixture
) -> None:
    """One line for the first failure with its cause, one when it is switched off."""
    rank = compose(plugin("a", "round_done", answer=Failing(*range(100))), without=OFF)
    with caplog.at_level(logging.INFO):
        watch(rank, 10)
    assert [record.getMessage() for record in caplog.records] == [
        "observer 'a' failed in hook round_done",
        "observer 'a' is switched off: 3 failures in a row in hook round_done",
    ]
    assert "no disk" in caplog.text
